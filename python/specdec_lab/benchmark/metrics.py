"""Figures of answers: times and their percentiles, throughput, goodput, acceptance."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec_lab.benchmark.answers import Acceptance, Answer

PERCENTILES = (50, 90, 99)

GOODPUT_METRICS = ("ttft", "tpot", "e2el")


@dataclasses.dataclass(frozen=True)
class Times:
    """Times of one kind, in milliseconds."""

    mean: float
    std: float
    percentiles: Mapping[int, float]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times | None:
        """The statistics of some times; None if there are none."""
        if not seconds:
            return None
        values = 1e3 * np.asarray(seconds, dtype=np.float64)
        points = np.percentile(values, PERCENTILES)
        percentiles = dict(zip(PERCENTILES, points.tolist(), strict=True))
        return cls(float(values.mean()), float(values.std()), percentiles)

    def to_json(self, name: str) -> dict[str, float]:
        """The fields of `vllm bench serve`, such as mean_ttft_ms."""
        fields = {f"mean_{name}_ms": self.mean, f"std_{name}_ms": self.std}
        for point, value in self.percentiles.items():
            fields[f"{'median' if point == 50 else f'p{point}'}_{name}_ms"] = value
        return fields


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The figures of some answers.

    Attributes:
        completed, failed: answers.
        seconds: how long they took together; None where that is unknown, as for one category among
            others. Figures per second are None then, too.
        num_input_tokens, num_output_tokens: tokens of the completed answers.
        num_good: completed answers within all limits; None without limits.
        ttft: times to the first token.
        tpot: times per token after the first, of answers with several tokens.
        itl: times between one chunk and the next, of all answers.
        e2el: times to the last token.
        acceptance: how drafts fared; None if unknown.
    """

    completed: int
    failed: int
    seconds: float | None
    num_input_tokens: int
    num_output_tokens: int
    num_good: int | None
    ttft: Times | None
    tpot: Times | None
    itl: Times | None
    e2el: Times | None
    acceptance: Acceptance | None = None

    def per_second(self, count: int) -> float | None:
        """`count` per second."""
        return None if self.seconds is None else count / max(self.seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """The fields, named as those of `vllm bench serve --save-result`."""
        fields: dict[str, Any] = {
            "completed": self.completed,
            "failed": self.failed,
            "total_input_tokens": self.num_input_tokens,
            "total_output_tokens": self.num_output_tokens,
        }
        if self.seconds is not None:
            total = self.num_input_tokens + self.num_output_tokens
            fields |= {
                "duration": self.seconds,
                "request_throughput": self.per_second(self.completed),
                "output_throughput": self.per_second(self.num_output_tokens),
                "total_token_throughput": self.per_second(total),
            }
            if self.num_good is not None:
                fields["request_goodput"] = self.per_second(self.num_good)
        if self.num_good is not None:
            fields["good_share"] = self.num_good / max(1, self.completed + self.failed)
        for name in ("ttft", "tpot", "itl", "e2el"):
            times: Times | None = getattr(self, name)
            fields |= {} if times is None else times.to_json(name)
        return fields | acceptance_json(self.acceptance)


def acceptance_json(acceptance: Acceptance | None) -> dict[str, Any]:
    """The fields about drafts; empty if unknown or nothing was drafted."""
    if acceptance is None or not acceptance.num_drafts:
        return {}
    drafts = acceptance.num_drafts
    return {
        "spec_decode_acceptance_rate": 100
        * acceptance.num_accepted_tokens
        / max(1, acceptance.num_draft_tokens),
        "spec_decode_acceptance_length": 1 + acceptance.num_accepted_tokens / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": acceptance.num_draft_tokens,
        "spec_decode_accepted_tokens": acceptance.num_accepted_tokens,
        "spec_decode_per_position_acceptance_rates": [
            count / drafts for count in acceptance.accepted_per_position
        ],
    }


def is_good(answer: Answer, limits: Mapping[str, float]) -> bool:
    """Whether an answer is complete and within the limits, in milliseconds.

    The time per output token of an answer of one token counts as 0.
    """
    if answer.error is not None:
        return False
    taken = {"ttft": answer.ttft, "tpot": answer.tpot or 0.0, "e2el": answer.latency}
    return all(1e3 * taken[name] <= limit for name, limit in limits.items())


def metrics_of(
    answers: Sequence[Answer],
    seconds: float | None,
    limits: Mapping[str, float],
    acceptance: Acceptance | None = None,
) -> Metrics:
    """The figures of answers.

    acceptance: counts to use in place of the sums over the answers; None for those sums.
    """
    complete = [answer for answer in answers if answer.error is None]
    said = [answer.acceptance for answer in complete if answer.acceptance is not None]
    if acceptance is None and said:
        acceptance = sum(said, Acceptance())
    return Metrics(
        completed=len(complete),
        failed=len(answers) - len(complete),
        seconds=seconds,
        num_input_tokens=sum(answer.num_prompt_tokens for answer in complete),
        num_output_tokens=sum(answer.num_output_tokens for answer in complete),
        num_good=sum(is_good(answer, limits) for answer in answers) if limits else None,
        ttft=Times.of([answer.ttft for answer in complete]),
        tpot=Times.of([answer.tpot for answer in complete if answer.tpot is not None]),
        itl=Times.of([gap for answer in complete for gap in answer.itls]),
        e2el=Times.of([answer.latency for answer in complete]),
        acceptance=acceptance,
    )


def by_category(answers: Sequence[Answer], limits: Mapping[str, float]) -> dict[str, Metrics]:
    """The figures of each category, in the order in which categories are first met."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.question.category, []).append(answer)
    return {name: metrics_of(found, None, limits) for name, found in groups.items()}
