"""The integers of GGUF's quantised types, as a checkpoint for the core holds them.

A matrix [n, k] becomes codes, a scale and perhaps a min for every 32 inputs of a row:

    8 bits  codes int8 [n, k];                                value = scale * code (+ min)
    4 bits  codes uint8 [n, k / 2], input 2i in the low half
            of byte i;                                        value = scale * (code - 8),
                                                              with mins scale * code + min

scales and mins are float16 [n, k / 32]. The block layouts are those of ggml-common.h. Kept exactly:
Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0. Q4_K and Q5_K make a scale from a float16 and six bits, which is
rounded to float16 here. Q6_K has a scale for every 16 inputs; it is quantised anew, to 8 bits with
a scale for 32. In Qwen2.5-Coder-0.5B-Instruct's Q4_K_M file this changes the matrices by 0.07% and
0.55% (root mean square).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

GROUP = 32
"""Inputs that share a scale."""

_Bytes = npt.NDArray[np.uint8]
_Half = npt.NDArray[np.float16]
_FOUR = np.uint8(4)  # typed, so that shifts of bytes stay bytes
_LOW = np.uint8(0x0F)


@dataclass(frozen=True)
class Integers:
    """Rows of a quantised matrix; see the module."""

    codes: npt.NDArray[Any]  # int8 [n, k] or uint8 [n, k / 2]
    scales: _Half  # [n, k / 32]
    mins: _Half | None  # likewise


@dataclass(frozen=True)
class IntegerType:
    """A type of GGUF and what its integers become."""

    bits: int
    has_mins: bool
    read: Callable[[_Bytes], Integers]  # from the bytes of whole rows [n, bytes]


def quantize_int8(values: npt.NDArray[np.float32]) -> Integers:
    """Rows [n, k] rounded to 8 bits in groups."""
    groups = values.reshape(len(values), -1, GROUP)
    largest = np.abs(groups).max(axis=2)
    scales = (largest / 127).astype(np.float16)
    # Tiny float16 scales are coarse; a scale rounded down too far would clip the largest value.
    cuts = scales.astype(np.float32) * np.float32(127.5) < largest
    scales[cuts] = np.nextafter(scales[cuts], np.float16(np.inf))
    divisors = np.where(scales > 0, scales, 1).astype(np.float32)[..., np.newaxis]
    codes = np.clip(np.rint(groups / divisors), -127, 127).astype(np.int8)
    return Integers(codes.reshape(values.shape), scales, None)


# -- blocks of 32


def _blocks(rows: _Bytes, block_bytes: int) -> _Bytes:
    """[n, blocks of a row, block_bytes]."""
    return rows.reshape(len(rows), -1, block_bytes)


def _halves(blocks: _Bytes, at: int) -> _Half:
    """The float16 at byte `at` of every block."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]


def _nibbles(packed: _Bytes) -> _Bytes:
    """The low halves of the last axis, then the high ones."""
    return np.concatenate([packed & _LOW, packed >> _FOUR], axis=-1)


def _pack(codes: _Bytes) -> _Bytes:
    """Codes of 4 bits [n, ...], two neighbours in a byte: [n, k / 2]."""
    flat = codes.reshape(len(codes), -1)
    return flat[:, 0::2] | (flat[:, 1::2] << _FOUR)


def _signed(codes: _Bytes, offset: int) -> npt.NDArray[np.int8]:
    return (codes.astype(np.int8) - np.int8(offset)).reshape(len(codes), -1)


def _fifth_bits(blocks: _Bytes, at: int) -> _Bytes:
    """Bit i of the four bytes at `at`, as bit 4 of input i: [n, blocks, 32]."""
    bits = np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little")
    return bits << _FOUR


def _read_q4_0(rows: _Bytes) -> Integers:
    blocks = _blocks(rows, 18)
    return Integers(_pack(_nibbles(blocks[..., 2:])), _halves(blocks, 0), None)


