"""The speed-up of drafting, computed from the cost of passes and the acceptance of drafts.

Pure functions: no clock, no model. Drafts are chains: a request's step verifies its drafts in one
pass and keeps them up to the first wrong token.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Protocol

_NEGLIGIBLE = 1e-12  # probability
_BISECTIONS = 40


class PassCosts(Protocol):
    """Seconds of the passes of a step in which `batch` requests decode at `context` tokens each."""

    def target_seconds(self, batch: int, num_rows: float, context: int) -> float:
        """The target's pass over `num_rows` rows, one for each request and one for each draft.

        All other work of the step, except drafting, is included.
        """

    def draft_seconds(self, batch: int, length: int, context: int) -> float:
        """Drafting `length` tokens for every request; 0 for no tokens."""


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """How a request's drafts fare.

    Attributes:
        proposed: share of steps that draft a first, second, ... token. Shares never rise.
        kept: share of steps that keep the first, second, ... token; never above `proposed`.
    """

    proposed: tuple[float, ...]
    kept: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.proposed) != len(self.kept):
            raise ValueError(
                f"proposed has {len(self.proposed)} positions, kept has {len(self.kept)}; they "
                "must be as many"
            )
        before = (1.0, 1.0)
        for both in zip(self.proposed, self.kept, strict=True):
            if not 0.0 <= both[1] <= both[0] or both[0] > before[0] or both[1] > before[1]:
                raise ValueError(
                    "shares must lie in [0, 1], must not rise, and no more drafts can be kept "
                    f"than were proposed; got proposed {self.proposed} and kept {self.kept}"
                )
            before = both

    @classmethod
    def chain(cls, rate: float, length: int) -> Acceptance:
        """Chains of `length` tokens; each token is right with probability `rate` if the one before
        it is."""
        return cls((1.0,) * length, tuple(rate**i for i in range(1, length + 1)))

    @property
    def length(self) -> int:
        """Tokens of the longest draft."""
        return len(self.kept)

    @property
    def tokens_per_step(self) -> float:
        """Mean number of tokens per step: the accepted drafts, and one of the target's own."""
        return 1.0 + sum(self.kept)

    @property
    def rate(self) -> float:
        """Share of drafted first tokens that are kept; 0 where none are drafted."""
        return self.kept[0] / self.proposed[0] if self.length and self.proposed[0] else 0.0

    def cut(self, length: int) -> Acceptance:
        """The same with drafts of at most `length` tokens."""
        return Acceptance(self.proposed[:length], self.kept[:length])

    def length_shares(self) -> list[float]:
        """Share of steps that draft exactly 0, 1, ... tokens."""
        ends = (1.0, *self.proposed, 0.0)
        return [first - second for first, second in itertools.pairwise(ends)]


def draft_count_shares(acceptance: Acceptance, batch: int) -> list[float]:
    """Share of steps whose `batch` requests draft 0, 1, ... tokens together.

    Assumes that requests draft independently of each other.
    """
    shares = [1.0]
    one = acceptance.length_shares()
    for _ in range(batch):
        total = [0.0] * (len(shares) + len(one) - 1)
        for i, share in enumerate(shares):
            if share > _NEGLIGIBLE:
                for j, other in enumerate(one):
                    total[i + j] += share * other
        shares = total
    return shares


def step_seconds(costs: PassCosts, acceptance: Acceptance, batch: int, context: int) -> float:
    """Mean seconds of a step: drafting, and the target's pass over roots and drafts."""
    verify = sum(
        share * costs.target_seconds(batch, batch + num_drafts, context)
        for num_drafts, share in enumerate(draft_count_shares(acceptance, batch))
        if share > _NEGLIGIBLE
    )
    return verify + costs.draft_seconds(batch, acceptance.length, context)


def speedup(costs: PassCosts, acceptance: Acceptance, batch: int, context: int) -> float:
    """Tokens per second relative to decoding without drafts."""
    plain = costs.target_seconds(batch, batch, context)
    return acceptance.tokens_per_step * plain / step_seconds(costs, acceptance, batch, context)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A draft length and its speed-up. Length 0 is decoding without drafts, speed-up 1.0."""

    length: int
    speedup: float


def best_length(costs: PassCosts, acceptance: Acceptance, batch: int, context: int) -> Choice:
    """The fastest draft length up to that of `acceptance`; the shortest among equals."""
    best = Choice(0, 1.0)
    for length in range(1, acceptance.length + 1):
        value = speedup(costs, acceptance.cut(length), batch, context)
        if value > best.speedup:
            best = Choice(length, value)
    return best


def break_even_rate(costs: PassCosts, longest: int, batch: int, context: int) -> float | None:
    """The acceptance rate above which chains of some length up to `longest` pay.

    None where none pay even if all drafts are kept.
    """
    rates = [_break_even_rate(costs, length, batch, context) for length in range(1, longest + 1)]
    return min((rate for rate in rates if rate is not None), default=None)


def _break_even_rate(costs: PassCosts, length: int, batch: int, context: int) -> float | None:
    cost = step_seconds(costs, Acceptance.chain(1.0, length), batch, context)
    needed = cost / costs.target_seconds(batch, batch, context)  # tokens a step
    if length + 1 <= needed:
        return None
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if Acceptance.chain(middle, length).tokens_per_step > needed:
            high = middle
        else:
            low = middle
    return high


def break_even_batch(
    costs: PassCosts,
    acceptance: Acceptance,
    batches: Sequence[int],
    context: int,
    least: float = 1.0,
) -> int:
    """The largest of the batch sizes at which some draft length gives a speed-up above `least`; 0
    where none does."""
    paying = (b for b in batches if best_length(costs, acceptance, b, context).speedup > least)
    return max(paying, default=0)
