"""States that completions return: transformers' hidden states, with speculation or without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_native import Engine, SamplingParams

TAPS: list[Any] = [0, 1, "final"]
PROMPTS = [[5, 9, 11, 7], [5, 9, 11, 7, 3, 3, 8, 1, 2, 6, 4, 9, 9, 12, 5, 9, 11, 20]]


def expected(model: Path, tokens: list[int]) -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        hidden = loaded(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return np.stack([hidden[0][0].numpy(), hidden[1][0].numpy(), hidden[-1][0].numpy()], axis=1)


def make(model: Path, **options: Any) -> Engine:
    return Engine(model, skip_tokenizer_init=True, taps=TAPS, device="cpu", **options)


@pytest.mark.parametrize("speculative", [None, {"method": "ngram", "num_speculative_tokens": 3}])
def test_completions_return_the_states_of_their_tokens(model: Path, speculative: Any) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.7, seed=1, ignore_eos=True, n=2)
    with make(model, dtype="float32", speculative_config=speculative) as engine:
        outputs = engine.generate(PROMPTS, params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        for completion in output.outputs:
            states = completion.tapped_states
            assert states is not None
            assert states.dtype == np.float32
            tokens = [*prompt, *completion.token_ids]
            wanted = expected(model, tokens[:-1])
            assert states.shape == wanted.shape
            assert np.abs(states - wanted).max() < 1e-4
            # A fault would be seen: states one token off differ by far more.
            assert np.abs(states[1:] - wanted[:-1]).max() > 1e-2


def test_bfloat16_comes_as_its_bits(model: Path) -> None:
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    with make(model, dtype="bfloat16") as engine:
        states = engine.generate([PROMPTS[0]], params)[0].outputs[0].tapped_states
    assert states is not None
    assert states.dtype == np.uint16
    values = torch.from_numpy(states.copy()).view(torch.bfloat16).float().numpy()
    tokens = PROMPTS[0]
    wanted = expected(model, tokens)[: len(tokens)]
    assert np.abs(values[: len(tokens)] - wanted).max() < 0.1 * np.abs(wanted).max()


def test_there_are_none_without_taps_or_when_aborted(model: Path) -> None:
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    with Engine(model, skip_tokenizer_init=True, device="cpu") as engine:
        assert engine.generate([PROMPTS[0]], params)[0].outputs[0].tapped_states is None
    long = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    with make(model) as engine:
        engine.add_request(PROMPTS[0], long, request_id="a")
        engine.step()
        assert engine.abort("a")
        assert all(o.outputs[0].tapped_states is None for o in engine.step())


@pytest.mark.parametrize("taps", [[], "final", [99], [-1], ["final", 1], [True], [1.0], 3])
def test_bad_taps_are_named(model: Path, taps: Any) -> None:
    with pytest.raises(ValueError, match="taps"):
        Engine(model, skip_tokenizer_init=True, device="cpu", taps=taps)


def test_taps_beside_a_head_must_be_what_it_reads(
    checkpoint: Callable[[str], Path], head: Callable[[str], Path]
) -> None:
    config = {"method": "eagle3", "model": str(head("eagle3"))}
    with pytest.raises(ValueError, match="draft head reads"):
        Engine(
            checkpoint("llama"),
            skip_tokenizer_init=True,
            device="cpu",
            taps=[0],
            speculative_config=config,
        )
