"""How a checkpoint's weights are stored, from headers alone, and what the engine makes of them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_file import GgufTensor
from specdec_native.checkpoints.safetensors_file import StoredTensor, open_checkpoint
from specdec_native.checkpoints.weight_formats import (
    FLOATS,
    FORMATS,
    RULES,
    Rule,
    float_rule,
    fused,
    gguf_rule,
)

UNREAD = "left out"
"""The part of tensors that a text model does not use, such as a vision tower's."""

# Endings of the tensors that make up a module's weight, the longest first.
_ENDINGS = sorted(
    (
        *(".weight", ".weight.scales", ".weight.mins", ".weight_scale", ".weight_scale_inv"),
        *(".weight_scale_2", ".weight_packed", ".weight_global_scale", ".weight_zero_point"),
        *(".weight_shape", ".weight_g_idx", ".input_scale", ".input_global_scale"),
        *(".activation_scale", ".input_scale_ub", ".k_scale", ".v_scale", ".qweight", ".qzeros"),
        *(".scales", ".g_idx", ".SCB", ".weight_format", ".weight.absmax", ".weight.quant_map"),
        *(".weight.nested_absmax", ".weight.nested_quant_map", "_blocks", "_scales"),
        *(".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"),
    ),
    key=len,
    reverse=True,
)
_PARTS = (  # the first that is found in a name decides
    (UNREAD, re.compile(r"vision|visual|audio|multi_modal|inv_freq|masked_bias|(^|\.)mtp[._]")),
    ("embedding", re.compile(r"embed_(tokens|in)\b|word_embeddings|\bwte\b")),
    ("positions", re.compile(r"embed_positions")),
    ("LM head", re.compile(r"\b(lm_head|embed_out)\b")),
    ("experts", re.compile(r"\bexperts\b")),
    ("routers", re.compile(r"(mlp|block_sparse_moe|feed_forward)\.(gate|router)\b")),
    ("attention", re.compile(r"attn|attention")),
)
_NO_WEIGHTS = ("BOOL", "I64")  # masks, positions and maps of tokens
_FUSED = (
    (re.compile(r"\b[qkv]_proj\b"), "qkv_proj"),
    (re.compile(r"\b(gate|up)_proj\b"), "gate_up_proj"),
    (re.compile(r"\bw[13]\b"), "w13"),
)


@dataclasses.dataclass(frozen=True)
class Weights:
    """Tensors of one part of a model that are stored alike and held alike.

    Attributes:
        part: "attention", "MLP", "experts", "routers", "embedding", "LM head", "positions",
            "norms, biases" or UNREAD.
        stored: such as "bfloat16", "GPTQ 4 bits, groups of 128, symmetric" or "Q4_K".
        held: the format in the engine's memory; empty where it is not read.
        exact: whether every weight keeps its value.
        note: what is rounded, where it is not exact.
        count: matrices; vectors in "norms, biases".
        parameters: weights in all.
        stored_bytes, bytes: in files, with scales; in memory, without padding.
    """

    part: str
    stored: str
    held: str
    exact: bool
    note: str
    count: int
    parameters: int
    stored_bytes: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class _Stored:
    """A matrix, or `count` of them in one tensor. A rule of None: it is not read."""

    name: str
    label: str
    rule: Rule | None
    rows: int
    inputs: int
    stored_bytes: int
    count: int = 1
    is_vector: bool = False


_Group = tuple[str, str, str, bool, str]  # part, stored, held, exact, note


def weights_of(directory: Path, dtype: str) -> list[Weights]:
    """The weights of the safetensors files of a directory, for a CPU engine with this dtype.

    Raises CheckpointError for a damaged file, and for tensors of a matrix whose shapes do not fit.
    """
    modules: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for name, tensor in open_checkpoint(directory).items():
        ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
        modules[name.removesuffix(ending)][ending] = tensor
    found = []
    for name, tensors in modules.items():
        try:
            found.append(_read(name, tensors, dtype))
        except (ValueError, ArithmeticError, LookupError, TypeError) as fault:
            message = f"{name}: shapes of its tensors do not fit one another ({fault})"
            raise CheckpointError(message, directory) from fault
    return _grouped(found, dtype)


def weights_of_gguf(tensors: Iterable[tuple[str, GgufTensor]], dtype: str) -> list[Weights]:
    """The weights of a GGUF file, likewise; `tensors` by their names in a checkpoint."""
    return _grouped((_read_gguf(name, tensor, dtype) for name, tensor in tensors), dtype)


def _grouped(matrices: Iterable[_Stored], dtype: str) -> list[Weights]:
    parts: dict[str, list[_Stored]] = defaultdict(list)  # by the matrix that they are fused to
    for matrix in matrices:
        key = matrix.name
        for pattern, together in () if matrix.is_vector else _FUSED:
            key = pattern.sub(together, key)
        parts[key].append(matrix)
    groups: dict[_Group, list[_Stored]] = defaultdict(list)
    for members in parts.values():
        rules = [member.rule for member in members if member.rule is not None]
        held = fused({dtype if rule.held == "dtype" else rule.held for rule in rules}, dtype)
        for member in members:
            groups[_group_of(member, held, dtype)].append(member)
    found = [_sum(group, members) for group, members in groups.items()]
    return sorted(found, key=lambda weights: -weights.stored_bytes)


