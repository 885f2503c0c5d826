"""How a checkpoint's weights are stored, from headers alone, and what the engine makes of them."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_file import GgufTensor
from specdec_native.checkpoints.safetensors_file import StoredTensor, open_checkpoint
from specdec_native.checkpoints.weight_formats import (
    FLOATS,
    FORMATS,
    FP8,
    MXFP4,
    NF4,
    NVFP4,
    Rule,
    codes_rule,
    float_rule,
    fused,
    gguf_rule,
    integer_format,
)

UNREAD = "left out"
"""The part of tensors that a text model does not use, such as a vision tower's."""

MTP = "MTP layer"
"""The part of the layers for multi-token prediction beside the model's own. They are read where the
method "mtp" drafts with them."""

# Endings of the tensors that make up a module's weight, the longest first.
_ENDINGS = sorted(
    (
        *(
            ".weight",
            ".weight.scales",
            ".weight.mins",
            ".weight.table",
            ".weight_scale",
            ".weight_scale_inv",
        ),
        *(".weight_scale_2", ".weight_packed", ".weight_global_scale", ".weight_zero_point"),
        *(".weight_shape", ".weight_g_idx", ".input_scale", ".input_global_scale"),
        *(
            ".activation_scale",
            ".input_scale_ub",
            ".q_scale",
            ".k_scale",
            ".v_scale",
            ".qweight",
            ".qzeros",
        ),
        *(".scales", ".g_idx", ".SCB", ".weight_format", ".weight.absmax", ".weight.quant_map"),
        *(".weight.nested_absmax", ".weight.nested_quant_map", "_blocks", "_scales"),
        *(".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"),
    ),
    key=len,
    reverse=True,
)
_PARTS = (  # the first that is found in a name decides
    (UNREAD, re.compile(r"vision|visual|audio|multi_modal|inv_freq|masked_bias")),
    (MTP, re.compile(r"(^|\.)mtp[._]")),
    ("embedding", re.compile(r"embed_(tokens|in)\b|word_embeddings|\bwte\b")),
    ("positions", re.compile(r"embed_positions")),
    ("LM head", re.compile(r"\b(lm_head|embed_out)\b")),
    ("experts", re.compile(r"\bexperts\b")),
    ("routers", re.compile(r"(mlp|block_sparse_moe|feed_forward)\.(gate|router)\b")),
    ("recurrent", re.compile(r"\b(linear_attn|mamba|conv)\b")),
    ("attention", re.compile(r"attn|attention")),
)
# The matrix that joins a token's embedding with a hidden state, where the layer is called as if it
# were one of the model's.
_NUMBERED_MTP = re.compile(r"(.*\blayers\.\d+\.)eh_proj\b")
_NO_WEIGHTS = ("BOOL", "I64")  # masks, positions and maps of tokens
_FUSED = (
    (re.compile(r"\b[qkv]_proj\b"), "qkv_proj"),
    (re.compile(r"\b(gate|up)_proj\b"), "gate_up_proj"),
    (re.compile(r"\bw[13]\b"), "w13"),
    (re.compile(r"\bin_proj_(qkv|z)\b"), "in_proj_qkvz"),
    (re.compile(r"\bin_proj_[ab]\b"), "in_proj_ba"),
)
# Small matrices that are at the dtype, however they are stored.
_FLOAT = re.compile(r"\blinear_attn\.in_proj_(ba|[ab])\b")


