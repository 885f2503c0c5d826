"""GGUF files converted with their integers: the numbers are those of the gguf package."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

from make_gguf import LLAMA_METADATA, encode, llama_tensors, write_gguf
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.gguf_integers import INTEGER_TYPES, quantize_int8

# How far a value may be from the file's, relative to the largest of its group of 32: what rounding
# scale * integer to float16 costs, or a scale for 16 inputs becoming one of 8 bits for 32.
TOLERANCES = {
    Type.Q4_0: 0.0, Type.Q4_1: 0.0, Type.Q5_0: 0.0, Type.Q5_1: 0.0, Type.Q8_0: 0.0,
    Type.Q4_K: 2e-3, Type.Q5_K: 2e-3, Type.Q6_K: 5e-3,
}  # fmt: skip
BITS = {kind: 4 if kind.name.startswith("Q4") else 8 for kind in TOLERANCES}

Weights = Mapping[str, npt.NDArray[Any]]


def dequantize(weights: Weights, name: str) -> npt.NDArray[np.float64]:
    """A matrix of integers as the core's checkpoints define it, one row and group at a time."""
    codes, scales, mins = (weights.get(name + suffix) for suffix in ("", ".scales", ".mins"))
    assert codes is not None and scales is not None
    assert scales.dtype == np.float16 and (mins is None or mins.dtype == np.float16)
    rows = []
    for i, row in enumerate(codes):
        integers = row.astype(np.float64)
        if row.dtype == np.uint8:
            integers = np.array([half for byte in row for half in (byte % 16, byte // 16)], float)
            if mins is None:
                integers -= 8
        else:
            assert row.dtype == np.int8
        groups = integers.reshape(-1, 32) * scales[i].astype(np.float64)[:, np.newaxis]
        if mins is not None:
            groups += mins[i].astype(np.float64)[:, np.newaxis]
        rows.append(groups.reshape(-1))
    return np.stack(rows)


def convert(source: Path, **options: Any) -> Path:
    directory = source.with_suffix("")
    directory.mkdir()
    convert_gguf(source, directory, keep_integers=True, **options)
    return directory


def load(directory: Path) -> dict[str, npt.NDArray[Any]]:
    tensors = load_file(directory / "model.safetensors")
    return {
        name: (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }


def file_values(values: npt.NDArray[np.float32], kind: Type) -> npt.NDArray[np.float32]:
    return np.asarray(gguf.dequantize(encode(values, kind), kind))


def assert_within(
    got: npt.NDArray[np.float64], expected: npt.NDArray[np.float32], tolerance: float
) -> None:
    groups = expected.astype(np.float64).reshape(len(expected), -1, 32)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    errors = np.abs(got.reshape(groups.shape) - groups)
    # A product of float32 numbers is rounded; the same product here is exact.
    assert np.all(errors <= (tolerance + 1e-6) * largest)


@pytest.mark.parametrize("kind", TOLERANCES, ids=lambda kind: kind.name)
def test_values_are_those_of_the_gguf_package(kind: Type, tmp_path: Path) -> None:
    tensors = llama_tensors()
    matrices = [name for name, values in tensors.items() if values.ndim == 2]
    kinds = dict.fromkeys(matrices, kind)
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors, kinds)
    directory = convert(source)
    weights = load(directory)
    for name, own in (
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("token_embd.weight", "model.embed_tokens.weight"),
    ):
        assert weights[own].dtype == (np.uint8 if BITS[kind] == 4 else np.int8)
        assert_within(dequantize(weights, own), file_values(tensors[name], kind), TOLERANCES[kind])
    # Rows of q and k move, and their scales with them: row 2i of a head to i, 2i + 1 to 32 + i.
    query = dequantize(weights, "model.layers.0.self_attn.q_proj.weight").reshape(4, 2, 32, 256)
    in_file = file_values(tensors["blk.0.attn_q.weight"], kind).reshape(4, 32, 2, 256)
    for half in range(2):
        assert_within(
            query[:, half].reshape(-1, 256),
            np.ascontiguousarray(in_file[:, :, half]).reshape(-1, 256),
            TOLERANCES[kind],
        )
    config = json.loads((directory / "config.json").read_text())
    assert config["quantization_config"] == {
        "quant_method": "specdec_native", "format": f"gguf {kind.name.lower()}", "group_size": 32,
    }  # fmt: skip
    assert config["torch_dtype"] == "bfloat16"


def test_the_rounding_of_scales_is_as_small_as_documented() -> None:
    values = np.random.default_rng(1).standard_normal((64, 1024)).astype(np.float32)
    for kind, largest in ((Type.Q4_K, 5e-4), (Type.Q5_K, 5e-4), (Type.Q6_K, 6e-3)):
        encoded = encode(values, kind).reshape(64, -1).view(np.uint8)
        integers = INTEGER_TYPES[kind.name].read(encoded)
        parts = {"": integers.codes, ".scales": integers.scales, ".mins": integers.mins}
        weights = {f"w{suffix}": part for suffix, part in parts.items() if part is not None}
        exact = file_values(values, kind).astype(np.float64)
        error = np.sqrt(np.mean((dequantize(weights, "w") - exact) ** 2) / np.mean(exact**2))
        assert 0 < error < largest


def test_types_mix_and_floating_point_stays(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"] * 2
    kinds = {
        "blk.0.attn_q.weight": Type.Q4_K, "blk.0.attn_v.weight": Type.Q6_K,
        "output.weight": Type.Q8_0, "blk.0.ffn_up.weight": Type.F16,
    }  # fmt: skip
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors, kinds)
    directory = convert(source, dtype="float32")
    weights = load(directory)
    settings = json.loads((directory / "config.json").read_text())["quantization_config"]
    assert settings["format"] == "gguf q4_k+q6_k+q8_0"
    assert weights["model.layers.0.self_attn.q_proj.weight"].shape == (256, 128)
    assert weights["model.layers.0.self_attn.v_proj.weight"].dtype == np.int8
    assert_within(
        dequantize(weights, "lm_head.weight"), file_values(tensors["output.weight"], Type.Q8_0), 0
    )
    up = weights["model.layers.0.mlp.up_proj.weight"]
    assert np.array_equal(up, tensors["blk.0.ffn_up.weight"].astype(np.float16).astype(np.float32))
    norm = weights["model.layers.0.input_layernorm.weight"]
    assert np.array_equal(norm, tensors["blk.0.attn_norm.weight"])


def test_vectors_keep_their_precision_whatever_the_dtype(tmp_path: Path) -> None:
    tensors = llama_tensors()
    kinds = {"blk.0.attn_q.weight": Type.Q4_0}
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors, kinds)
    weights = load(convert(source, dtype="bfloat16"))
    assert np.array_equal(weights["model.norm.weight"], tensors["output_norm.weight"])


def test_experts_are_split_with_their_scales(tmp_path: Path) -> None:
    tensors = llama_tensors()
    rng = np.random.default_rng(2)
    for part, shape in (("gate", (512, 256)), ("up", (512, 256)), ("down", (256, 512))):
        del tensors[f"blk.0.ffn_{part}.weight"]
        stacked = rng.standard_normal((4, *shape)).astype(np.float32)
        tensors[f"blk.0.ffn_{part}_exps.weight"] = stacked
    tensors["blk.0.ffn_gate_inp.weight"] = rng.standard_normal((4, 256)).astype(np.float32)
    metadata = LLAMA_METADATA | {".expert_count": 4, ".expert_used_count": 2}
    kinds = {f"blk.0.ffn_{part}_exps.weight": Type.Q8_0 for part in ("gate", "up", "down")}
    source = write_gguf(tmp_path / "model.gguf", "llama", metadata, tensors, kinds)
    weights = load(convert(source))
    expected = file_values(tensors["blk.0.ffn_down_exps.weight"], Type.Q8_0)
    for expert in range(4):
        name = f"model.layers.0.block_sparse_moe.experts.{expert}.w2.weight"
        assert_within(dequantize(weights, name), expected[expert], 0)


def test_quantising_to_eight_bits_is_within_half_a_step() -> None:
    rng = np.random.default_rng(3)
    values = (rng.standard_normal((50, 96)) * 10.0 ** rng.integers(-4, 4, (50, 1))).astype("f4")
    values[3] = 0
    integers = quantize_int8(values)
    weights = {"w": integers.codes, "w.scales": integers.scales}
    steps = np.repeat(integers.scales.astype(np.float64), 32, axis=1)
    assert np.all(np.abs(dequantize(weights, "w") - values) <= steps * (0.5 + 1e-5))
