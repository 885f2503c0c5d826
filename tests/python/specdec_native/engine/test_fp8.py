"""Weights in 8-bit floats: those of a checkpoint as they are, or quantised at load."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from logprobs import engine_logprobs, random_tokens, reference_logprobs
from make_fp8 import KINDS, make_fp8
from specdec_native import Engine, _core
from test_cuda import DEVICES, SMALL, deterministic_model
from test_quantization import TEXTS, relative_error, text_logprobs

Checkpoint = Callable[[str], Path]

NUM_TOKENS = 48
DEVICE = pytest.mark.parametrize("device", DEVICES)
FIRST_MATRIX = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def stored(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A model of 8-bit floats with one scale a matrix."""
    return make_fp8(checkpoint("llama"), KINDS["static"], tmp_path)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_are_read_as_what_they_stand_for(
    checkpoint: Checkpoint, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, plain = make_fp8(checkpoint("llama"), KINDS[kind], tmp_path)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    expected = reference_logprobs(plain, tokens, token_by_token=False)[:-1]
    with caplog.at_level(logging.INFO, "specdec_native"):
        found = engine_logprobs(model, tokens, dtype="float32", device="cpu")
    assert relative_error(found, expected) < 2e-5
    assert "8-bit floats are held as float32" in caplog.text
    assert "not used" not in caplog.text  # scales of inputs are left out without a word
    info = Engine(model, dtype="bfloat16", device="cpu").model_info()
    method = KINDS[kind].config["quant_method"]
    assert info.weight_format.startswith(f"bfloat16, from {method}")


@DEVICE
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_holds_them_in_eight_bits(
    checkpoint: Checkpoint, kind: str, device: str, tmp_path: Path
) -> None:
    """Rounding is that of bfloat16 inputs: less than with weights rounded to it, too."""
    model, plain = make_fp8(checkpoint("llama"), KINDS[kind], tmp_path)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    expected = reference_logprobs(plain, tokens, token_by_token=False)[:-1]
    options: dict[str, Any] = {"dtype": "bfloat16", **SMALL}
    rounded = engine_logprobs(model, tokens, device="cpu", **options)
    found = engine_logprobs(model, tokens, device=device, **options)
    assert 1e-4 < relative_error(found, expected) < 1.3 * relative_error(rounded, expected)
    infos = [Engine(path, device=device, **options).model_info() for path in (model, plain)]
    held = "fp8, from " if kind == "vocabulary" else "fp8+bfloat16, from "
    assert infos[0].weight_format.startswith(held)
    assert infos[0].weight_bytes < infos[1].weight_bytes * (0.9 if kind == "fbgemm" else 0.85)


@pytest.mark.parametrize(
    ("quantization", "weight_format"), [("none", "bfloat16"), ("int8", "int8"), ("int4", "int4")]
)
@pytest.mark.parametrize("device", [*DEVICES, "cpu"])
def test_other_formats_may_be_made_of_them(
    stored: Path, device: str, quantization: str, weight_format: str
) -> None:
    options: dict[str, Any] = {"dtype": "bfloat16", **SMALL}
    tokens = random_tokens(NUM_TOKENS, seed=3)
    expected = engine_logprobs(stored, tokens, device="cpu", **options)
    found = engine_logprobs(stored, tokens, device=device, quantization=quantization, **options)
    limits = {"none": 0.02, "int8": 0.055, "int4": 0.45}
    assert relative_error(found, expected) < limits[quantization]
    engine = Engine(stored, device=device, quantization=quantization, **options)
    assert engine.model_info().weight_format.startswith(weight_format)


def test_a_tied_head_may_be_stored_so(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """In the embedding, or beside it: what it holds decides."""
    model, plain = make_fp8(checkpoint("llama_tied"), KINDS["vocabulary"], tmp_path)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    expected = reference_logprobs(plain, tokens, token_by_token=False)[:-1]
    tensors = load_file(model / "model.safetensors")
    for change in (None, "same", "codes", "scale"):
        if change is not None:
            for name in ("weight", "weight_scale"):
                tensors[f"lm_head.{name}"] = tensors[f"model.embed_tokens.{name}"].clone()
        if change == "codes":
            tensors["lm_head.weight"].view(torch.uint8)[:] ^= 0x80
        if change == "scale":
            tensors["lm_head.weight_scale"] *= -1
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        found = engine_logprobs(model, tokens, dtype="float32", device="cpu")
        is_equal = relative_error(found, expected) < 2e-5
        assert is_equal == (change in (None, "same"))
        if not _core.build_info().has_emulated_device:
            continue
        rounded = engine_logprobs(model, tokens, dtype="bfloat16", device="emulated", **SMALL)
        assert 1e-4 < relative_error(rounded, found) < 0.03


def test_experts_may_be_stored_so(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source = deterministic_model(checkpoint, "mixtral", tmp_path)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    for kind in ("blocks", "channels"):
        model, plain = make_fp8(source, KINDS[kind], tmp_path / kind)
        expected = reference_logprobs(plain, tokens, token_by_token=False)[:-1]
        found = engine_logprobs(model, tokens, dtype="float32", device="cpu")
        assert relative_error(found, expected) < 2e-5
        if not _core.build_info().has_emulated_device:
            continue
        found = engine_logprobs(model, tokens, dtype="bfloat16", device="emulated", **SMALL)
        assert 1e-4 < relative_error(found, expected) < 0.03


def test_experts_of_a_layer_are_stored_alike(checkpoint: Checkpoint, tmp_path: Path) -> None:
    if not _core.build_info().has_emulated_device:
        pytest.skip("a CPU holds all of them at its dtype")
    kind = replace(KINDS["channels"], skipped=("layers.1.block_sparse_moe.experts.2.",))
    model, _ = make_fp8(checkpoint("mixtral"), kind, tmp_path)
    Engine(model, device="emulated", quantization="fp8", **SMALL).close()
    with pytest.raises(ValueError, match="layers.1.*experts.*different formats.*'none'"):
        Engine(model, device="emulated", **SMALL)


# -- quantised at load

# 8-bit floats round to 3 bits after the first.
FP8_ERROR = 0.12


@DEVICE
@pytest.mark.parametrize("variant", ["llama_bfloat16", "qwen2", "opt", "mixtral"])
def test_weights_may_be_made_so(
    checkpoint: Checkpoint, device: str, variant: str, tmp_path: Path
) -> None:
    model = deterministic_model(checkpoint, variant, tmp_path)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    options: dict[str, Any] = {"dtype": "bfloat16", "device": device, **SMALL}
    exact = engine_logprobs(model, tokens, **options)
    found = engine_logprobs(model, tokens, quantization="fp8", **options)
    assert FP8_ERROR / 20 < relative_error(found, exact) < FP8_ERROR
    info = Engine(model, quantization="fp8", **options).model_info()
    assert info.weight_format == "fp8+bfloat16"
    assert info.weight_bytes < 0.85 * Engine(model, **options).model_info().weight_bytes


@DEVICE
def test_quantising_at_load_gives_the_codes_of_torch(
    checkpoint: Checkpoint, device: str, tmp_path: Path
) -> None:
    kind = replace(KINDS["channels"], scale_dtype=torch.float32)
    model, _ = make_fp8(checkpoint("llama"), kind, tmp_path)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    options: dict[str, Any] = {"dtype": "bfloat16", "device": device, **SMALL}
    expected = engine_logprobs(model, tokens, **options)
    found = engine_logprobs(checkpoint("llama"), tokens, quantization="fp8", **options)
    assert (found == expected).all()


@DEVICE
def test_draft_models_may_be_made_so(checkpoint: Checkpoint, device: str) -> None:
    model = checkpoint("llama")
    options: dict[str, Any] = {"dtype": "bfloat16", "device": device, **SMALL}
    plain = Engine(model, **options).model_info().weight_bytes
    quantised = Engine(model, quantization="fp8", **options).model_info().weight_bytes
    config = {"model": str(model), "num_speculative_tokens": 3, "quantization": "fp8"}
    info = Engine(model, speculative_config=config, **options).model_info()
    assert info.weight_bytes == plain + quantised


def test_a_cpu_says_what_to_ask_for(checkpoint: Checkpoint) -> None:
    config = {"model": str(checkpoint("llama")), "quantization": "fp8"}
    for options in ({"quantization": "fp8"}, {"speculative_config": config}):
        with pytest.raises(ValueError, match="quantization: 'fp8' needs a GPU.*use 'int8'"):
            Engine(checkpoint("llama"), device="cpu", **options)


@pytest.mark.models
def test_trained_weights_lose_little(smollm2: Path, tmp_path: Path) -> None:
    tokenizer = Engine(smollm2, max_model_len=64).tokenizer
    texts = [tokenizer.encode(text) for text in TEXTS]
    model, _ = make_fp8(smollm2, KINDS["channels"], tmp_path)
    expected = text_logprobs(smollm2, texts, dtype="float32")
    found = text_logprobs(model, texts, dtype="float32")
    assert abs(np.mean(found - expected)) < 0.05
    assert 0.02 < np.mean(np.abs(found - expected)) < 0.25  # 0.14 was seen on longer texts


# -- what is refused


def edit(directory: Path, **changes: torch.Tensor | None) -> None:
    """Changes the tensors of q_proj of the first layer; None takes one away."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for suffix, tensor in changes.items():
        name = FIRST_MATRIX.removesuffix("weight") + suffix
        del tensors[name]
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, path, metadata={"format": "pt"})


def test_nan_codes_are_refused(stored: Path) -> None:
    codes = load_file(stored / "model.safetensors")[FIRST_MATRIX]
    codes.view(torch.uint8)[5, 7] = 0xFF
    edit(stored, weight=codes)
    with pytest.raises(ValueError, match=f"{FIRST_MATRIX}.*a value is NaN"):
        Engine(stored, device="cpu")


def test_scales_of_another_shape_are_refused(stored: Path) -> None:
    edit(stored, weight_scale=torch.ones(2, 5))
    with pytest.raises(
        ValueError, match=r"q_proj.weight_scale.*has shape \[2, 5\], expected \[1\]"
    ):
        Engine(stored, device="cpu")
    edit(stored, weight_scale=None)
    with pytest.raises(ValueError, match="8-bit floats without a scale.*q_proj.weight_scale"):
        Engine(stored, device="cpu")


def test_other_methods_are_refused(stored: Path) -> None:
    path = stored / "config.json"
    config = json.loads(path.read_text())
    for method in ("hqq", "quark"):
        config["quantization_config"] = {"quant_method": method}
        path.write_text(json.dumps(config))
        with pytest.raises(ValueError, match=rf"quant_method.*'{method}' are not read \(.*fp8"):
            Engine(stored, device="cpu")