@dataclasses.dataclass(frozen=True)
class Weights:
    """Tensors of one part of a model that are stored alike and held alike.

    Attributes:
        part: "attention", "recurrent" (what layers have in its place), "MLP", "experts", "routers",
            "embedding", "LM head", "positions", "norms, biases", MTP or UNREAD.
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
    count: int = 1
    stored_bytes: int = 0
    is_vector: bool = False
    order_bytes: int = 0  # in memory
    part: str = ""  # where the name does not say it


_Group = tuple[str, str, str, str]  # part, stored, held, note


def weights_of(directory: Path, dtype: str) -> list[Weights]:
    """The weights of the safetensors files of a directory, for a CPU engine with this dtype.

    Raises CheckpointError for a damaged file, and for tensors of a matrix whose shapes do not fit.
    """
    modules: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for name, tensor in open_checkpoint(directory).items():
        ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
        modules[name.removesuffix(ending)][ending] = tensor
    _leave_out_tied_head(modules)
    mtp_prefixes = _numbered_mtp(modules)
    found = []
    for name, tensors in modules.items():
        beside = modules.get(name.removesuffix(".bias"), {})
        if ".qweight" in beside and "" in tensors and not tensors[""].values().any():
            continue  # zeros that some tools add, and that the engine leaves out
        try:
            part = MTP if name.startswith(mtp_prefixes) else ""
            found.append(dataclasses.replace(_read(name, tensors, dtype), part=part))
        except (ValueError, ArithmeticError, LookupError, TypeError) as fault:
            message = f"{name}: shapes of its tensors do not fit one another ({fault})"
            raise CheckpointError(message, directory) from fault
    return _grouped(found, dtype)


def has_mtp_layer(directory: Path) -> bool:
    """Whether a safetensors checkpoint has a layer for multi-token prediction, of any family.

    Raises CheckpointError for a damaged file.
    """
    return bool(mtp_names(open_checkpoint(directory)))


def mtp_names(names: Iterable[str]) -> list[str]:
    """The names of a checkpoint's tensors that are its layer for multi-token prediction."""
    found = list(names)
    pattern, numbered = dict(_PARTS)[MTP], _numbered_mtp(found)
    return [name for name in found if pattern.search(name) or name.startswith(numbered)]


def _numbered_mtp(names: Iterable[str]) -> tuple[str, ...]:
    """Prefixes of layers for multi-token prediction that are called as if they were the model's."""
    found = (_NUMBERED_MTP.match(name) for name in names)
    return tuple({match[1] for match in found if match})


def _leave_out_tied_head(modules: dict[str, dict[str, StoredTensor]]) -> None:
    """An LM head that repeats the embedding is held once."""
    by_part = {part: [n for n in modules if pattern.search(n)] for part, pattern in _PARTS}
    for head in by_part["LM head"]:
        for table in by_part["embedding"]:
            ours, theirs = modules[head].get(".weight"), modules[table].get(".weight")
            if ours is None or theirs is None or ours.shape != theirs.shape:
                continue
            if ours.dtype == theirs.dtype and np.array_equal(ours.values(), theirs.values()):
                del modules[head]
                return


def weights_of_gguf(tensors: Iterable[tuple[str, GgufTensor]], dtype: str) -> list[Weights]:
    """The weights of a GGUF file, likewise; `tensors` by their names in a checkpoint."""
    return _grouped((_read_gguf(name, tensor, dtype) for name, tensor in tensors), dtype)


def _grouped(matrices: Iterable[_Stored], dtype: str) -> list[Weights]:
    parts: dict[str, list[_Stored]] = defaultdict(list)  # by the matrix that they are fused to
    for stored in matrices:
        matrix = stored
        if _FLOAT.search(matrix.name) and matrix.rule and matrix.rule.held not in FLOATS.values():
            matrix = dataclasses.replace(matrix, rule=Rule("dtype", "decoded to the dtype"))
        key = matrix.name
        for pattern, together in () if matrix.is_vector else _FUSED:
            key = pattern.sub(together, key)
        parts[key].append(matrix)
    groups: dict[_Group, list[_Stored]] = defaultdict(list)
    for members in parts.values():
        rules = [member.rule for member in members if member.rule is not None]
        held = fused({dtype if rule.held == "dtype" else rule.held for rule in rules}, dtype)
        if not _keeps_order(members, rules):
            held = dtype
        elif rules and rules[0].order:  # one for all parts
            size = 4 * members[0].inputs
            members[0] = dataclasses.replace(members[0], order_bytes=size)
        for member in members:
            groups[_group_of(member, held, dtype)].append(member)
    found = [_sum(group, members) for group, members in groups.items()]
    return sorted(found, key=lambda weights: -weights.stored_bytes)


