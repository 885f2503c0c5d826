"""Types of GGUF whose codes are points of a grid: indices of 4 or 8 inputs, signs, and scales.

Every one becomes codes of 4 bits and a table. Taking the opposite of a number inverts its code's
bits. The grids are the gguf package's own.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.gguf_forms import (
    Bytes,
    Codes,
    Floats,
    IntegerType,
    blocks_of,
    halves,
    nibble_pairs,
    per_group,
    words,
)
from specdec_native.checkpoints.optional import import_gguf

_Indices = npt.NDArray[np.integer]
_SIGN_SHIFTS = np.array([0, 7, 14, 21], dtype=np.uint32)  # of four indices of seven bits
_THREE_BITS = np.array([0, 3, 6, 9], dtype=np.uint16)
_EIGHTH_BITS = np.array([0, 2, 4, 6], dtype=np.uint8)


def _symmetric(*magnitudes: int) -> tuple[int, ...]:
    """The table where codes 8, 9, ... are these numbers and 7, 6, ... their opposites."""
    padded = (*magnitudes, *[0] * (8 - len(magnitudes)))
    return (*(-value for value in reversed(padded)), *padded)


_IQ2 = _symmetric(8, 25, 43)
_IQ3_XXS = _symmetric(4, 12, 20, 28, 36, 44, 52, 62)
_IQ3_S = _symmetric(1, 3, 5, 7, 9, 11, 13, 15)
# Eighths of -1, 0 and 1 plus an eighth; with all bits inverted, minus an eighth.
_IQ1 = (-7, 1, 9, *[0] * 10, 7, -1, -9)


@functools.cache
def _grid(name: str, table: tuple[int, ...], eighths: bool = False) -> npt.NDArray[Any]:
    """The codes of each point, four bits each: uint16 or uint32."""
    quants = getattr(import_gguf().quants, name)
    quants.init_grid()
    numbers = quants.grid.reshape(quants.grid_shape).astype(np.int64)
    code_of = {number: code for code, number in reversed([*enumerate(table)])}
    codes = np.vectorize(code_of.__getitem__)(8 * numbers + 1 if eighths else numbers)
    size = codes.shape[1]
    packed = (codes << (4 * np.arange(size))).sum(axis=1)
    return np.asarray(packed, dtype=np.uint32 if size == 8 else np.uint16)


@functools.cache
def _inverted() -> npt.NDArray[np.uint32]:
    """By eight sign bits: the bits of eight codes to invert."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1, bitorder="little")
    inverted = (bits.astype(np.int64) * 15 << (4 * np.arange(8))).sum(axis=1)
    return np.asarray(inverted, dtype=np.uint32)


@functools.cache
def _even_signs() -> npt.NDArray[np.uint8]:
    """By seven bits: eight sign bits, of which an even number is set."""
    return np.frombuffer(import_gguf().quants.IQ2_XXS.ksigns, dtype=np.uint8)


def _codes(points: npt.NDArray[Any], signs: _Indices) -> Codes:
    """Packed codes [n, k / 2] of points [n, ...] and of eight sign bits [n, ...] for each 8."""
    flat = np.ascontiguousarray(points).reshape(len(points), -1).view(np.uint32)
    found = flat ^ _inverted()[signs.reshape(len(signs), -1)]
    return found.view(np.uint8)


def _scaled(factors: Floats, integers: npt.NDArray[Any], part: float) -> Floats:
    """factor * (integer + 1/2) * part of every group."""
    return per_group(factors[..., np.newaxis] * (integers.astype(np.float32) + 0.5) * part)


def _odd(factors: Floats, integers: npt.NDArray[Any], part: float) -> Floats:
    """factor * (2 * integer + 1) * part of every group."""
    return _scaled(factors, integers, 2 * part)


def _even_signs_of(packed: npt.NDArray[np.uint32]) -> _Indices:
    indices: _Indices = (packed[..., np.newaxis] >> _SIGN_SHIFTS) & np.uint32(127)
    return _even_signs()[indices]


def _iq2_xxs_codes(rows: Bytes) -> Codes:
    packed = words(blocks_of(rows, 66), 2, 66, np.uint32)
    indices = np.ascontiguousarray(packed[..., 0::2]).view(np.uint8)
    return _codes(_grid("IQ2_XXS", _IQ2)[indices], _even_signs_of(packed[..., 1::2]))


def _iq2_xxs_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 66)
    return _scaled(halves(blocks, 0), words(blocks, 2, 66, np.uint32)[..., 1::2] >> 28, 0.25)


