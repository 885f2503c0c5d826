"""Metrics that vLLM does not have, of speculation and of steps."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from specdec_native.requests.outputs import DrafterStats, DraftPolicyStats, EngineStats
from specdec_vllm.metrics import Counter, EngineMetric, Gauge, Histogram, Metric

PREFIX = "specdec_native:"


def _by_drafter(field: str) -> Callable[[EngineStats], dict[str, float] | None]:
    """A field of the drafters, summed over drafters of the same name."""

    def read(stats: EngineStats) -> dict[str, float] | None:
        if not stats.drafters:
            return None
        values: dict[str, float] = {}
        for drafter in stats.drafters:
            values[drafter.name] = values.get(drafter.name, 0) + getattr(drafter, field)
        return values

    assert field in {f.name for f in dataclasses.fields(DrafterStats)}
    return read


def _of_policy(field: str) -> Callable[[EngineStats], Any]:
    """A field of the draft policy: 0 before the first decision; None where nothing is drafted."""

    def read(stats: EngineStats) -> Any:
        if stats.speculative_decoding is None:
            return None
        return 0 if stats.draft_policy is None else getattr(stats.draft_policy, field)

    assert field in {f.name for f in dataclasses.fields(DraftPolicyStats)}
    return read


def _pauses(stats: EngineStats) -> dict[str, float] | None:
    reasons = ("too_costly", "no_credit")
    counts = {reason: _of_policy(f"num_pauses_{reason}")(stats) for reason in reasons}
    return None if None in counts.values() else counts


def _step_seconds(stats: EngineStats) -> dict[str, float]:
    parts = ("schedule", "draft", "forward", "sample", "commit")
    return {part: getattr(stats, f"{part}_seconds") for part in parts}


NATIVE_METRICS = (
    EngineMetric(PREFIX + "steps", Counter, "Steps of the engine.", lambda s: s.num_steps),
    EngineMetric(
        PREFIX + "device_steps",
        Counter,
        "Steps that a GPU ran as one launch.",
        lambda s: s.num_device_steps,
    ),
    EngineMetric(
        PREFIX + "step_seconds",
        Counter,
        "Seconds of all steps, by what they went into; drafts are verified in forward and sample.",
        _step_seconds,
        "part",
    ),
    EngineMetric(
        PREFIX + "drafter_draft_tokens",
        Counter,
        "Tokens a drafter proposed that were verified.",
        _by_drafter("num_draft_tokens"),
        "drafter",
    ),
    EngineMetric(
        PREFIX + "drafter_accepted_tokens",
        Counter,
        "Tokens a drafter proposed that were kept.",
        _by_drafter("num_accepted_tokens"),
        "drafter",
    ),
    EngineMetric(
        PREFIX + "drafter_memory_bytes",
        Gauge,
        "Host memory that a drafter holds.",
        _by_drafter("memory_bytes"),
        "drafter",
    ),
    EngineMetric(
        PREFIX + "draft_decisions",
        Counter,
        "Decisions of the draft length policy: one completion in one step.",
        _of_policy("num_decisions"),
    ),
    EngineMetric(
        PREFIX + "draft_decisions_without_drafts",
        Counter,
        "Decisions to verify nothing.",
        _of_policy("num_without_drafts"),
    ),
    EngineMetric(
        PREFIX + "policy_drafted_tokens",
        Counter,
        "Tokens that were drafted for the policy to choose from.",
        _of_policy("num_drafted_tokens"),
    ),
    EngineMetric(
        PREFIX + "policy_verified_tokens",
        Counter,
        "Drafted tokens that the policy had verified.",
        _of_policy("num_verified_tokens"),
    ),
    EngineMetric(
        PREFIX + "draft_probes",
        Counter,
        "Times a drafter that does not pay was tried again.",
        _of_policy("num_probes"),
    ),
    EngineMetric(
        PREFIX + "drafting_paused",
        Gauge,
        "1 where drafting is paused: for dozens of steps next to nothing was worth verifying.",
        _of_policy("is_paused"),
    ),
    EngineMetric(
        PREFIX + "drafting_pauses",
        Counter,
        "Pauses of drafting, by why: too_costly beside what drafts save, or no_credit left.",
        _pauses,
        "reason",
    ),
    EngineMetric(
        PREFIX + "draft_length_mean",
        Gauge,
        "Verified tokens of a decision for some, since the start.",
        _of_policy("mean_draft_length"),
    ),
    EngineMetric(
        PREFIX + "draft_saved_seconds",
        Gauge,
        "Seconds saved beside decoding without drafts, by measured costs; falls where drafts lose.",
        _of_policy("saved_seconds"),
    ),
)
DRAFT_LENGTH = (PREFIX + "draft_length", "How deep the drafts were that were verified.")


def draft_lengths(stats: EngineStats, labels: Mapping[str, str]) -> list[Metric]:
    """A histogram of draft lengths, from the number of proposals at each position."""
    drafts = stats.speculative_decoding
    if drafts is None:
        return []
    at_least = [*drafts.proposed_per_position, 0]
    exactly = [deep - deeper for deep, deeper in itertools.pairwise(at_least)]
    bounds = [float(depth) for depth in range(1, len(at_least))]
    return [
        Histogram.of_counts(
            DRAFT_LENGTH[0], dict(labels), bounds, [*exactly, 0], float(sum(at_least))
        )
    ]
