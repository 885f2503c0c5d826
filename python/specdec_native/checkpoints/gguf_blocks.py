"""Types of GGUF whose codes are bits of the file, by the layouts of ggml-common.h."""

from __future__ import annotations

import functools
from collections.abc import Callable

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
    nibbles,
    pack,
    per_group,
    words,
)
from specdec_native.checkpoints.optional import import_gguf

_FOUR = np.uint8(4)
_TWO_BITS = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
_POWERS_OF_3 = np.array([1, 3, 9, 27, 81], dtype=np.uint8).reshape(5, 1)

# Tables of 4-bit codes: 16 steps that are finer around zero, and twice the values of a float of one
# sign bit, two of exponent and one of fraction.
_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _halves_at(block_bytes: int, at: int) -> Callable[[Bytes], Floats]:
    return lambda rows: halves(blocks_of(rows, block_bytes), at)


def _packed_nibbles(block_bytes: int, at: int, run: int) -> Callable[[Bytes], Codes]:
    """Codes of 4 bits from byte `at` on, where `run` bytes hold as many inputs in their low halves
    and then as many in their high ones."""

    def read(rows: Bytes) -> Codes:
        packed = blocks_of(rows, block_bytes)[..., at:]
        return pack(nibbles(packed.reshape(len(rows), -1, run)))

    return read


def _signed(codes: Bytes, offset: int) -> npt.NDArray[np.int8]:
    return (codes.astype(np.int8) - np.int8(offset)).reshape(len(codes), -1)


# -- blocks of 32


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """Bit i of the four bytes at `at`, as bit 4 of input i: [n, blocks, 32]."""
    bits = np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little")
    return bits << _FOUR


def _q5_0_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 22)
    return _signed(nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2), 16)


def _q5_1_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 24)
    return _signed(nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4), 0)


def _q8_0_codes(rows: Bytes) -> Codes:
    return words(blocks_of(rows, 34), 2, 34, np.int8).reshape(len(rows), -1)


def _mxfp4_scales(rows: Bytes) -> Floats:
    exponents = blocks_of(rows, 17)[..., 0].astype(np.int32)
    return np.ldexp(np.float32(1), exponents - 128)


# -- super-blocks of 256


