"""vLLM's containers for the logprobs of the likeliest tokens at each position."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any, TypeAlias, overload


@dataclasses.dataclass(slots=True)
class Logprob:
    """One candidate token of a position. `rank` 1 is the most likely token.

    `logprob` is a logit where the engine's logprobs_mode says so.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs: TypeAlias = dict[int, Logprob]


@dataclasses.dataclass
class FlatLogprobs(MutableSequence[PositionLogprobs]):
    """The logprobs of all positions in a few long lists: far fewer objects than a list of dicts.

    Reads like such a list: an index gives a dict, a slice another FlatLogprobs. Positions can be
    appended, but neither changed nor removed.

    Attributes:
        start_indices: where the entries of each position begin in the lists below.
        end_indices: where they end.
        token_ids: the tokens of each position, the chosen token first. If the chosen token is among
            the likeliest, it appears there once more.
        logprobs: the tokens' logprobs.
        ranks: the tokens' ranks.
        decoded_tokens: the tokens' texts, None without a tokenizer.
    """

    start_indices: list[int] = dataclasses.field(default_factory=list)
    end_indices: list[int] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    ranks: list[int | None] = dataclasses.field(default_factory=list)
    decoded_tokens: list[str | None] = dataclasses.field(default_factory=list)

    def append_fast(
        self,
        token_ids: Iterable[int],
        logprobs: Iterable[float],
        ranks: Iterable[int | None],
        decoded_tokens: Iterable[str | None],
    ) -> None:
        """Appends a position, entry by entry."""
        self.start_indices.append(len(self.token_ids))
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.ranks.extend(ranks)
        self.decoded_tokens.extend(decoded_tokens)
        self.end_indices.append(len(self.token_ids))

    def append(self, value: PositionLogprobs | None) -> None:
        """Appends a position; None, for one that has no logprobs, reads as an empty dict."""
        entries = (value or {}).values()
        self.append_fast(
            value or {},
            [entry.logprob for entry in entries],
            [entry.rank for entry in entries],
            [entry.decoded_token for entry in entries],
        )

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...
    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...
    def __getitem__(self, index: int | slice) -> PositionLogprobs | FlatLogprobs:
        if isinstance(index, slice):
            picked = FlatLogprobs()
            for begin, end in zip(self.start_indices[index], self.end_indices[index], strict=True):
                picked.append_fast(
                    self.token_ids[begin:end],
                    self.logprobs[begin:end],
                    self.ranks[begin:end],
                    self.decoded_tokens[begin:end],
                )
            return picked
        position: PositionLogprobs = {}
        for i in range(self.start_indices[index], self.end_indices[index]):
            entry = Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            position.setdefault(self.token_ids[i], entry)
        return position

    def __iter__(self) -> Iterator[PositionLogprobs]:
        return (self[i] for i in range(len(self)))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("FlatLogprobs cannot be changed; append to it, or make a list of it")

    def __delitem__(self, index: Any) -> None:
        raise TypeError("nothing can be removed from FlatLogprobs; make a list of it, or slice it")

    def insert(self, index: int, value: PositionLogprobs) -> None:
        """Raises TypeError: positions are appended."""
        raise TypeError("nothing can be inserted into FlatLogprobs; append to it")


# One entry per position, the chosen token first; the first prompt token has no entry.
SampleLogprobs: TypeAlias = "list[PositionLogprobs] | FlatLogprobs"
PromptLogprobs: TypeAlias = "list[PositionLogprobs | None] | FlatLogprobs"