def _keeps_order(members: list[_Stored], rules: list[Rule]) -> bool:
    """Whether a matrix can have its inputs in the order of its parts, where those have one."""
    if not any(rule.order for rule in rules):
        return True
    are_alike = len({(rule.order, rule.held) for rule in rules}) == 1
    return are_alike and _part_of(members[0]) in ("attention", "recurrent", "MLP")


def _group_of(matrix: _Stored, held: str, dtype: str) -> _Group:
    part, rule = _part_of(matrix), matrix.rule
    if rule is None or part in (UNREAD, MTP):
        return part, matrix.label, "", ""
    if held == dtype and rule.held not in ("dtype", dtype):
        ordered = "act-order of an expert, of a head or of parts that differ"
        reason = ordered if rule.order else "fused with weights of another kind"
        return part, matrix.label, held, f"decoded: {reason}"
    if rule.held == "int8_grouped16" != held:
        return (
            part,
            matrix.label,
            held,
            "rounded anew to 8 bits: fused with weights in groups of 32",
        )
    return part, matrix.label, held, rule.note


def _sum(group: _Group, members: list[_Stored]) -> Weights:
    part, stored, held, note = group
    num_bytes = 0.0
    if held:
        layout = FORMATS[held]
        for m in members:
            num_bytes += m.count * m.rows * (m.inputs * layout.bits / 8 + layout.row_bytes)
            num_bytes += m.order_bytes
    return Weights(
        *(part, stored, held),
        exact=bool(held) and not note,
        note=note,
        count=sum(m.count for m in members),
        parameters=sum(m.count * m.rows * m.inputs for m in members),
        stored_bytes=sum(m.stored_bytes for m in members),
        bytes=math.ceil(num_bytes),
    )


def _part_of(matrix: _Stored) -> str:
    if matrix.rule is None and (matrix.is_vector or matrix.label in _NO_WEIGHTS):
        return UNREAD
    found = next((part for part, pattern in _PARTS if pattern.search(matrix.name)), "MLP")
    found = matrix.part or found
    return "norms, biases" if matrix.is_vector and found not in (UNREAD, MTP) else found


# -- GGUF


def _read_gguf(name: str, tensor: GgufTensor, dtype: str) -> _Stored:
    is_vector = _is_vector(tensor.shape)
    kind = tensor.integer_type
    if kind is not None:
        rule = gguf_rule(tensor.type_name, kind, is_scaled=tensor.factors != (1.0,))
    elif tensor.type_name in FLOATS:
        rule = float_rule(FLOATS[tensor.type_name], dtype, is_vector)
    else:
        rule = Rule("dtype", "decoded to the dtype")
    return _of_shape(name, tensor.type_name, rule, tensor.shape, tensor.num_bytes)


