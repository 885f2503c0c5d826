"""Quantised checkpoints of other tools: what they stand for, and that their codes are kept.

The packers are NumPy's (tests/python/testing). They were compared by hand with compressed-tensors
0.20 (0.11 for groups in the order of activations), bitsandbytes 0.50, AutoAWQ 0.2.9 and
GPTQModel 7.7: no value differs.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from logprobs import engine_logprobs, random_tokens, reference_logprobs
from quantised_checkpoints import FORMATS, Maker
from specdec_native import Engine, SamplingParams
from test_quantization import ACTIVATION_ERROR, relative_error

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NUM_TOKENS = 40
NUM_STEPS = 64
OPTIONS: dict[str, Any] = {"dtype": "float32", "num_threads": 1}
EXACT: dict[str, Any] = {**OPTIONS, "quantization": "none"}
ROUNDING = 2e-5  # of float32

# A CPU holds these at the dtype: scales that are no float16, and 8-bit floats.
IN_FLOATS = {
    "ct_float32", "ct_8_row", "w8a16_asym", "naive_fp8", "ct_mxfp8", "modelopt_fp8",
    "modelopt_fp8_file", "modelopt_fp8_rows",
}  # fmt: skip
IN_EIGHT_BITS = {
    "gptq_8", "gptq_8_asym", "gptq_order_8", "ct_8", "w8a8", "w8a8_float32", "naive", "ct_nvfp4",
    "modelopt_nvfp4", "modelopt_nvfp4_file", "bnb_8",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("quantised"))


def greedy_tokens(model: Path, prompt: list[int]) -> list[int]:
    """The prompt with the answer behind it."""
    engine = Engine(model, max_model_len=256, **EXACT)
    params = SamplingParams(temperature=0, max_tokens=NUM_STEPS, ignore_eos=True)
    return prompt + list(engine.generate([prompt], params)[0].outputs[0].token_ids)


@pytest.mark.parametrize("name", FORMATS)
def test_without_quantization_they_are_what_they_stand_for(
    made: Maker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = made(name)
    with caplog.at_level(logging.INFO, "specdec_native"):
        tokens = greedy_tokens(model.quantised, random_tokens(NUM_TOKENS, seed=5))
    assert "not used" not in caplog.text  # scales of inputs are left out without a word
    expected = reference_logprobs(model.dense, tokens, token_by_token=False)[:-1]
    found = engine_logprobs(model.quantised, tokens, **EXACT)
    assert np.abs(found - expected).max() <= ROUNDING * np.abs(expected).max()
    assert list(expected[NUM_TOKENS - 1 :].argmax(axis=1)) == tokens[NUM_TOKENS:]


@pytest.mark.parametrize("name", FORMATS)
def test_their_codes_are_kept(made: Maker, name: str) -> None:
    """Inputs are rounded to 8 bits then, as with codes of the engine's own layout."""
    model = made(name)
    tokens = random_tokens(NUM_TOKENS, seed=6)
    found = engine_logprobs(model.quantised, tokens, **OPTIONS)
    if model.native is not None:
        assert (found == engine_logprobs(model.native, tokens, **OPTIONS)).all()
        return
    held = "float32" if name in IN_FLOATS else "int8" if name in IN_EIGHT_BITS else "int4"
    info = Engine(model.quantised, max_model_len=64, **OPTIONS).model_info()
    assert info.weight_format.startswith(held)
    exact = engine_logprobs(model.quantised, tokens, **EXACT)
    error = relative_error(found, exact)
    assert error == 0 if held == "float32" else 1e-4 < error < ACTIVATION_ERROR


@pytest.mark.parametrize("name", ["gptq_order", "gptq_order_8", "ct_group_order_asym"])
def test_act_order_may_be_quantised_anew(made: Maker, name: str) -> None:
    """Integers of other widths are made of the values in order of inputs."""
    model = made(name).quantised
    tokens = random_tokens(NUM_TOKENS, seed=6)
    exact = engine_logprobs(model, tokens, **EXACT)
    found = engine_logprobs(model, tokens, quantization="int8", **OPTIONS)
    assert 1e-4 < relative_error(found, exact) < ACTIVATION_ERROR


def test_tensors_of_a_matrix_may_be_in_several_shards(made: Maker, tmp_path: Path) -> None:
    model = made.copy("gptq", tmp_path / "model")
    tokens = random_tokens(NUM_TOKENS, seed=6)
    expected = engine_logprobs(model, tokens, **OPTIONS)
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    shard_of = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(shard_of.values()):
        part = {name: tensor for name, tensor in tensors.items() if shard_of[name] == shard}
        save_file(part, model / shard, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": shard_of}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (engine_logprobs(model, tokens, **OPTIONS) == expected).all()