def _read_q4_1(rows: _Bytes) -> Integers:
    blocks = _blocks(rows, 20)
    return Integers(_pack(_nibbles(blocks[..., 4:])), _halves(blocks, 0), _halves(blocks, 2))


def _read_q5_0(rows: _Bytes) -> Integers:
    blocks = _blocks(rows, 22)
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return Integers(_signed(codes, 16), _halves(blocks, 0), None)


def _read_q5_1(rows: _Bytes) -> Integers:
    blocks = _blocks(rows, 24)
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4)
    return Integers(_signed(codes, 0), _halves(blocks, 0), _halves(blocks, 2))


def _read_q8_0(rows: _Bytes) -> Integers:
    blocks = _blocks(rows, 34)
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return Integers(codes.reshape(len(rows), -1), _halves(blocks, 0), None)


# -- super-blocks of 256: eight groups of 32


def _k_scales(blocks: _Bytes) -> tuple[_Half, _Half]:
    """(scales, mins) [n, groups] from two float16 and eight pairs of six bits in twelve bytes."""
    packed = blocks[..., 4:16]
    first, second, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, (high & 0x0F) | (first >> 6 << 4)], axis=-1)
    mins = np.concatenate([second & 63, (high >> 4) | (second >> 6 << 4)], axis=-1)

    def product(factor: _Half, integers: _Bytes) -> _Half:
        values = factor.astype(np.float32)[..., np.newaxis] * integers
        return values.astype(np.float16).reshape(len(blocks), -1)

    return product(_halves(blocks, 0), scales), product(-_halves(blocks, 2), mins)


def _k_nibbles(packed: _Bytes) -> _Bytes:
    """[n, blocks, 128] bytes, where 32 bytes hold two groups: [n, blocks, 8, 32]."""
    pairs = _nibbles(packed.reshape(*packed.shape[:2], 4, 32))
    return pairs.reshape(*packed.shape[:2], 8, 32)


def _read_q4_k(rows: _Bytes) -> Integers:
    blocks = _blocks(rows, 144)
    return Integers(_pack(_k_nibbles(blocks[..., 16:])), *_k_scales(blocks))


def _read_q5_k(rows: _Bytes) -> Integers:
    blocks = _blocks(rows, 176)
    # Bit g of byte i is the fifth bit of input i of group g.
    bits = np.unpackbits(blocks[..., 16:48, np.newaxis], axis=-1, bitorder="little")
    codes = _k_nibbles(blocks[..., 48:]) | (bits.swapaxes(2, 3) << _FOUR)
    return Integers(_signed(codes, 0), *_k_scales(blocks))


def _read_q6_k(rows: _Bytes) -> Integers:
    blocks = _blocks(rows, 210)
    low, high = blocks[..., :128], blocks[..., 128:192]
    sixteenths = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    # Each half of a block: 64 bytes with the low four bits of inputs 0 to 63, then 64 to 127, and
    # 32 bytes whose pairs of bits are the high ones of inputs i, 32 + i, 64 + i and 96 + i.
    shape = blocks.shape[:2]
    low = _nibbles(low.reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
    high = (high.reshape(*shape, 2, 1, 32) >> shifts) & np.uint8(3)
    codes = (low | (high << _FOUR)).reshape(*shape, 16, 16).astype(np.int8) - np.int8(32)
    scales = _halves(blocks, 208).astype(np.float32)[..., np.newaxis] * sixteenths
    values = scales[..., np.newaxis].astype(np.float32) * codes
    return quantize_int8(values.reshape(len(rows), -1))


INTEGER_TYPES = {
    "Q4_0": IntegerType(4, False, _read_q4_0),
    "Q4_1": IntegerType(4, True, _read_q4_1),
    "Q4_K": IntegerType(4, True, _read_q4_k),
    "Q5_0": IntegerType(8, False, _read_q5_0),
    "Q5_1": IntegerType(8, True, _read_q5_1),
    "Q5_K": IntegerType(8, True, _read_q5_k),
    "Q6_K": IntegerType(8, False, _read_q6_k),
    "Q8_0": IntegerType(8, False, _read_q8_0),
}
