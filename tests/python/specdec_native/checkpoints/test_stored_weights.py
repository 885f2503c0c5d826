"""How weights are stored, from headers, against shapes that each layout's authors define."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize
from safetensors.torch import save_file

from make_gguf import encode
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_integers import INTEGER_TYPES
from specdec_native.checkpoints.stored_weights import UNREAD, Weights, unread_matrices, weights_of
from specdec_native.checkpoints.weight_formats import gguf_rule

ROWS, INPUTS = 64, 128
NAME = "model.layers.0.self_attn.o_proj"
FP8 = torch.float8_e4m3fn


def words(codes: list[list[int]], bits: int) -> torch.Tensor:
    """Rows of codes as GPTQ and compressed-tensors pack them: the lowest bits first."""
    rows = []
    for row in codes:
        number = sum(code << bits * place for place, code in enumerate(row))
        data = number.to_bytes(-(-len(row) * bits // 32) * 4, "little")
        rows.append(np.frombuffer(data, np.int32))
    return torch.tensor(np.stack(rows))


def gptq(bits: int, zero: int | None, group: int = 32, **more: torch.Tensor) -> dict[str, Any]:
    """`zero` as it is stored, for all groups; None: any."""
    generator = np.random.default_rng(bits)
    shape = (INPUTS // group, ROWS)
    zeros = generator.integers(0, 1 << bits, shape) if zero is None else np.full(shape, zero)
    return {
        "qweight": torch.zeros(INPUTS * bits // 32, ROWS, dtype=torch.int32),
        "qzeros": words([[int(z) for z in row] for row in zeros], bits),
        "scales": torch.ones(shape, dtype=torch.float16),
        **more,
    }


def packed(bits: int, groups: int, **more: torch.Tensor) -> dict[str, Any]:
    return {
        "weight_packed": torch.zeros(ROWS, INPUTS * bits // 32, dtype=torch.int32),
        "weight_scale": torch.ones(ROWS, groups, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([ROWS, INPUTS]),
        **more,
    }


def codes(dtype: torch.dtype, width: int = INPUTS) -> torch.Tensor:
    return torch.zeros(ROWS, width, dtype=torch.uint8).view(dtype)


def quant_state(**more: Any) -> torch.Tensor:
    state = {"quant_type": "nf4", "blocksize": 64, "shape": [ROWS, INPUTS], **more}
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


ACT_ORDER = torch.tensor([place % 4 for place in range(INPUTS)], dtype=torch.int32)
PLAIN_ORDER = torch.arange(INPUTS, dtype=torch.int32) // 32
NF4 = {
    "weight": torch.zeros(ROWS * INPUTS // 2, 1, dtype=torch.uint8),
    "weight.absmax": torch.zeros(ROWS * INPUTS // 64, dtype=torch.uint8),
    "weight.quant_map": torch.zeros(16),
    "weight.nested_absmax": torch.zeros(1),
    "weight.nested_quant_map": torch.zeros(256),
    "weight.quant_state.bitsandbytes__nf4": quant_state(),
}
ONE = torch.ones(1)
FOUR_BITS = "4-bit integers in groups of 32"
EIGHT_BITS = "8-bit integers with minimums in groups of 32"
CASES: dict[str, dict[str, Any]] = {
    "GPTQ 4 bits, groups of 32, symmetric": gptq(4, 7, g_idx=PLAIN_ORDER),
    "GPTQ 3 bits, groups of 64, symmetric": gptq(3, 4, 64),
    "GPTQ 8 bits, groups of 32, symmetric": gptq(8, 127),
    "GPTQ 4 bits, groups of 32, asymmetric": gptq(4, 5),
    "GPTQ 2 bits, groups of 32, asymmetric, act-order": gptq(2, None, 32, g_idx=ACT_ORDER),
    "AWQ 4 bits, groups of 64, asymmetric": {
        "qweight": torch.zeros(INPUTS, ROWS // 8, dtype=torch.int32),
        "qzeros": torch.zeros(2, ROWS // 8, dtype=torch.int32),
        "scales": torch.ones(2, ROWS, dtype=torch.float16),
    },
    "compressed-tensors pack-quantized 4 bits, groups of 32, symmetric": packed(4, 4),
    "compressed-tensors pack-quantized 8 bits, a scale a row, asymmetric": packed(
        8, 1, weight_zero_point=torch.zeros(ROWS // 4, 1, dtype=torch.int32)
    ),
    "compressed-tensors nvfp4": {
        "weight_packed": codes(torch.uint8, INPUTS // 2),
        "weight_scale": codes(FP8, INPUTS // 16),
        "weight_global_scale": torch.ones(1),
        "input_global_scale": torch.ones(1),
    },
    "compressed-tensors mxfp4": {
        "weight_packed": codes(torch.uint8, INPUTS // 2),
        "weight_scale": codes(torch.uint8, INPUTS // 32),
    },
    "compressed-tensors int-quantized 8 bits, a scale a row, symmetric": {
        "weight": codes(torch.int8),
        "weight_scale": torch.ones(ROWS, 1),
    },
    "ModelOpt nvfp4": {
        "weight": codes(torch.uint8, INPUTS // 2),
        "weight_scale": codes(FP8, INPUTS // 16),
        "weight_scale_2": torch.tensor(1.0),
    },
    "mxfp8": {"weight": codes(FP8), "weight_scale": codes(torch.uint8, INPUTS // 32)},
    "fp8, a scale a matrix": {
        "weight": codes(FP8),
        "weight_scale": torch.ones(1),
        "k_scale": torch.ones(1),
    },
    "fp8, a scale a row": {"weight": codes(FP8), "weight_scale": torch.ones(ROWS, 1)},
    "fp8, block scales": {"weight": codes(FP8), "weight_scale_inv": torch.ones(2, 4)},
    "bitsandbytes nf4, double quantised": NF4,
    "bitsandbytes int8": {"weight": codes(torch.int8), "SCB": torch.ones(ROWS)},
    EIGHT_BITS: {
        "weight": codes(torch.int8),
        "weight.scales": torch.ones(ROWS, 4, dtype=torch.float16),
        "weight.mins": torch.ones(ROWS, 4, dtype=torch.float16),
    },
    FOUR_BITS: {
        "weight": codes(torch.uint8, INPUTS // 2),
        "weight.scales": torch.ones(ROWS, 4, dtype=torch.float16),
    },
}


def stored(directory: Path, tensors: dict[str, torch.Tensor], dtype: str) -> list[Weights]:
    apart = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(apart, directory / "model.safetensors")
    return weights_of(directory, dtype)


@pytest.mark.parametrize("label", CASES)
def test_a_stored_matrix_is_recognised(tmp_path: Path, label: str) -> None:
    tensors = {f"{NAME}.{ending}": tensor for ending, tensor in CASES[label].items()}
    (found,) = stored(tmp_path, tensors, "bfloat16")
    assert (found.part, found.stored, found.count) == ("attention", label, 1)
    assert found.parameters == ROWS * INPUTS
    assert found.stored_bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    assert found.held


def test_stacked_experts_count_one_by_one(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {
        f"{name}_blocks": torch.zeros(3, ROWS, INPUTS // 32, 16, dtype=torch.uint8),
        f"{name}_scales": torch.zeros(3, ROWS, INPUTS // 32, dtype=torch.uint8),
    }
    (found,) = stored(tmp_path, tensors, "bfloat16")
    assert (found.part, found.stored, found.count) == ("experts", "mxfp4", 3)
    assert found.parameters == 3 * ROWS * INPUTS


def test_act_order_is_kept_where_all_parts_have_the_same(tmp_path: Path) -> None:
    orders = {
        "0.self_attn.q": ACT_ORDER,
        "0.self_attn.k": ACT_ORDER,
        "0.mlp.down": ACT_ORDER.flip(0),
    }
    orders |= {"1.self_attn.q": ACT_ORDER, "1.self_attn.k": ACT_ORDER.flip(0)}
    orders |= {"0.mlp.experts.0.down": ACT_ORDER}
    tensors = {
        f"layers.{name}_proj.{ending}": tensor
        for name, order in orders.items()
        for ending, tensor in gptq(4, 7, g_idx=order).items()
    }
    held = {(w.part, w.held): w for w in stored(tmp_path, tensors, "bfloat16")}
    assert {key: (w.count, w.exact) for key, w in held.items()} == {
        ("attention", "int4_grouped"): (2, True),
        ("MLP", "int4_grouped"): (1, True),
        ("attention", "bfloat16"): (2, False),
        ("experts", "bfloat16"): (1, False),
    }
    assert all("act-order" in weights.stored for weights in held.values())


def test_an_lm_head_that_repeats_the_embedding_counts_once(tmp_path: Path) -> None:
    table = torch.ones(ROWS, INPUTS, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": table, "lm_head.weight": table}
    assert [w.part for w in stored(tmp_path, tensors, "bfloat16")] == ["embedding"]
    tensors["lm_head.weight"] = 2 * table
    assert {w.part for w in stored(tmp_path, tensors, "bfloat16")} == {"embedding", "LM head"}


def test_parts_that_are_fused_are_held_alike(tmp_path: Path) -> None:
    """The widest format of q, k and v; the dtype where one of them is in floating point."""
    four, eight = CASES[FOUR_BITS], CASES[EIGHT_BITS]
    tensors = {f"layers.0.self_attn.q_proj.{e}": t.clone() for e, t in four.items()}
    tensors |= {f"layers.0.self_attn.v_proj.{e}": t.clone() for e, t in eight.items()}
    tensors |= {f"layers.1.self_attn.q_proj.{e}": t.clone() for e, t in four.items()}
    tensors["layers.1.self_attn.k_proj.weight"] = torch.zeros(ROWS, INPUTS, dtype=torch.bfloat16)
    held = {(w.stored, w.held): w for w in stored(tmp_path, tensors, "bfloat16")}
    size = ROWS * INPUTS
    for label in FOUR_BITS, EIGHT_BITS:
        wide = held[label, "int8_grouped_min"]
        assert wide.exact and wide.bytes == size + 2 * 2 * size // 32
    decoded = held[FOUR_BITS, "bfloat16"]
    assert not decoded.exact and "fused" in decoded.note and decoded.bytes == 2 * size
    assert held["bfloat16", "bfloat16"].exact


def test_floats_are_exact_where_the_dtype_holds_them(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.mlp.up_proj.weight": torch.zeros(ROWS, INPUTS, dtype=torch.float16),
        "model.norm.weight": torch.zeros(INPUTS, dtype=torch.float16),
    }
    for dtype, exact in (("bfloat16", False), ("float32", True)):
        matrix, vector = stored(tmp_path, tensors, dtype)
        assert (matrix.held, matrix.exact, bool(matrix.note)) == (dtype, exact, not exact)
        assert (vector.part, vector.held, vector.exact) == ("norms, biases", "float32", True)
        assert vector.bytes == 4 * INPUTS


def test_what_is_not_read_is_told_from_what_the_text_does_without(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.mlp.up_proj.trellis": torch.zeros(2, 2, 8, dtype=torch.int16),
        "vision_tower.layers.0.mlp.fc1.weight": torch.zeros(4, 8),
        "t2d": torch.zeros(9, dtype=torch.bool),
    }
    found = stored(tmp_path, tensors, "bfloat16")
    assert [w.stored for w in unread_matrices(found)] == ["I16"]
    assert sorted(w.stored for w in found if w.part == UNREAD) == ["BOOL", "float32"]
    assert not any(w.held for w in found)
    tensors = {f"{NAME}.{ending}": torch.zeros(0, 0) for ending in ("qweight", "qzeros", "scales")}
    with pytest.raises(CheckpointError, match=NAME):
        stored(tmp_path, tensors, "bfloat16")
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="safetensors"):
        weights_of(tmp_path, "bfloat16")


@pytest.mark.parametrize("name", INTEGER_TYPES)
def test_a_gguf_type_is_called_exact_where_it_is(name: str) -> None:
    values = np.random.default_rng(7).standard_normal((4, 512)).astype(np.float32)
    encoded = encode(values, Type[name]).view(np.uint8)
    kind = INTEGER_TYPES[name]
    codes = kind.codes(encoded)
    if kind.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(4, -1)
    if kind.table is not None:
        numbers = np.array(kind.table, np.float64)[codes]
    else:
        numbers = codes.astype(np.float64) - (8 if kind.bits == 4 and kind.mins is None else 0)
    scales = kind.scales(encoded).astype(np.float16).astype(np.float64)
    read = numbers.reshape(4, -1, kind.group) * scales[..., None]
    if kind.mins is not None:
        read += kind.mins(encoded).astype(np.float16).astype(np.float64)[..., None]
    expected = dequantize(encoded, Type[name]).astype(np.float64)
    error = np.abs(read.reshape(4, -1) - expected).max() / np.abs(expected).max()
    assert (error < 1e-6) == (gguf_rule(name, kind).note == "")