def _is_vector(shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a vector, or convolutions of one channel each."""
    return len(shape) < 2 or (len(shape) == 3 and shape[1] == 1)


def _of_shape(
    name: str, label: str, rule: Rule | None, shape: tuple[int, ...], stored_bytes: int
) -> _Stored:
    """A tensor of a vector, a matrix or a stack of matrices."""
    if _is_vector(shape) or name.endswith("bias"):
        size = math.prod(shape)
        return _Stored(name, label, rule, 1, size, 1, stored_bytes, is_vector=True)
    *stack, rows, inputs = shape
    return _Stored(name, label, rule, rows, inputs, math.prod(stack), stored_bytes)


# -- safetensors


def _read(name: str, tensors: Mapping[str, StoredTensor], dtype: str) -> _Stored:
    """A module's weight, of the tensors that make it up."""
    stored_bytes = sum(tensor.num_bytes for tensor in tensors.values())
    found = next(filter(None, (read(tensors) for read in _READERS)), None)
    if found is not None:
        return _Stored(name, *found, stored_bytes=stored_bytes)
    main = tensors.get(".weight", tensors.get(""))
    if main is not None and main.dtype in FLOATS:
        stored = FLOATS[main.dtype]
        rule = float_rule(stored, dtype, _is_vector(main.shape))
        return _of_shape(name, stored, rule, main.shape, stored_bytes)
    main = main or next(iter(tensors.values()))
    return _of_shape(name, main.dtype, None, main.shape, stored_bytes)


_Found = tuple[str, Rule, int, int, int]  # label, rule, rows, inputs, matrices
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
    group = inputs // groups
    order = _order_of(tensors.get(".g_idx"), inputs, group)
    middle = 1 << bits - 1  # which GPTQ's first format stores less 1
    symmetric = _are_all(zeros, bits, (middle,) if is_awq else (middle, middle - 1))
    rule = codes_rule(
        *(bits, group, inputs),
        symmetric=symmetric,
        half_scales=_is_half(tensors[".scales"]),
    )
    label = f"{'AWQ' if is_awq else 'GPTQ'} {_integers(bits, group, inputs, symmetric)}"
    return (*_ordered(label, rule, order), rows, inputs, 1)


def _are_all(zeros: StoredTensor, bits: int, values: Iterable[int]) -> bool:
    """Whether a stream of codes in words [..., n] repeats one of these values."""
    words = zeros.values()
    for value in values:
        stream = np.tile([value >> bit & 1 for bit in range(bits)], 32).astype(np.uint8)
        pattern = np.packbits(stream, bitorder="little").view("<i4")
        if np.array_equal(words, np.broadcast_to(np.resize(pattern, words.shape[1]), words.shape)):
            return True
    return False


def _order_of(groups: StoredTensor | None, inputs: int, size: int) -> int:
    """Rule.order, by each input's group; 0 where inputs of a group are neighbours."""
    if groups is None or np.array_equal(values := groups.values(), np.arange(inputs) // size):
        return 0
    return 1 + zlib.crc32(values.tobytes())


def _ordered(label: str, rule: Rule, order: int) -> tuple[str, Rule]:
    if order == 0 or rule.held == "dtype":
        return label, rule
    return f"{label}, act-order", dataclasses.replace(rule, order=order)


def _is_half(scales: StoredTensor) -> bool:
    """Whether every scale is a float16."""
    if scales.dtype == "F16":
        return True
    values = scales.values()
    if scales.dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values, values.astype(np.float16)))


def _read_packed(tensors: _Tensors) -> _Found | None:
    """compressed-tensors, several weights in a word."""
    packed = tensors.get(".weight_packed")
    scale = tensors.get(".weight_scale")
    if packed is None or scale is None:
        return None
    rows, width = packed.shape
    if packed.dtype == "U8" and ".weight_global_scale" in tensors:
        return "compressed-tensors nvfp4", NVFP4, rows, 2 * width, 1
    if packed.dtype == "U8":
        return "compressed-tensors mxfp4", _mxfp4_rule(scale), rows, 2 * width, 1
    shape = tensors.get(".weight_shape")
    inputs = 8 * width if shape is None else int(shape.values()[1])
    bits, group = 32 * width // inputs, inputs // scale.shape[-1]
    symmetric = ".weight_zero_point" not in tensors
    order = _order_of(tensors.get(".weight_g_idx"), inputs, group)
    rule = codes_rule(
        *(bits, group, inputs),
        symmetric=symmetric,
        half_scales=_is_half(scale),
    )
    label = f"compressed-tensors pack-quantized {_integers(bits, group, inputs, symmetric)}"
    return (*_ordered(label, rule, order), rows, inputs, 1)


def _mxfp4_rule(exponents: StoredTensor) -> Rule:
    """Scales are powers of 2, of which float16 has some."""
    values = exponents.values()
    fits = values.size == 0 or (values.min() >= 104 and values.max() <= 143)
    return MXFP4 if fits else Rule("dtype", "decoded: a scale is no float16")


