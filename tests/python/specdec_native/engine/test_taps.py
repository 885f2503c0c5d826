"""States tapped inside a model are those of transformers, however the tokens are cut up."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_native import _core
from test_cuda import DEVICES

TOKENS = [(7 * i * i + 31 * i + 5) % 20000 for i in range(150)]


def tapped(model: Path, layer_inputs: list[int], chunk: int, **options: Any) -> Any:
    config = _core.EngineConfig(model=str(model), max_num_batched_tokens=chunk, **options)
    states = _core.tapped_states(config, TOKENS, layer_inputs, True)
    return np.array(states, dtype=np.float32).reshape(len(TOKENS), len(layer_inputs) + 1, -1)


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

    def states(**options: Any) -> list[float]:
        return _core.tapped_states(
            _core.EngineConfig(model=str(model), **options), tokens, [0, 1], True
        )

    whole = states(device=device, dtype="bfloat16", max_num_batched_tokens=64)
    assert states(device=device, dtype="bfloat16", max_num_batched_tokens=9) == whole
    exact = np.array(states(device="cpu", dtype="float32"))
    assert np.abs(np.array(whole) - exact).max() < 0.05 * np.abs(exact).max()


def test_bad_input_is_named(model: Path) -> None:
    config = _core.EngineConfig(model=str(model), device="cpu")
    for tokens, layers, field in (([], [0], "tokens"), ([-1], [0], "tokens"), ([1], [-1], "layer")):
        with pytest.raises(ValueError, match=field):
            _core.tapped_states(config, tokens, layers, False)
