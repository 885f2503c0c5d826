"""What the engine makes of stored weights, by the rules of the core (weight_format, kept_matrix).

Each rule says what is rounded; docs/supported.md has the errors.
"""

from __future__ import annotations

import dataclasses

from specdec_native.checkpoints.gguf_blocks import BLOCK_TYPES
from specdec_native.checkpoints.gguf_forms import GROUP, IntegerType
from specdec_native.checkpoints.gguf_grids import GRID_TYPES

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The engine's names of floating-point types, by those of safetensors and GGUF."""


@dataclasses.dataclass(frozen=True)
class Format:
    """How a matrix lies in memory: bits of a weight with its group's scales, bytes of a row."""

    text: str
    bits: float
    row_bytes: int = 0


FORMATS = {
    "float32": Format("float32", 32),
    "bfloat16": Format("bfloat16", 16),
    "float16": Format("float16", 16),
    "int8": Format("8-bit integers, a scale a row", 8, 4),
    "int8_grouped": Format("8-bit integers in groups of 32", 8.5),
    "int8_grouped_min": Format("8-bit integers with minimums in groups of 32", 9),
    "int8_grouped16": Format("8-bit integers in groups of 16", 9),
    "int4_grouped": Format("4-bit integers in groups of 32", 4.5),
    "int4_grouped_min": Format("4-bit integers with minimums in groups of 32", 5),
    "int4_grouped_zero": Format("4-bit integers with zeros in groups of 32", 5),
    "int4_table": Format("4-bit codes of a table in groups of 32", 4.5),
}
"""WeightFormat of the core, by its names; "act" is the name of the engine's dtype."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """What becomes of a stored matrix.

    Attributes:
        held: a name of FORMATS, or "dtype" for the engine's dtype.
        note: what is rounded; empty where every weight keeps its value.
        order: a hash of the order of the inputs (act-order); 0: they are in order.
    """

    held: str
    note: str = ""
    order: int = 0


FP8 = Rule("dtype", "decoded to the dtype; a GPU keeps the codes")
MXFP4 = Rule("int4_table")
NVFP4 = Rule("int8_grouped16", "scales rounded to float16")
NF4 = Rule("int4_table", "the table rounded to 8 bits, scales to float16")


def codes_rule(
    bits: int,
    group: int,
    inputs: int,
    *,
    symmetric: bool,
    half_scales: bool = True,
) -> Rule:
    """Of integers with a scale for `group` inputs of a row.

    symmetric: the zero points are all in the middle. half_scales: each scale is a float16.
    """
    if bits == 8 and group >= inputs and symmetric:
        return Rule("int8")
    if group % GROUP:
        return Rule("dtype", f"decoded: groups of {group} are no multiple of {GROUP}")
    if not half_scales:
        return Rule("dtype", "decoded: a scale is no float16")
    if bits == 8:
        rounded = Rule("int8_grouped_min", "minimums rounded to float16")
        return Rule("int8_grouped") if symmetric else rounded
    return Rule("int4_grouped" if symmetric or bits < 4 else "int4_grouped_zero")


_EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "TQ1_0", "TQ2_0", "NVFP4")


def gguf_rule(type_name: str, kind: IntegerType, *, is_scaled: bool = False) -> Rule:
    """Of a GGUF type that stays in integers, in the form `kind`.

    is_scaled: whether the matrix has a scale beside it.
    """
    stored = (BLOCK_TYPES | GRID_TYPES)[type_name]
    note = "" if type_name in _EXACT and not is_scaled else "scales rounded to float16"
    if stored.mins is not None and kind.mins is None:
        note = f"rounded anew to {kind.bits} bits"
    return Rule(
        integer_format(kind.bits, kind.group, kind.mins is not None, bool(kind.table)), note
    )


def integer_format(bits: int, group: int, has_mins: bool, has_table: bool = False) -> str:
    """The format of integers as this package writes them."""
    if bits == 8 or group % GROUP:
        form = "_min" if has_mins else "16" if group % GROUP else ""
        return f"int8_grouped{form}"
    if has_table:
        return "int4_table"
    return "int4_grouped_min" if has_mins else "int4_grouped"


def float_rule(stored: str, dtype: str, is_vector: bool) -> Rule:
    """Of floating-point numbers; vectors are float32 whatever the dtype."""
    held = "float32" if is_vector else dtype
    return Rule(held, "" if held in (stored, "float32") else f"rounded to {held}")


def fused(held: set[str], dtype: str) -> str:
    """The format of a matrix whose parts, such as q, k and v, would be held in these formats."""
    if len(held) < 2:
        return next(iter(held), dtype)
    if "int8" in held or not all(name.startswith("int") for name in held):
        return dtype
    for wide in ("int4_grouped_min", "int4_grouped_zero"):
        if held <= {"int4_grouped", wide}:
            return wide
    if any(name.endswith("_min") for name in held):
        return "int8_grouped_min"
    return "int8_grouped16" if "int8_grouped16" in held else "int8_grouped"