def _k_scales(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Eight pairs of six bits in twelve bytes: of scales and of mins, [n, blocks, 8]."""
    packed = blocks[..., 4:16]
    first, second, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, (high & 0x0F) | (first >> 6 << 4)], axis=-1)
    mins = np.concatenate([second & 63, (high >> 4) | (second >> 6 << 4)], axis=-1)
    return scales, mins


def _product(factors: Floats, integers: npt.NDArray[np.integer]) -> Floats:
    """[n, blocks] times [n, blocks, groups]: [n, all groups]."""
    return per_group(factors[..., np.newaxis] * integers)


def _k_scales_at(block_bytes: int) -> Callable[[Bytes], Floats]:
    def read(rows: Bytes) -> Floats:
        blocks = blocks_of(rows, block_bytes)
        return _product(halves(blocks, 0), _k_scales(blocks)[0])

    return read


def _k_mins_at(block_bytes: int) -> Callable[[Bytes], Floats]:
    def read(rows: Bytes) -> Floats:
        blocks = blocks_of(rows, block_bytes)
        return _product(-halves(blocks, 2), _k_scales(blocks)[1])

    return read


def _bits_of_groups(blocks: Bytes, begin: int, end: int) -> Bytes:
    """Bit g of byte i as 0 or 1 of input i of group g: [n, blocks, 8, 32]."""
    bits = np.unpackbits(blocks[..., begin:end, np.newaxis], axis=-1, bitorder="little")
    return bits.swapaxes(2, 3)


def _q5_k_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 176)
    low = nibbles(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32))
    fifth = _bits_of_groups(blocks, 16, 48) << _FOUR
    return _signed(low.reshape(fifth.shape) | fifth, 0)


def _two_bits(packed: Bytes) -> Bytes:
    """Bits 2j of 32 bytes, j = 0 to 3, one after another: [n, blocks, groups of 32, 32]."""
    shape = packed.shape[:2]
    bits = (packed.reshape(*shape, -1, 1, 32) >> _TWO_BITS) & np.uint8(3)
    return bits.reshape(*shape, -1, 32)


def _q6_k_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 210)
    # Each half of a block: 64 bytes with the low four bits of inputs 0 to 63, then 64 to 127, and
    # 32 bytes with two high bits of inputs i, 32 + i, 64 + i and 96 + i.
    high = _two_bits(blocks[..., 128:192])
    low = nibbles(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64)).reshape(high.shape)
    return _signed(low | (high << _FOUR), 32)


def _q6_k_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 210)
    return _product(halves(blocks, 208), words(blocks, 192, 208, np.int8))


def _q2_k_codes(rows: Bytes) -> Codes:
    return _signed(_two_bits(blocks_of(rows, 84)[..., 16:80]), 0)


def _q2_k_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 84)
    return _product(halves(blocks, 80), blocks[..., :16] & 0x0F)


def _q2_k_mins(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 84)
    return _product(-halves(blocks, 82), blocks[..., :16] >> _FOUR)


def _q3_k_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 110)
    third = _bits_of_groups(blocks, 0, 32) << np.uint8(2)
    return _signed(_two_bits(blocks[..., 32:96]) | third, 4)


def _q3_k_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 110)
    low = nibbles(blocks[..., 96:104])
    high = _two_bits_of_four(blocks[..., 104:108])
    integers = (low | (high << _FOUR)).astype(np.int8) - np.int8(32)
    return _product(halves(blocks, 108), integers)


def _two_bits_of_four(packed: Bytes) -> Bytes:
    """Likewise of 4 bytes: [n, blocks, 16]."""
    bits = (packed[..., np.newaxis, :] >> _TWO_BITS) & np.uint8(3)
    return bits.reshape(*packed.shape[:2], 16)


def _iq4_xs_scales(rows: Bytes) -> Floats:
    blocks = blocks_of(rows, 136)
    low = nibble_pairs(blocks[..., 4:8])
    high = (words(blocks, 2, 4, np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    integers = (low | (high.astype(np.uint8) << _FOUR)).astype(np.int8) - np.int8(32)
    return _product(halves(blocks, 0), integers)


def _per_block(block_bytes: int, at: int) -> Callable[[Bytes], Floats]:
    """The float16 of each block of 256, once for each of its eight groups."""
    return lambda rows: np.repeat(halves(blocks_of(rows, block_bytes), at), 8, axis=1)


def _ternary(digits: Bytes) -> Bytes:
    """-1, 0 and 1, stored as 0, 1 and 2, as codes that mean code - 8."""
    return pack(digits + np.uint8(7))


def _tq2_0_codes(rows: Bytes) -> Codes:
    return _ternary(_two_bits(blocks_of(rows, 66)[..., :64]))


def _base_3(packed: Bytes, num_digits: int) -> Bytes:
    """The first digits of bytes, each a fraction of 256 in base 3: [n, blocks, digits * bytes]."""
    shifted = packed[..., np.newaxis, :] * _POWERS_OF_3[:num_digits]
    digits = (shifted.astype(np.uint16) * 3) >> 8
    return digits.astype(np.uint8).reshape(*packed.shape[:2], -1)


def _tq1_0_codes(rows: Bytes) -> Codes:
    blocks = blocks_of(rows, 54)
    runs = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    parts = [_base_3(blocks[..., begin:end], digits) for begin, end, digits in runs]
    return _ternary(np.concatenate(parts, axis=-1))


# -- blocks of 64


@functools.cache
def _e4m3_halves() -> Floats:
    """Half of each unsigned 8-bit float."""
    every = np.arange(256, dtype=np.uint8)
    return np.asarray(import_gguf().quants.NVFP4.ue4m3_to_fp32(every), dtype=np.float32)


def _nvfp4_scales(rows: Bytes) -> Floats:
    return per_group(_e4m3_halves()[blocks_of(rows, 36)[..., :4]])


BLOCK_TYPES = {
    "Q4_0": IntegerType(4, _packed_nibbles(18, 2, 16), _halves_at(18, 0)),
    "Q4_1": IntegerType(4, _packed_nibbles(20, 4, 16), _halves_at(20, 0), _halves_at(20, 2)),
    "Q5_0": IntegerType(8, _q5_0_codes, _halves_at(22, 0)),
    "Q5_1": IntegerType(8, _q5_1_codes, _halves_at(24, 0), _halves_at(24, 2)),
    "Q8_0": IntegerType(8, _q8_0_codes, _halves_at(34, 0)),
    "Q2_K": IntegerType(8, _q2_k_codes, _q2_k_scales, _q2_k_mins, group=16),
    "Q3_K": IntegerType(8, _q3_k_codes, _q3_k_scales, group=16),
    "Q4_K": IntegerType(4, _packed_nibbles(144, 16, 32), _k_scales_at(144), _k_mins_at(144)),
    "Q5_K": IntegerType(8, _q5_k_codes, _k_scales_at(176), _k_mins_at(176)),
    "Q6_K": IntegerType(8, _q6_k_codes, _q6_k_scales, group=16),
    "IQ4_NL": IntegerType(4, _packed_nibbles(18, 2, 16), _halves_at(18, 0), table=_NL),
    "IQ4_XS": IntegerType(4, _packed_nibbles(136, 8, 16), _iq4_xs_scales, table=_NL),
    "MXFP4": IntegerType(4, _packed_nibbles(17, 1, 16), _mxfp4_scales, table=_E2M1),
    "NVFP4": IntegerType(4, _packed_nibbles(36, 4, 8), _nvfp4_scales, table=_E2M1, group=16),
    "TQ1_0": IntegerType(4, _tq1_0_codes, _per_block(54, 52)),
    "TQ2_0": IntegerType(4, _tq2_0_codes, _per_block(66, 64)),
}