def _iq2_xs_codes(rows: Bytes) -> Codes:
    packed = words(blocks_of(rows, 74), 2, 66, np.uint16)
    return _codes(_grid("IQ2_XS", _IQ2)[packed & 511], _even_signs()[packed >> 9])


def _iq2_xs_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 74)
    return _scaled(halves(blocks, 0), nibble_pairs(blocks[..., 66:74]), 0.25)


def _high_bits(blocks: Bytes, begin: int, end: int) -> npt.NDArray[np.uint16]:
    """Pairs of bits, from the lowest of every byte up, as bits 8 and 9."""
    pairs = (blocks[..., begin:end, np.newaxis] >> _EIGHTH_BITS) & np.uint8(3)
    return pairs.reshape(*blocks.shape[:2], -1).astype(np.uint16) << np.uint16(8)


def _iq2_s_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 82)
    indices = blocks[..., 2:34] | _high_bits(blocks, 66, 74)
    return _codes(_grid("IQ2_S", _IQ2)[indices], blocks[..., 34:66])


def _iq2_s_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 82)
    return _scaled(halves(blocks, 0), nibble_pairs(blocks[..., 74:82]), 0.25)


def _iq3_xxs_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 98)
    signs = _even_signs_of(words(blocks, 66, 98, np.uint32))
    return _codes(_grid("IQ3_XXS", _IQ3_XXS)[blocks[..., 2:66]], signs)


def _iq3_xxs_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 98)
    return _scaled(halves(blocks, 0), words(blocks, 66, 98, np.uint32) >> 28, 0.5)


def _iq3_s_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 110)
    ninth = np.unpackbits(blocks[..., 66:74], axis=-1, bitorder="little").astype(np.uint16)
    return _codes(_grid("IQ3_S", _IQ3_S)[blocks[..., 2:66] | (ninth << 8)], blocks[..., 74:106])


def _iq3_s_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 110)
    return _odd(halves(blocks, 0), nibble_pairs(blocks[..., 106:110]), 1.0)


def _iq1_codes(low: Bytes, high: npt.NDArray[Any], is_minus: npt.NDArray[np.bool_]) -> Codes:
    """Of index bytes [n, blocks, 32], their upper three bits, and by 8 whether to take an eighth
    away, all of the same number of elements."""
    indices = low | (high.reshape(low.shape).astype(np.uint16) << 8)
    signs = np.where(is_minus.reshape(low.shape), np.uint8(255), np.uint8(0))
    return _codes(_grid("IQ1_S", _IQ1, eighths=True)[indices], signs)


def _iq1_s_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 50)
    packed = words(blocks, 34, 50, np.uint16)
    high = (packed[..., np.newaxis] >> _THREE_BITS) & 7
    return _iq1_codes(blocks[..., 2:34], high, np.repeat(packed >> 15 == 1, 4, axis=-1))


def _iq1_s_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 50)
    return _odd(halves(blocks, 0), (words(blocks, 34, 50, np.uint16) >> 12) & 7, 1 / 8)


def _iq1_m_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 56)
    high = nibble_pairs(blocks[..., 32:48])
    return _iq1_codes(blocks[..., :32], high & 7, high >= 8)


def _iq1_m_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 56)
    packed = words(blocks, 48, 56, np.uint16)
    # The float16 of a block lies in the upper four bits of four words, the lowest bits first.
    digits = (packed >> 12) << np.array([0, 4, 8, 12], dtype=np.uint16)
    factors = digits.sum(axis=-1, dtype=np.uint16).view(np.float16).astype(np.float32)
    integers = ((packed[..., np.newaxis] >> _THREE_BITS) & 7).reshape(*packed.shape[:2], 16)
    return _odd(factors, integers, 1 / 8)


GRID_TYPES = {
    "IQ1_S": IntegerType(4, _iq1_s_codes, _iq1_s_scales, table=_IQ1),
    "IQ1_M": IntegerType(4, _iq1_m_codes, _iq1_m_scales, table=_IQ1, group=16),
    "IQ2_XXS": IntegerType(4, _iq2_xxs_codes, _iq2_xxs_scales, table=_IQ2),
    "IQ2_XS": IntegerType(4, _iq2_xs_codes, _iq2_xs_scales, table=_IQ2, group=16),
    "IQ2_S": IntegerType(4, _iq2_s_codes, _iq2_s_scales, table=_IQ2, group=16),
    "IQ3_XXS": IntegerType(4, _iq3_xxs_codes, _iq3_xxs_scales, table=_IQ3_XXS),
    "IQ3_S": IntegerType(4, _iq3_s_codes, _iq3_s_scales, table=_IQ3_S),
}