def _group_of(matrix: _Stored, held: str, dtype: str) -> _Group:
    part, rule = _part_of(matrix), matrix.rule
    if rule is None or part == UNREAD:
        return part, matrix.label, "", False, ""
    if held == dtype and rule.held not in ("dtype", dtype):
        return part, matrix.label, held, False, "decoded: fused with weights of another kind"
    return part, matrix.label, held, rule.exact, rule.note


def _sum(group: _Group, members: list[_Stored]) -> Weights:
    part, stored, held, exact, note = group
    num_bytes = 0.0
    if held:
        layout = FORMATS[held]
        for m in members:
            num_bytes += m.count * m.rows * (m.inputs * layout.bits / 8 + layout.row_bytes)
    return Weights(
        *(part, stored, held, exact, note),
        count=sum(m.count for m in members),
        parameters=sum(m.count * m.rows * m.inputs for m in members),
        stored_bytes=sum(m.stored_bytes for m in members),
        bytes=math.ceil(num_bytes),
    )


def _part_of(matrix: _Stored) -> str:
    if matrix.rule is None and (matrix.is_vector or matrix.label in _NO_WEIGHTS):
        return UNREAD
    found = next((part for part, pattern in _PARTS if pattern.search(matrix.name)), "MLP")
    return "norms, biases" if matrix.is_vector and found != UNREAD else found


# -- GGUF


def _read_gguf(name: str, tensor: GgufTensor, dtype: str) -> _Stored:
    is_vector = len(tensor.shape) == 1
    kind = tensor.integer_type
    if kind is not None:
        rule = gguf_rule(tensor.type_name, kind)
    elif tensor.type_name in FLOATS:
        rule = float_rule(FLOATS[tensor.type_name], dtype, is_vector)
    else:
        rule = Rule("dtype", False, "decoded to the dtype")
    return _of_shape(name, tensor.type_name, rule, tensor.shape, tensor.num_bytes)


def _of_shape(
    name: str, label: str, rule: Rule | None, shape: tuple[int, ...], stored_bytes: int
) -> _Stored:
    """A tensor of a vector, a matrix or a stack of matrices."""
    if len(shape) < 2 or name.endswith("bias"):
        size = math.prod(shape)
        return _Stored(name, label, rule, 1, size, stored_bytes, is_vector=True)
    *stack, rows, inputs = shape
    return _Stored(name, label, rule, rows, inputs, stored_bytes, math.prod(stack))


# -- safetensors


def _read(name: str, tensors: Mapping[str, StoredTensor], dtype: str) -> _Stored:
    """A module's weight, of the tensors that make it up."""
    stored_bytes = sum(tensor.num_bytes for tensor in tensors.values())
    found = next(filter(None, (read(tensors) for read in _READERS)), None)
    if found is not None:
        label, kind, rows, inputs, count = found
        return _Stored(name, label, RULES[kind], rows, inputs, stored_bytes, count)
    main = tensors.get(".weight", tensors.get(""))
    if main is not None and main.dtype in FLOATS:
        stored = FLOATS[main.dtype]
        rule = float_rule(stored, dtype, len(main.shape) < 2)
        return _of_shape(name, stored, rule, main.shape, stored_bytes)
    main = main or next(iter(tensors.values()))
    return _of_shape(name, main.dtype, None, main.shape, stored_bytes)


_Found = tuple[str, str, int, int, int]  # label, kind of RULES, rows, inputs, matrices
_Tensors = Mapping[str, StoredTensor]


def _read_gptq(tensors: _Tensors) -> _Found | None:
    """GPTQ's words run along the inputs, AWQ's along the outputs."""
    if not {".qweight", ".qzeros", ".scales"} <= tensors.keys():
        return None
    (height, width), (groups, rows) = tensors[".qweight"].shape, tensors[".scales"].shape
    zeros = tensors[".qzeros"]
    is_awq = width * 8 == rows
    bits = 4 if is_awq else round(32 * zeros.shape[1] / rows)
    inputs = height if is_awq else height * 32 // bits
    symmetric = not is_awq and _all_middle(zeros.values(), bits)
    name = "AWQ" if is_awq else "GPTQ"
    label = f"{name} {_integers(bits, inputs // groups, inputs, symmetric)}"
    order = tensors.get(".g_idx")
    if order is not None and np.any(np.diff(order.values().astype(np.int64)) < 0):
        label += ", act-order"
    return label, _integer_kind(bits, symmetric), rows, inputs, 1


def _all_middle(words: npt.NDArray[np.int32], bits: int) -> bool:
    """Whether all zero points are the middle of the range, as GPTQ stores it: itself or less 1."""
    for zero in (2 ** (bits - 1), 2 ** (bits - 1) - 1):
        stream = np.tile([zero >> bit & 1 for bit in range(bits)], 32).astype(np.uint8)
        pattern = np.packbits(stream, bitorder="little").view("<i4")
        if np.array_equal(words, np.broadcast_to(np.resize(pattern, words.shape[1]), words.shape)):
            return True
    return False


