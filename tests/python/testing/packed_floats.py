"""NumPy packers of matrices in 8-bit and 4-bit floats, as compressed-tensors, ModelOpt and
bitsandbytes do it. See packed_integers.py.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from packed_integers import Array, Packed, Tensors, compressed_config, rounded

# Floats of 4 bits (e2m1) by code.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _e4m3_values() -> Array:
    codes = np.arange(256)
    exponent, fraction = (codes >> 3) & 15, (codes & 7) / 8
    size = np.where(exponent > 0, 2.0 ** (exponent - 7) * (1 + fraction), 2.0**-6 * fraction)
    values = np.where(codes < 128, size, -size)
    values[[0x7F, 0xFF]] = np.nan
    return values


E4M3 = _e4m3_values()


def nearest(values: Array, table: Array) -> Array:
    """The code of a table whose value is nearest to each of the values, as uint8."""
    known = np.flatnonzero(np.isfinite(table))
    order = known[np.argsort(table[known], kind="stable")]
    middles = (table[order][1:] + table[order][:-1]) / 2
    return order[np.searchsorted(middles, values)].astype(np.uint8)


def as_e4m3(codes: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(codes)).view(torch.float8_e4m3fn)


def in_nibbles(codes: Array) -> torch.Tensor:
    """Codes [rows, inputs] in U8 [rows, inputs / 2], the even input in the low half."""
    return torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4)


def blocks_of(weight: Array, size: int) -> Array:
    """[rows, blocks, size] in double precision."""
    return weight.astype(np.float64).reshape(weight.shape[0], -1, size)


def _dense(table: Array, codes: Array, scales: Array) -> Array:
    """codes [rows, blocks, size], scales [rows, blocks]."""
    values = table[codes] * scales[..., None]
    return values.reshape(len(codes), -1).astype(np.float32)


# -- NVFP4 and the MX formats


def nvfp4(weight: Array) -> tuple[Array, Array, float]:
    """Codes [rows, blocks, 16], e4m3 codes of scales [rows, blocks], and what multiplies those."""
    blocks = blocks_of(weight, 16)
    factor = float(np.float32(np.abs(blocks).max() / (6 * 448)))
    scales = nearest(np.abs(blocks).max(axis=2) / 6 / factor, E4M3)
    sizes = np.maximum(E4M3[scales], 2.0**-9)
    return nearest(blocks / (sizes * factor)[..., None], E2M1), scales, factor


def compressed_nvfp4(name: str, weight: Array) -> Packed:
    del name
    codes, scales, factor = nvfp4(weight)
    divisor = np.float32(1 / factor)
    tensors = {
        "weight_packed": in_nibbles(codes.reshape(weight.shape)),
        "weight_scale": as_e4m3(scales),
        "weight_global_scale": torch.tensor([divisor]),
        "input_global_scale": torch.tensor([3.0]),
    }
    return Packed(tensors, _dense(E2M1, codes, E4M3[scales] / float(divisor)))


def modelopt_nvfp4(name: str, weight: Array) -> Packed:
    del name
    codes, scales, factor = nvfp4(weight)
    tensors = {
        "weight": in_nibbles(codes.reshape(weight.shape)),
        "weight_scale": as_e4m3(scales),
        "weight_scale_2": torch.tensor(factor),
        "input_scale": torch.tensor(0.25),
    }
    return Packed(tensors, _dense(E2M1, codes, E4M3[scales] * factor))


def _exponents(blocks: Array, largest: float) -> Array:
    """Of the smallest powers of two that bring every block below `largest`: U8, bias 127."""
    exponents: Array = np.ceil(np.log2(np.abs(blocks).max(axis=2) / largest)) + 127
    return exponents.astype(np.uint8)


def mxfp4(name: str, weight: Array) -> Packed:
    del name
    blocks = blocks_of(weight, 32)
    exponents = _exponents(blocks, 6)
    scales = 2.0 ** (exponents.astype(np.float64) - 127)
    codes = nearest(blocks / scales[..., None], E2M1)
    tensors = {
        "weight_packed": in_nibbles(codes.reshape(weight.shape)),
        "weight_scale": torch.from_numpy(exponents),
    }
    return Packed(tensors, _dense(E2M1, codes, scales))


def mxfp8(name: str, weight: Array) -> Packed:
    del name
    blocks = blocks_of(weight, 32)
    exponents = _exponents(blocks, 448)
    scales = 2.0 ** (exponents.astype(np.float64) - 127)
    codes = nearest(blocks / scales[..., None], E4M3)
    tensors = {
        "weight": as_e4m3(codes.reshape(weight.shape)),
        "weight_scale": torch.from_numpy(exponents),
    }
    return Packed(tensors, _dense(E4M3, codes, scales))


def compressed_floats(form: str, bits: int, group: int | None, **changes: Any) -> dict[str, Any]:
    """group: inputs that share a scale, None for a scale of the matrix."""
    strategies = {16: "tensor_group", 32: "group", None: "tensor"}
    weights = {
        "num_bits": bits,
        "type": "float",
        "symmetric": True,
        "strategy": strategies[group],
        "group_size": group,
        "dynamic": False,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    return compressed_config(form, weights, **changes)


# -- 8-bit floats with a scale of the matrix


def fp8(weight: Array) -> tuple[Array, float]:
    scale = float(np.float32(np.abs(weight).max() / 448))
    return nearest(weight.astype(np.float64) / scale, E4M3), scale


def naive_fp8(name: str, weight: Array) -> Packed:
    del name
    codes, scale = fp8(weight)
    tensors = {"weight": as_e4m3(codes), "weight_scale": torch.tensor([scale])}
    return Packed(tensors, (E4M3[codes] * scale).astype(np.float32))


def modelopt_fp8(name: str, weight: Array) -> Packed:
    codes, scale = fp8(weight)
    tensors = {
        "weight": as_e4m3(codes),
        "weight_scale": torch.tensor(scale),
        "input_scale": torch.tensor(0.25),
    }
    for part in ("k", "v"):
        if name.endswith(f"{part}_proj"):
            tensors[f"{part}_scale"] = torch.tensor(0.5)
    return Packed(tensors, (E4M3[codes] * scale).astype(np.float32))


def modelopt_fp8_rows(name: str, weight: Array) -> Packed:
    """A scale for each output."""
    del name
    rows = [fp8(row) for row in weight]
    codes = np.stack([row for row, _ in rows])
    scales = np.array([scale for _, scale in rows], np.float32)
    tensors = {"weight": as_e4m3(codes), "weight_scale": torch.from_numpy(scales)}
    return Packed(tensors, (E4M3[codes] * scales[:, None]).astype(np.float32))


def modelopt_config(algorithm: str, **changes: Any) -> dict[str, Any]:
    """As config.json has it."""
    fields: dict[str, Any] = {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.33.0"},
    }
    if "NVFP4" in algorithm:
        fields["group_size"] = 16
    return fields | changes


def modelopt_file(algorithm: str) -> dict[str, Any]:
    """As hf_quant_config.json has it."""
    return {
        "producer": {"name": "modelopt", "version": "0.21.0"},
        "quantization": {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": "FP8",
            "group_size": 16 if "NVFP4" in algorithm else None,
            "exclude_modules": ["lm_head"],
        },
    }


# -- bitsandbytes, 4 bits

BLOCK, NESTED_BLOCK = 64, 256
NF4 = np.array(
    [
        -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1,
    ],
    dtype=np.float32,
)  # fmt: skip
_SIZES = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], dtype=np.float32) / np.float32(12)
FP4 = np.concatenate([_SIZES, -_SIZES])
# Of the 256 codes of scales; a tool's own map is in the file, so any will do.
NESTED_MAP = (np.sign(_LINE := np.linspace(-1, 1, 256)) * _LINE**2).astype(np.float32)


@dataclass(frozen=True)
class Bitsandbytes4:
    kind: str = "nf4"
    nested: bool = False  # scales are quantised, too
    dtype: torch.dtype = torch.float32
    storage: torch.dtype = torch.uint8

    def config(self, **changes: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "quant_method": "bitsandbytes",
            "_load_in_4bit": True,
            "_load_in_8bit": False,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": self.kind,
            "bnb_4bit_use_double_quant": self.nested,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": str(self.storage).removeprefix("torch."),
            "llm_int8_enable_fp32_cpu_offload": False,
            "llm_int8_has_fp16_weight": False,
            "llm_int8_skip_modules": ["lm_head"],
            "llm_int8_threshold": 6.0,
        }
        return fields | changes

    def _absmax(self, sizes: Array, state: dict[str, Any]) -> tuple[Tensors, Array]:
        """The tensors of the scales of blocks, and in float32 what they stand for."""
        if not self.nested:
            return {"weight.absmax": torch.from_numpy(sizes)}, sizes
        offset = np.float32(sizes.mean())
        padded = np.pad(sizes - offset, (0, -len(sizes) % NESTED_BLOCK)).reshape(-1, NESTED_BLOCK)
        largest = np.abs(padded).max(axis=1)
        codes = nearest(padded / largest[:, None], NESTED_MAP).reshape(-1)[: len(sizes)]
        state |= {
            "nested_blocksize": NESTED_BLOCK,
            "nested_dtype": "float32",
            "nested_offset": float(offset),
        }
        tensors = {
            "weight.absmax": torch.from_numpy(codes),
            "weight.nested_absmax": torch.from_numpy(largest),
            "weight.nested_quant_map": torch.tensor(NESTED_MAP),
        }
        of_blocks = np.repeat(largest, NESTED_BLOCK)[: len(sizes)]
        return tensors, NESTED_MAP[codes] * of_blocks + offset

    def __call__(self, name: str, weight: Array) -> Packed:
        del name
        state: dict[str, Any] = {
            "quant_type": self.kind,
            "blocksize": BLOCK,
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(weight.shape),
        }
        table = NF4 if self.kind == "nf4" else FP4
        blocks = weight.astype(np.float32).reshape(-1, BLOCK)
        tensors, scales = self._absmax(np.abs(blocks).max(axis=1), state)
        codes = nearest(blocks / scales[:, None], table)
        flat = codes.reshape(-1)
        octets = torch.from_numpy(flat[0::2] << 4 | flat[1::2])  # the even one in the high half
        tensors["weight"] = octets.view(self.storage).reshape(-1, 1)
        tensors["weight.quant_map"] = torch.tensor(table)
        text = json.dumps(state).encode()
        tensors[f"weight.quant_state.bitsandbytes__{self.kind}"] = torch.tensor(
            list(text), dtype=torch.uint8
        )
        values = (table[codes] * scales[:, None]).reshape(weight.shape)
        return Packed(tensors, rounded(values, self.dtype)[1])
