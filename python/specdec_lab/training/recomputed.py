"""Recomputes states with an engine, for stores without states."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdec_lab.training.batch import Example
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.store import ExampleStore
from specdec_native.engine import Engine
from specdec_native.requests.inputs import TokensPrompt
from specdec_native.requests.outputs import CompletionOutput
from specdec_native.requests.sampling_params import SamplingParams

_ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, detokenize=False, ignore_eos=True)


def states_of(engine: Engine, token_ids: Sequence[Sequence[int]]) -> list[Tensor]:
    """The tapped states of each text without its last token: [tokens - 1, taps, hidden size].

    Raises TrainingError for an engine without taps.
    """
    prompts = [TokensPrompt(prompt_token_ids=list(ids[:-1])) for ids in token_ids]
    outputs = engine.generate(prompts, _ONE_TOKEN, use_tqdm=False)
    return [tapped_states(output.outputs[0]) for output in outputs]


def tapped_states(completion: CompletionOutput) -> Tensor:
    """The tapped states of a completion, bfloat16 or float32.

    Raises TrainingError where there are none.
    """
    states: npt.NDArray[np.generic] | None = getattr(completion, "tapped_states", None)
    if states is None:
        raise TrainingError("the engine taps no layers; make it with taps=[layers..., 'final']")
    if states.dtype == np.uint16:
        return torch.from_numpy(states.copy()).view(torch.bfloat16)
    return torch.from_numpy(states.astype(np.float32))


class RecomputedExamples:
    """The examples of a store, with the states that an engine with taps computes."""

    def __init__(self, store: ExampleStore, engine: Engine) -> None:
        self._store = store
        self._engine = engine

    def __len__(self) -> int:
        return len(self._store)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each example."""
        return self._store.lengths

    def __getitem__(self, index: int) -> Example:
        return self.load([index])[0]

    def __iter__(self) -> Iterator[Example]:
        return (self[i] for i in range(len(self)))

    def load(self, indices: Sequence[int]) -> list[Example]:
        """The examples of some indices, computed at once."""
        examples = self._store.load(indices)
        states = states_of(self._engine, [example.token_ids.tolist() for example in examples])
        return [
            dataclasses.replace(example, states=state)
            for example, state in zip(examples, states, strict=True)
        ]
