"""What the engine makes of stored weights: one table of formats, one of stored kinds.

The numbers and their error are those of docs/quantization.md.
"""

from __future__ import annotations

import dataclasses

from specdec_native.checkpoints.gguf_forms import IntegerType

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
    """What becomes of a stored kind.

    Attributes:
        held: a name of FORMATS, or "dtype" for the engine's dtype.
        exact: whether every weight keeps its value.
        note: what is rounded, where it is not exact.
    """

    held: str
    exact: bool = True
    note: str = ""


_DECODED = "decoded to the dtype; a GPU keeps the codes"

RULES = {
    "int4": Rule("int4_grouped"),
    "int4 with minimums": Rule("int4_grouped_min"),
    "int4 with zeros": Rule("int4_grouped_zero"),
    "int8": Rule("int8_grouped"),
    "int8 with minimums": Rule("int8_grouped_min"),
    "int8 with zeros": Rule("int8_grouped_min", False, "minimums rounded to float16"),
    "int8 by rows": Rule("int8"),
    "fp8": Rule("dtype", False, _DECODED),
    "mxfp8": Rule("dtype", False, _DECODED),
    "mxfp4": Rule("int4_table"),
    "nvfp4": Rule("int8_grouped16", False, "scales rounded to float16"),
    "nf4": Rule("int4_table", False, "the table rounded to 8 bits"),
}
"""By the kinds that stored_weights finds in safetensors files."""

_SCALES = "scales rounded to float16"
_ANEW = "rounded anew to 8 bits"
GGUF_NOTES = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), ""),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), ""),
    **dict.fromkeys(("Q4_K", "Q5_K", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_XXS", "IQ1_S"), _SCALES),
    **dict.fromkeys(("Q3_K", "Q6_K", "IQ2_XS", "IQ2_S", "IQ1_M", "NVFP4"), _SCALES),
    "Q2_K": _ANEW,
}
"""What is rounded of a GGUF type whose integers are used; "" for one that is kept exactly."""


def gguf_rule(type_name: str, integers: IntegerType) -> Rule:
    """The rule of a GGUF type that stays in integers."""
    held = f"int{integers.bits}_grouped{'_min' if integers.mins is not None else ''}"
    if integers.table is not None:
        held = "int4_table"
    elif integers.group == 16:
        held = "int8_grouped16"
    note = GGUF_NOTES.get(type_name, _SCALES)
    return Rule(held, note == "", note)


def float_rule(stored: str, dtype: str, is_vector: bool) -> Rule:
    """The rule of floating-point numbers; vectors are float32 whatever the dtype."""
    held = "float32" if is_vector else dtype
    exact = held in (stored, "float32")
    return Rule(held, exact, "" if exact else f"rounded to {held}")


def fused(held: set[str], dtype: str) -> str:
    """The format of a matrix whose parts, such as q, k and v, would be held in these formats."""
    if len(held) < 2:
        return next(iter(held), dtype)
    if not all(name.startswith("int") for name in held):
        return dtype
    if "int8" in held:  # a scale per row
        return dtype
    for extra in ("int4_grouped_zero", "int4_grouped_min"):
        if held == {"int4_grouped", extra}:
            return extra
    if any(name.endswith("_min") for name in held):
        return "int8_grouped_min"
    return "int8_grouped16" if "int8_grouped16" in held else "int8_grouped"
