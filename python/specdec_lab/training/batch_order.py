"""Which examples make a batch, and in which order batches come: a pure function of a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_POOL = 64  # batches whose examples are sorted by length together


@dataclasses.dataclass(frozen=True)
class BatchIndex:
    """A position in a training.

    Attributes:
        epoch: counts from 0.
        batch: index in the epoch, counts from 0.
    """

    epoch: int
    batch: int


class BatchOrder:
    """The batches of a training, by step.

    Examples of similar length share a batch, so that there is little padding.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.int64],
        indices: Sequence[int],
        *,
        batch_tokens: int,
        epochs: float,
        seed: int,
    ) -> None:
        """Plans `epochs` passes over the examples `indices`, of `lengths` tokens."""
        self.lengths = lengths
        self._indices = np.asarray(indices, dtype=np.int64)
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._ends: list[int] = []  # by epoch: steps up to its end
        whole, rest = divmod(epochs, 1)
        for epoch in range(int(whole)):
            self._end_epoch(len(self._batches(epoch)))
        if rest:
            self._end_epoch(max(1, round(rest * len(self._batches(int(whole))))))
        self._cached = (-1, [[0]])

    @property
    def num_steps(self) -> int:
        """Steps of the whole training."""
        return self._ends[-1]

    def index_of(self, step: int) -> BatchIndex:
        """The epoch and batch of a step."""
        epoch = int(np.searchsorted(self._ends, step, side="right"))
        return BatchIndex(epoch, step - (self._ends[epoch - 1] if epoch else 0))

    def steps_of_epoch(self, epoch: int) -> int:
        """Steps of an epoch; the last epoch may be cut short."""
        return self._ends[epoch] - (self._ends[epoch - 1] if epoch else 0)

    def batch(self, step: int) -> list[int]:
        """The examples of a step."""
        index = self.index_of(step)
        if self._cached[0] != index.epoch:
            self._cached = (index.epoch, self._batches(index.epoch))
        return self._cached[1][index.batch]

    def _end_epoch(self, num_batches: int) -> None:
        self._ends.append((self._ends[-1] if self._ends else 0) + num_batches)

    def _batches(self, epoch: int) -> list[list[int]]:
        random = np.random.default_rng([self._seed, epoch])
        order = random.permutation(self._indices)
        mean_length = max(1.0, float(self.lengths[order].mean()))
        pool_size = max(1, int(_POOL * self._batch_tokens / mean_length))
        batches: list[list[int]] = []
        for start in range(0, len(order), pool_size):
            pool = order[start : start + pool_size]
            by_length = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += cut(by_length.tolist(), self.lengths, self._batch_tokens)
        return [batches[i] for i in random.permutation(len(batches))]


def cut(indices: Sequence[int], lengths: npt.NDArray[np.int64], max_tokens: int) -> list[list[int]]:
    """Consecutive groups of at most `max_tokens` padded tokens; a longer example stands alone."""
    groups: list[list[int]] = []
    longest = 0
    for index in indices:
        length = int(lengths[index])
        longest = max(longest, length)
        if not groups or longest * (len(groups[-1]) + 1) > max_tokens:
            groups.append([])
            longest = length
        groups[-1].append(index)
    return groups


def split_held_out(
    lengths: npt.NDArray[np.int64], share: float, seed: int
) -> tuple[list[int], list[int]]:
    """Indices of the examples that are trained on, and of those that are evaluated on.

    Whether an example is held out depends only on its index. So adding examples to a store later
    moves no example from one part to the other.
    """
    draws = np.array([np.random.default_rng([seed, i]).random() for i in range(len(lengths))])
    held_out = draws < share
    return np.flatnonzero(~held_out).tolist(), np.flatnonzero(held_out).tolist()
