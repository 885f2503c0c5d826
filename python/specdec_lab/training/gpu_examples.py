"""Keeps examples on a GPU, as far as they fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from specdec_lab.training.batch import Example
from specdec_lab.training.loader import Examples


class ResidentExamples:
    """Examples on a device. As many as fit into a number of bytes are read only once."""

    def __init__(self, examples: Examples, device: torch.device, max_bytes: int) -> None:
        self._examples = examples
        self._device = device
        self._free_bytes = max_bytes
        self._residents: dict[int, Example] = {}

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each example."""
        return self._examples.lengths

    def load(self, indices: Sequence[int]) -> list[Example]:
        """The examples of some indices, on the device."""
        missing = [index for index in indices if index not in self._residents]
        read = dict(zip(missing, self._examples.load(missing), strict=True)) if missing else {}
        loaded = {index: example.to(self._device) for index, example in read.items()}
        for index, example in loaded.items():
            num_bytes = example.states.nbytes + example.token_ids.nbytes + example.is_answer.nbytes
            if num_bytes <= self._free_bytes:
                self._free_bytes -= num_bytes
                self._residents[index] = example
        return [loaded[i] if i in loaded else self._residents[i] for i in indices]

    def clear(self) -> None:
        """Gives the memory back to the device."""
        self._residents.clear()
        torch.cuda.empty_cache()


def spare_bytes(device: torch.device) -> int:
    """Bytes of a GPU's memory that examples may take: half of what is free."""
    free, _ = torch.cuda.mem_get_info(device)
    return free // 2