def _read_int8(tensors: _Tensors) -> _Found | None:
    """One integer in a byte: compressed-tensors' and bitsandbytes'."""
    codes = tensors.get(".weight")
    scale = tensors.get(".SCB", tensors.get(".weight_scale"))
    if codes is None or scale is None or codes.dtype != "I8" or len(codes.shape) != 2:
        return None
    rows, inputs = codes.shape
    group = inputs // scale.shape[-1] if len(scale.shape) == 2 else inputs
    symmetric = ".weight_zero_point" not in tensors
    rule = codes_rule(8, group, inputs, symmetric=symmetric, half_scales=_is_half(scale))
    label = f"compressed-tensors int-quantized {_integers(8, group, inputs, symmetric)}"
    return "bitsandbytes int8" if ".SCB" in tensors else label, rule, rows, inputs, 1


def _read_own(tensors: _Tensors) -> _Found | None:
    """The layout that a GGUF file is converted to."""
    codes, scales = tensors.get(".weight"), tensors.get(".weight.scales")
    if codes is None or scales is None or len(codes.shape) != 2:
        return None
    rows, width = codes.shape
    bits = 8 if codes.dtype == "I8" else 4
    inputs = width * 8 // bits
    group = inputs // scales.shape[1]
    has_mins, has_table = ".weight.mins" in tensors, ".weight.table" in tensors
    more = " with minimums" if has_mins else " of a table" if has_table else ""
    label = f"{bits}-bit integers{more} in groups of {group}"
    rule = Rule(integer_format(bits, group, has_mins, has_table))
    return label, rule, rows, inputs, 1


def _read_4_bit_floats(tensors: _Tensors) -> _Found | None:
    """bitsandbytes', ModelOpt's, and gpt-oss's stacked experts [experts, rows, inputs / 32, 16]."""
    for kind in ("nf4", "fp4"):
        state = tensors.get(f".weight.quant_state.bitsandbytes__{kind}")
        if state is not None:
            rows, inputs = json.loads(bytes(state.values()))["shape"]
            nested = ", double quantised" if ".weight.nested_absmax" in tensors else ""
            return f"bitsandbytes {kind}{nested}", NF4, rows, inputs, 1
    if ".weight" in tensors and ".weight_scale_2" in tensors and tensors[".weight"].dtype == "U8":
        rows, width = tensors[".weight"].shape
        return "ModelOpt nvfp4", NVFP4, rows, 2 * width, 1
    if "_blocks" in tensors and "_scales" in tensors:
        count, rows, groups, _ = tensors["_blocks"].shape
        return "mxfp4", _mxfp4_rule(tensors["_scales"]), rows, 32 * groups, count
    return None


def _read_fp8(tensors: _Tensors) -> _Found | None:
    codes = tensors.get(".weight")
    scale = tensors.get(".weight_scale_inv", tensors.get(".weight_scale"))
    if codes is None or codes.dtype != "F8_E4M3" or scale is None or len(codes.shape) != 2:
        return None
    rows, inputs = codes.shape
    if scale.dtype == "U8":
        return "mxfp8", FP8, rows, inputs, 1
    num_scales = math.prod(scale.shape)
    by = "a scale a matrix" if num_scales == 1 else "a scale a row"
    if num_scales not in (1, rows):
        by = "block scales"
    return f"fp8, {by}", FP8, rows, inputs, 1


_READERS = (_read_gptq, _read_packed, _read_int8, _read_own, _read_4_bit_floats, _read_fp8)


def _integers(bits: int, group: int, inputs: int, symmetric: bool) -> str:
    groups = "a scale a row" if group >= inputs else f"groups of {group}"
    return f"{bits} bits, {groups}, {'' if symmetric else 'a'}symmetric"


def unread_matrices(weights: Iterable[Weights]) -> Iterator[Weights]:
    """Weights that a text model needs and this package cannot read."""
    return (w for w in weights if not w.held and w.part not in (UNREAD, MTP))
