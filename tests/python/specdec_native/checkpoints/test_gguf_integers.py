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
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_blocks import BLOCK_TYPES
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_forms import quantize_int8
from specdec_native.checkpoints.gguf_grids import GRID_TYPES
from specdec_native.checkpoints.gguf_integers import INTEGER_TYPES

# How far a value may be from the file's, relative to the largest of its group of 32: what rounding
# scale * integer to float16 costs, or mins for 16 inputs becoming codes of 8 bits.
EXACT = [
    Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.IQ4_NL, Type.MXFP4, Type.TQ1_0,
    Type.TQ2_0, Type.NVFP4,
]  # fmt: skip
ROUNDED_SCALES = [
    Type.Q4_K, Type.Q5_K, Type.IQ4_XS, Type.IQ1_S, Type.IQ2_XXS, Type.IQ3_XXS, Type.IQ3_S,
    Type.Q3_K, Type.Q6_K, Type.IQ1_M, Type.IQ2_XS, Type.IQ2_S,
]  # fmt: skip
QUANTISED_ANEW = [Type.Q2_K]
TOLERANCES = (
    dict.fromkeys(EXACT, 0.0) | dict.fromkeys(ROUNDED_SCALES, 2e-3)
    | dict.fromkeys(QUANTISED_ANEW, 5e-3)
)  # fmt: skip
OF_4_BITS = (
    Type.Q4_0, Type.Q4_1, Type.Q4_K, Type.TQ1_0, Type.TQ2_0, Type.IQ3_S, Type.IQ4_NL, Type.IQ4_XS,
    Type.MXFP4, Type.IQ1_S, Type.IQ2_XXS, Type.IQ3_XXS,
)  # fmt: skip

Weights = Mapping[str, npt.NDArray[Any]]


