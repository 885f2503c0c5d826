"""The forms of quantised matrices, and what the core takes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

GROUP = 32
"""Inputs that share a scale, but for types whose groups have 16."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[Any]  # int8 [n, k] or uint8 [n, k / 2]

_FOUR = np.uint8(4)  # typed, so that shifts of bytes stay bytes
_LOW = np.uint8(0x0F)
# Codes of 4 bits without mins or a table are these numbers.
_CENTERED = range(-8, 8)


@dataclasses.dataclass(frozen=True)
class IntegerType:
    """A quantised matrix [n, k] as codes with a scale, and perhaps a min, for each group of inputs.

    8 bits: codes int8 [n, k]; 4 bits: codes uint8 [n, k / 2], input 2i in the low half of byte i.
    The functions read them, and the scales and mins [n, k / group], from the bytes of whole rows
    [n, bytes]. A value is scale * number + min, where the number is the code, or table[code], or,
    of 4 bits with neither table nor mins, code - 8.
    """

    bits: int
    codes: Callable[[Bytes], Codes]
    scales: Callable[[Bytes], Floats]
    mins: Callable[[Bytes], Floats] | None = None
    table: tuple[int, ...] | None = None
    group: int = GROUP


def lowered(kind: IntegerType) -> IntegerType:
    """The form of `kind` that the core takes: groups of 16 become 8 bits.

    That changes no value, unless they have mins: then they are quantised anew, without.
    """
    if kind.group == GROUP:
        return kind
    if kind.mins is None:
        return dataclasses.replace(
            kind, bits=8, table=None, codes=lambda rows: _numbers(kind, kind.codes(rows))
        )

    def quantized(rows: Bytes) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
        return quantize_int8(_values(kind, rows), kind.group)

    return IntegerType(
        bits=8,
        codes=lambda rows: quantized(rows)[0],
        scales=lambda rows: quantized(rows)[1].astype(np.float32),
        group=kind.group,
    )


def quantize_int8(
    values: Floats, group: int = GROUP
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Codes [n, k] and scales [n, k / group] of rows rounded to 8 bits in groups."""
    groups = values.reshape(len(values), -1, group)
    largest = np.abs(groups).max(axis=2)
    scales = (largest / 127).astype(np.float16)
    # Tiny float16 scales are coarse; a scale rounded down too far would clip the largest value.
    cuts = scales.astype(np.float32) * np.float32(127.5) < largest
    scales[cuts] = np.nextafter(scales[cuts], np.float16(np.inf))
    divisors = np.where(scales > 0, scales, 1).astype(np.float32)[..., np.newaxis]
    codes = np.clip(np.rint(groups / divisors), -127, 127).astype(np.int8)
    return codes.reshape(values.shape), scales


def _numbers(kind: IntegerType, codes: Codes) -> npt.NDArray[np.int8]:
    """What the scales multiply: [n, k]."""
    if kind.bits == 8:
        return codes
    table = kind.table or (range(16) if kind.mins else _CENTERED)
    # Both numbers of a byte are looked up at once.
    numbers = np.array([(table[byte & 15], table[byte >> 4]) for byte in range(256)], np.int8)
    pairs = numbers.view(np.int16)[:, 0][codes]
    return pairs.view(np.int8).reshape(len(codes), -1)


def _values(kind: IntegerType, rows: Bytes) -> Floats:
    numbers = _numbers(kind, kind.codes(rows)).reshape(len(rows), -1, kind.group)
    values: Floats = numbers * kind.scales(rows)[..., np.newaxis]
    if kind.mins is not None:
        values += kind.mins(rows)[..., np.newaxis]
    return values.reshape(len(rows), -1)


def blocks_of(rows: Bytes, block_bytes: int) -> Bytes:
    """[n, blocks of a row, block_bytes]."""
    return rows.reshape(len(rows), -1, block_bytes)


def words(blocks: Bytes, begin: int, end: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The bytes [begin, end) of every block as little-endian numbers."""
    return np.ascontiguousarray(blocks[..., begin:end]).view(dtype)


def halves(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of every block: [n, blocks]."""
    return words(blocks, at, at + 2, np.float16)[..., 0].astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """The low halves of the last axis, then the high ones."""
    return np.concatenate([packed & _LOW, packed >> _FOUR], axis=-1)


def nibble_pairs(packed: Bytes) -> Bytes:
    """The low half of each byte of the last axis, followed by its high half."""
    pairs = np.stack([packed & _LOW, packed >> _FOUR], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1)


def pack(codes: Bytes) -> Bytes:
    """Codes of 4 bits [n, ...], two neighbours in a byte: [n, k / 2]."""
    flat = codes.reshape(len(codes), -1)
    return flat[:, 0::2] | (flat[:, 1::2] << _FOUR)


def per_group(values: npt.NDArray[Any]) -> Floats:
    """[n, ...] flattened to [n, groups]."""
    return np.asarray(values, dtype=np.float32).reshape(len(values), -1)
