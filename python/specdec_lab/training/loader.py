"""Reads batches in the background while the step before is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from specdec_lab.training.batch import Batch, Example, collate


class Examples(Protocol):
    """A source of examples."""

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each example."""

    def load(self, indices: Sequence[int]) -> list[Example]:
        """The examples of some indices."""


class Loader:
    """Batches of a step, read while the step before it is computed."""

    def __init__(
        self,
        examples: Examples,
        parts: Callable[[int], list[list[int]]],
        max_length: int,
        device: torch.device,
    ) -> None:
        """`parts` returns the examples of each micro-batch of a step."""
        self._examples = examples
        self._device = device
        self._parts = parts
        self._max_length = max_length
        self._thread = ThreadPoolExecutor(1, "examples")
        self._next: tuple[int, Future[list[Batch]]] | None = None

    def take(self, step: int, num_steps: int) -> list[Batch]:
        """The micro-batches of a step."""
        if self._next is not None and self._next[0] == step:
            batches = self._next[1].result()
        else:
            batches = self._load(step)
        self._next = None
        if step + 1 < num_steps:
            self._next = (step + 1, self._thread.submit(self._load, step + 1))
        return batches

    def _load(self, step: int) -> list[Batch]:
        return [
            collate(self._examples.load(part), self._max_length).to(self._device)
            for part in self._parts(step)
        ]
