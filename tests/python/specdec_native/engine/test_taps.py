"""States tapped inside a model are those of transformers, however the tokens are cut up."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_native import Engine, SamplingParams
from test_cuda import DEVICES

TOKENS = [(7 * i * i + 31 * i + 5) % 20000 for i in range(150)]


def tapped(
    model: Path, layer_inputs: list[int], chunk: int, tokens: list[int] = TOKENS, **options: Any
) -> Any:
    """The states of a prompt, with those that the head reads behind those of layers."""
    options |= {"taps": [*layer_inputs, "final"], "max_num_batched_tokens": chunk}
    with Engine(model, skip_tokenizer_init=True, **options) as engine:
        output = engine.generate([tokens], SamplingParams(max_tokens=1, temperature=0))[0]
    states: Any = output.outputs[0].tapped_states
    if states.dtype == np.uint16:
        states = torch.from_numpy(states.copy()).view(torch.bfloat16).float().numpy()
    return states.copy()


@pytest.mark.models
def test_states_equal_transformers_for_any_chunking(smollm2: Path) -> None:
    loaded: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.no_grad():
        hidden = loaded(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    num_layers = len(hidden) - 1
    # The last one comes after the final norm, all others before a layer.
    taps = list(range(num_layers))
    states = tapped(smollm2, taps, 4096, device="cpu", dtype="float32")
    for index, tensor in enumerate(hidden):
        expected = tensor[0].numpy()
        # Of the element and of its row: those of the first token are in the ten thousands.
        magnitude = np.abs(expected) + np.sqrt(np.mean(expected**2, axis=1, keepdims=True))
        assert np.all(np.abs(states[:, index] - expected) < 1e-4 * magnitude), f"state {index}"
    for chunk in (1, 7, 64):
        again = tapped(smollm2, taps, chunk, device="cpu", dtype="float32")
        assert np.array_equal(again, states), f"chunks of {chunk}"


@pytest.mark.models
def test_the_last_layers_output_is_what_the_final_norm_reads(smollm2: Path) -> None:
    loaded: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    states = tapped(smollm2, [loaded.config.num_hidden_layers], 4096, device="cpu", dtype="float32")
    with torch.no_grad():
        normed = loaded.model.norm(torch.tensor(states[:, 0])).numpy()
    assert np.all(np.abs(normed - states[:, 1]) < 1e-4 * (1.0 + np.abs(normed)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_gpu_taps_the_same_states_for_any_chunking(model: Path, device: str) -> None:
    tokens = [token % 32 for token in TOKENS[:60]]

    def states(chunk: int, **options: Any) -> Any:
        return tapped(model, [0, 1], chunk, tokens, **options)

    whole = states(64, device=device, dtype="bfloat16")
    assert np.array_equal(states(9, device=device, dtype="bfloat16"), whole)
    exact = states(64, device="cpu", dtype="float32")
    assert np.abs(whole - exact).max() < 0.05 * np.abs(exact).max()
