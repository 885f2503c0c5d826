"""A plan: the predicted speed-up of speculation by acceptance, batch size and context."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_lab.planning.roofline import Machine, Point
from specdec_lab.planning.speedup import (
    Acceptance,
    PassCosts,
    best_length,
    break_even_batch,
    break_even_rate,
)

SCHEMA = 1
"""Version of the plans' JSON; raised when a field changes its meaning."""

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Acceptance rates of the tables."""

WORTH_IT = 1.05
"""The least speed-up for which the plan recommends speculation."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of a step at a batch size, draft length and context: the target's and drafting."""

    batch: int
    length: int
    context: int
    target_seconds: float
    draft_seconds: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The best draft length and its speed-up, at a batch size and context.

    `rate` is the assumed acceptance rate at each position; None: the measured acceptance.
    """

    batch: int
    context: int
    rate: float | None
    length: int
    speedup: float


@dataclasses.dataclass(frozen=True)
class BreakEven:
    """The acceptance rate above which drafting pays; None where it never does."""

    batch: int
    context: int
    rate: float | None


@dataclasses.dataclass(frozen=True)
class LastBatch:
    """The largest batch size with a speed-up above WORTH_IT, 0 for none; `rate` as in
    Prediction."""

    context: int
    rate: float | None
    batch: int


@dataclasses.dataclass
class Plan:
    """The plan.

    Attributes:
        model: the model that was planned for.
        speculation: the drafter, by the keys of speculative_config.
        machine: what limits passes.
        is_measured: whether costs were measured; else they were computed from `machine`.
        facts: facts about the measured engine; empty where costs were computed.
        batches, contexts, longest: the question's.
        costs: the costs of steps.
        predictions: for each of RATES and for the measured acceptance, if there is one.
        break_even: for each batch size and context.
        last_batches: for each rate and context.
        acceptance: measured on prompts or given; None if unknown.
        points: passes on the roofline.
        schema: SCHEMA.
    """

    model: str
    speculation: Mapping[str, Any]
    machine: Machine
    is_measured: bool
    facts: Mapping[str, Any]
    batches: Sequence[int]
    contexts: Sequence[int]
    longest: int
    costs: list[Cost]
    predictions: list[Prediction]
    break_even: list[BreakEven]
    last_batches: list[LastBatch]
    acceptance: Acceptance | None
    points: list[Point]
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        fields = dataclasses.asdict(self)
        for point, entry in zip(self.points, fields["points"], strict=True):
            entry["intensity"] = point.intensity
        return fields

    def predicted(self, rate: float | None, context: int) -> list[Prediction]:
        """The predictions of a rate and context, the smallest batch size first."""
        return [p for p in self.predictions if (p.rate, p.context) == (rate, context)]


def predict(
    costs: PassCosts,
    batches: Sequence[int],
    contexts: Sequence[int],
    longest: int,
    acceptance: Acceptance | None,
) -> dict[str, Any]:
    """The fields of a Plan that follow from costs: costs, predictions, break_even, last_batches."""
    chains: list[tuple[float | None, Acceptance]] = [
        (rate, Acceptance.chain(rate, longest)) for rate in RATES
    ]
    if acceptance is not None:
        chains.append((None, acceptance))
    predictions, last_batches = [], []
    every_batch = range(1, max(batches) + 1)
    for context in contexts:
        for rate, chain in chains:
            for batch in batches:
                choice = best_length(costs, chain, batch, context)
                predictions.append(Prediction(batch, context, rate, choice.length, choice.speedup))
            last = break_even_batch(costs, chain, every_batch, context, WORTH_IT)
            last_batches.append(LastBatch(context, rate, last))
    return {
        "costs": [
            Cost(
                batch,
                length,
                context,
                costs.target_seconds(batch, batch * (1 + length), context),
                costs.draft_seconds(batch, length, context),
            )
            for context in contexts
            for batch in batches
            for length in range(longest + 1)
        ],
        "predictions": predictions,
        "break_even": [
            BreakEven(batch, context, break_even_rate(costs, longest, batch, context))
            for context in contexts
            for batch in batches
        ],
        "last_batches": last_batches,
    }
