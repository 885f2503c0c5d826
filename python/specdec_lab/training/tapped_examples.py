"""Selects the states of a store's examples that a method reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from specdec_lab.training.batch import Example
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.head_methods import METHODS
from specdec_lab.training.loader import Examples
from specdec_lab.training.recomputed import RecomputedExamples
from specdec_lab.training.store import ExampleStore
from specdec_lab.training.training_options import TrainingOptions
from specdec_native.engine import Engine

_FINAL: Final = "final"

Tap = int | Literal["final"]
"""A layer whose input an engine taps, or "final": the input of the target's LM head."""


def taps_of(options: TrainingOptions, config: Mapping[str, Any]) -> list[Tap]:
    """The engine's taps for a method."""
    num_layers = int(config["num_hidden_layers"])
    return [*METHODS[options.method].head_class().tap_layers(num_layers), _FINAL]


def open_examples(
    store: ExampleStore, target: Path, taps: Sequence[Tap], engine_options: Mapping[str, Any]
) -> Examples:
    """The examples with these states, read from the store or computed by an engine.

    Raises TrainingError where the store lacks a tap.
    """
    if store.has_states:
        return _Chosen(store, taps)
    return RecomputedExamples(store, Engine(target, **engine_options, taps=list(taps)))


class _Chosen:
    """Examples of a store with some of its taps."""

    def __init__(self, store: ExampleStore, taps: Sequence[Tap]) -> None:
        """Raises TrainingError where the store lacks a tap."""
        have = list(store.header["taps"])
        missing = [tap for tap in taps if tap not in have]
        if missing:
            raise TrainingError(
                f"the store has the states {have}, and the method needs {list(taps)}, too; give "
                "another --data-dir",
                store.directory,
            )
        self._store = store
        self._indices = [have.index(tap) for tap in taps]
        self._is_all = list(taps) == have

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each example."""
        return self._store.lengths

    def load(self, indices: Sequence[int]) -> list[Example]:
        """The examples of some indices."""
        examples = self._store.load(indices)
        if self._is_all:
            return examples
        return [dataclasses.replace(e, states=e.states[:, self._indices]) for e in examples]
