"""The questions of a benchmark, and its records of the answers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class Question:
    """One request of a benchmark.

    Attributes:
        category: what kind of task it is.
        prompt: text, or token ids.
        max_tokens: the answer's limit.
        seed: the seed of sampling.
    """

    category: str
    prompt: str | Sequence[int]
    max_tokens: int
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """How drafts fared. A step counts if it verified at least one drafted token.

    Attributes:
        num_drafts: steps.
        num_draft_tokens: drafted tokens that were verified.
        num_accepted_tokens: verified draft tokens that were kept.
        accepted_per_position: steps that kept the first, second, ... token.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()

    @classmethod
    def from_member(cls, member: Mapping[str, Any]) -> Acceptance:
        """From `metrics.speculative_decoding` of an answer. Raises ValueError for other keys."""
        try:
            histogram = [int(count) for count in member["acceptance_histogram"]]
            return cls(
                int(member["num_spec_steps"]),
                int(member["num_draft_tokens"]),
                int(member["num_accepted_draft_tokens"]),
                tuple(sum(histogram[kept:]) for kept in range(1, len(histogram))),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"metrics.speculative_decoding cannot be read: {error!r}") from error

    def __add__(self, other: Acceptance) -> Acceptance:
        return self._combined(other, 1)

    def __sub__(self, other: Acceptance) -> Acceptance:
        return self._combined(other, -1)

    def _combined(self, other: Acceptance, sign: int) -> Acceptance:
        mine, others = self.accepted_per_position, other.accepted_per_position
        length = max(len(mine), len(others))
        return Acceptance(
            self.num_drafts + sign * other.num_drafts,
            self.num_draft_tokens + sign * other.num_draft_tokens,
            self.num_accepted_tokens + sign * other.num_accepted_tokens,
            tuple(_at(mine, i) + sign * _at(others, i) for i in range(length)),
        )


def _at(counts: Sequence[int], index: int) -> int:
    return counts[index] if index < len(counts) else 0


@dataclasses.dataclass
class Answer:
    """The answer to a question. Times are seconds of the event loop's clock.

    Attributes:
        question: what was asked.
        sent: when it was sent.
        arrivals: when each chunk of the answer came.
        num_prompt_tokens, num_output_tokens: as the server counts them.
        text: the whole text.
        acceptance: how its drafts fared; None if the server does not report it.
        status: the HTTP status; None where no answer began, or without HTTP.
        error: what went wrong; None for a complete answer.
    """

    question: Question
    sent: float
    arrivals: list[float] = dataclasses.field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    text: str = ""
    acceptance: Acceptance | None = None
    status: int | None = None
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0] - self.sent

    @property
    def latency(self) -> float:
        """Seconds to the last token."""
        return self.arrivals[-1] - self.sent

    @property
    def itls(self) -> list[float]:
        """Seconds between one chunk and the next."""
        return [b - a for a, b in itertools.pairwise(self.arrivals)]

    @property
    def tpot(self) -> float | None:
        """Seconds for each token after the first; None for an answer of one token."""
        if self.num_output_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.num_output_tokens - 1)


class Client(Protocol):
    """Answers questions: a server, or an engine in this process."""

    name: str

    async def ask(self, question: Question) -> Answer:
        """The answer; one that fails has an error."""

    async def acceptance(self) -> Acceptance | None:
        """How all drafts so far fared; None if unknown."""

    async def count_tokens(self, text: str) -> int | None:
        """The number of tokens in a prompt; None if unknown."""

    async def close(self) -> None:
        """Ends its connections."""