def dequantize(weights: Weights, name: str) -> npt.NDArray[np.float64]:
    """A matrix of integers as the core's checkpoints define it, one row and group at a time."""
    codes, scales, mins, table = (
        weights.get(name + suffix) for suffix in ("", ".scales", ".mins", ".table")
    )
    assert codes is not None and scales is not None
    assert mins is None or table is None
    assert scales.dtype == np.float16 and (mins is None or mins.dtype == np.float16)
    rows = []
    for i, row in enumerate(codes):
        integers = row.astype(np.float64)
        if row.dtype == np.uint8:
            halves = [half for byte in row for half in (byte % 16, byte // 16)]
            integers = np.array(halves if table is None else table[halves], float)
            if mins is None and table is None:
                integers -= 8
        else:
            assert row.dtype == np.int8
        groups = integers.reshape(scales.shape[1], -1) * scales[i].astype(np.float64)[:, np.newaxis]
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
        assert weights[own].dtype == (np.uint8 if kind in OF_4_BITS else np.int8)
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


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_values_of_exact_types_are_the_same_numbers(kind: Type, tmp_path: Path) -> None:
    tensors = llama_tensors()
    kinds = {"blk.0.ffn_down.weight": kind}
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors, kinds)
    found = dequantize(load(convert(source)), "model.layers.0.mlp.down_proj.weight")
    expected = file_values(tensors["blk.0.ffn_down.weight"], kind)
    assert np.array_equal(found.astype(np.float32), expected)


@pytest.mark.parametrize("kind", TOLERANCES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("is_zero", [False, True])
def test_codes_and_scales_before_rounding_are_the_types_own(kind: Type, is_zero: bool) -> None:
    form = (BLOCK_TYPES | GRID_TYPES)[kind.name]
    values = np.random.default_rng(5).standard_normal((16, 512)).astype(np.float32)
    rows = np.ascontiguousarray(encode(values, kind)).view(np.uint8)
    if is_zero:
        rows = np.zeros_like(rows)
    codes, scales = form.codes(rows), form.scales(rows)
    mins = np.float32(0) if form.mins is None else np.repeat(form.mins(rows), form.group, 1)
    if form.bits == 4:
        assert codes.shape == (16, 256)
        codes = np.stack([codes % 16, codes // 16], axis=-1).reshape(16, 512).astype(np.int64)
    numbers = codes if form.table is None else np.array(form.table)[codes]
    if form.bits == 4 and form.table is None and form.mins is None:
        numbers = codes - 8
    assert scales.shape == (16, 512 // form.group)
    found = np.repeat(scales, form.group, 1) * numbers.astype(np.float32) + mins
    assert np.array_equal(found, gguf.dequantize(rows, kind))


def test_the_rounding_of_scales_is_as_small_as_documented(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((64, 1024)).astype(np.float32)
    for kind in [*ROUNDED_SCALES, *QUANTISED_ANEW]:
        name = "blk.0.ffn_down.weight"
        path = write_gguf(tmp_path / kind.name, "llama", {}, {name: values}, {name: kind})
        tensor = GgufFile(path).tensors[name]
        weights: dict[str, npt.NDArray[Any]] = {
            "w": np.concatenate(list(tensor.integers("codes"))),
            "w.scales": np.concatenate(list(tensor.integers("scales"))),
        }
        if INTEGER_TYPES[kind.name].mins is not None:
            weights["w.mins"] = np.concatenate(list(tensor.integers("mins")))
        if (table := INTEGER_TYPES[kind.name].table) is not None:
            weights["w.table"] = np.array(table)
        exact = file_values(values, kind).astype(np.float64)
        error = np.sqrt(np.mean((dequantize(weights, "w") - exact) ** 2) / np.mean(exact**2))
        assert 0 < error < (4e-4 if kind in ROUNDED_SCALES else 5e-3), kind


@pytest.mark.parametrize("kind", TOLERANCES, ids=lambda kind: kind.name)
def test_a_scale_that_is_no_number_is_refused_with_its_tensor(kind: Type, tmp_path: Path) -> None:
    tensors = llama_tensors()
    shape = encode(tensors["blk.0.ffn_down.weight"], kind).view(np.uint8).shape
    name = "blk.0.ffn_down.weight"
    source = write_gguf(tmp_path / "a.gguf", "llama", LLAMA_METADATA, tensors, {name: kind})
    stored: Any = GgufFile(source).tensors[name].data
    content = bytearray(source.read_bytes())
    begin = stored.offset
    content[begin : begin + shape[0] * shape[1]] = b"\xff" * (shape[0] * shape[1])
    source.write_bytes(content)
    if kind is Type.NVFP4:  # every byte is a number
        assert np.isfinite(load(convert(source))["model.layers.0.mlp.down_proj.weight"]).all()
        return
    with pytest.raises(CheckpointError, match=f"tensor {name}: one of its .* is not a finite"):
        convert(source)


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.NVFP4], ids=lambda kind: kind.name)
def test_a_scale_beside_a_matrix_multiplies_it(kind: Type, tmp_path: Path) -> None:
    tensors = llama_tensors()
    kinds = {"blk.0.ffn_up.weight": kind}
    plain = write_gguf(tmp_path / "plain.gguf", "llama", LLAMA_METADATA, tensors, kinds)
    factor = np.array([0.25], np.float32)
    tensors |= {"blk.0.ffn_up.scale": factor, "blk.0.ffn_up.input_scale": factor}
    scaled = write_gguf(tmp_path / "scaled.gguf", "llama", LLAMA_METADATA, tensors, kinds)
    name = "model.layers.0.mlp.up_proj.weight"
    expected = 0.25 * dequantize(load(convert(plain)), name)
    assert np.array_equal(dequantize(load(convert(scaled)), name), expected)
    directory = tmp_path / "floats"
    directory.mkdir()
    convert_gguf(scaled, directory, dtype="float32")
    floats = load(directory)[name]
    assert np.array_equal(floats, 0.25 * file_values(tensors["blk.0.ffn_up.weight"], kind))


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


def test_each_expert_has_its_own_scale(tmp_path: Path) -> None:
    tensors = {
        "token_embd.weight": llama_tensors()["token_embd.weight"],
        "blk.0.ffn_up_exps.weight": np.ones((2, 32, 64), np.float32),
        "blk.0.ffn_up_exps.scale": np.array([2.0, 3.0], np.float32),
    }
    metadata = LLAMA_METADATA | {".expert_count": 2, ".expert_used_count": 2}
    weights = load(convert(write_gguf(tmp_path / "m.gguf", "llama", metadata, tensors)))
    for expert, factor in enumerate((2.0, 3.0)):
        assert np.all(
            weights[f"model.layers.0.block_sparse_moe.experts.{expert}.w3.weight"] == factor
        )
    tensors["blk.0.ffn_up_exps.scale"] = np.ones(3, np.float32)
    with pytest.raises(CheckpointError, match="ffn_up_exps.scale has 3 values"):
        GgufFile(write_gguf(tmp_path / "n.gguf", "llama", metadata, tensors))


def test_quantising_to_eight_bits_is_within_half_a_step() -> None:
    rng = np.random.default_rng(3)
    values = (rng.standard_normal((50, 96)) * 10.0 ** rng.integers(-4, 4, (50, 1))).astype("f4")
    values[3] = 0
    codes, scales = quantize_int8(values)
    weights: Weights = {"w": codes, "w.scales": scales}
    steps = np.repeat(scales.astype(np.float64), 32, axis=1)
    assert np.all(np.abs(dequantize(weights, "w") - values) <= steps * (0.5 + 1e-5))