def _read_packed(tensors: _Tensors) -> _Found | None:
    """compressed-tensors, several weights in a word."""
    packed = tensors.get(".weight_packed")
    scale = tensors.get(".weight_scale")
    if packed is None or scale is None:
        return None
    rows, width = packed.shape
    if packed.dtype == "U8":
        if scale.dtype == "U8":
            return "compressed-tensors mxfp4", "mxfp4", rows, 2 * width, 1
        return "compressed-tensors nvfp4", "nvfp4", rows, 2 * width, 1
    shape = tensors.get(".weight_shape")
    inputs = 8 * width if shape is None else int(shape.values()[1])
    bits = 32 * width // inputs
    symmetric = ".weight_zero_point" not in tensors
    text = _integers(bits, inputs // scale.shape[-1], inputs, symmetric)
    label = f"compressed-tensors pack-quantized {text}"
    return label, _integer_kind(bits, symmetric), rows, inputs, 1


def _read_int8(tensors: _Tensors) -> _Found | None:
    """One integer in a byte, or two: ours, compressed-tensors' and bitsandbytes'."""
    codes = tensors.get(".weight")
    if codes is None or codes.dtype not in ("I8", "U8") or len(codes.shape) != 2:
        return None
    rows, width = codes.shape
    if ".weight.scales" in tensors:
        bits = 8 if codes.dtype == "I8" else 4
        inputs = width * 8 // bits
        symmetric = ".weight.mins" not in tensors
        kind = f"int{bits}" if symmetric else f"int{bits} with minimums"
        return f"integers {_integers(bits, 32, inputs, symmetric)}", kind, rows, inputs, 1
    if ".SCB" in tensors:
        return "bitsandbytes int8", "int8 by rows", rows, width, 1
    scale = tensors.get(".weight_scale")
    if scale is not None and codes.dtype == "I8":
        symmetric = ".weight_zero_point" not in tensors
        group = width // scale.shape[-1] if len(scale.shape) == 2 else width
        kind = "int8 by rows" if symmetric and group == width else _integer_kind(8, symmetric)
        label = f"compressed-tensors int-quantized {_integers(8, group, width, symmetric)}"
        return label, kind, rows, width, 1
    if scale is not None and ".weight_scale_2" in tensors:
        return "ModelOpt nvfp4", "nvfp4", rows, 2 * width, 1
    return None


def _read_bitsandbytes(tensors: _Tensors) -> _Found | None:
    for kind in ("nf4", "fp4"):
        state = tensors.get(f".weight.quant_state.bitsandbytes__{kind}")
        if state is not None:
            rows, inputs = json.loads(bytes(state.values()))["shape"]
            nested = ", double quantised" if ".weight.nested_absmax" in tensors else ""
            return f"bitsandbytes {kind}{nested}", "nf4", rows, inputs, 1
    return None


def _read_fp8(tensors: _Tensors) -> _Found | None:
    codes = tensors.get(".weight")
    scale = tensors.get(".weight_scale_inv") or tensors.get(".weight_scale")
    if codes is None or codes.dtype != "F8_E4M3" or scale is None or len(codes.shape) != 2:
        return None
    rows, inputs = codes.shape
    if scale.dtype == "U8":
        return "mxfp8", "mxfp8", rows, inputs, 1
    num_scales = math.prod(scale.shape)
    by = "a scale a matrix" if num_scales == 1 else "a scale a row"
    if num_scales not in (1, rows):
        by = "block scales"
    return f"fp8, {by}", "fp8", rows, inputs, 1


def _read_mxfp4(tensors: _Tensors) -> _Found | None:
    """gpt-oss's stacked experts: [experts, rows, inputs / 32, 16]."""
    blocks = tensors.get("_blocks")
    if blocks is None or "_scales" not in tensors or len(blocks.shape) != 4:
        return None
    count, rows, groups, _ = blocks.shape
    return "mxfp4", "mxfp4", rows, 32 * groups, count


_READERS = (_read_gptq, _read_packed, _read_int8, _read_bitsandbytes, _read_fp8, _read_mxfp4)


def _integers(bits: int, group: int, inputs: int, symmetric: bool) -> str:
    groups = "a scale a row" if group >= inputs else f"groups of {group}"
    return f"{bits} bits, {groups}, {'' if symmetric else 'a'}symmetric"


def _integer_kind(bits: int, symmetric: bool) -> str:
    """Codes of 2 and 3 bits less their zeros fit 4 bits."""
    if bits < 4:
        return "int4"
    return f"int{bits}{'' if symmetric else ' with zeros'}"


def unread_matrices(weights: Iterable[Weights]) -> Iterator[Weights]:
    """Weights that a text model needs and this package cannot read."""
    return (w for w in weights if not w.held and w.part != UNREAD)
