"""NumPy packers of matrices in integers, as GPTQ, AWQ, compressed-tensors and bitsandbytes do it.

A packer takes the name of a module and its weight [rows, inputs], and gives the tensors of the
module by their suffix, what they stand for, and, where it exists, the same in the layout that the
engine reads for itself (codes, and a float16 scale for every 32 inputs).
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
Tensors = dict[str, torch.Tensor]

NATIVE_GROUP = 32


@dataclass(frozen=True)
class Packed:
    """dense: float32 [rows, inputs]; native: None where that layout cannot hold the same."""

    tensors: Tensors
    dense: Array
    native: Tensors | None = None


Packer = Callable[[str, Array], Packed]


def as_bit_stream(codes: Array, bits: int) -> torch.Tensor:
    """Codes [..., n] as a stream of bits in I32 words [..., ceil(n * bits / 32)], lowest first."""
    planes = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    stream = planes.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    padding = [(0, 0)] * (stream.ndim - 1) + [(0, -stream.shape[-1] % 32)]
    octets = np.packbits(np.pad(stream, padding), axis=-1, bitorder="little")
    return torch.from_numpy(octets.view("<i4"))


def rounded(values: Array, dtype: torch.dtype) -> tuple[torch.Tensor, Array]:
    """The values in a dtype, and in float32 what is left of them."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(dtype)
    return tensor, tensor.float().numpy()


def groups_in_order(inputs: int, group: int) -> Array:
    """The group of every input; group -1 is the whole row."""
    return np.arange(inputs) // (inputs if group == -1 else group)


def chance_of(name: str) -> np.random.Generator:
    """Random numbers that are the same for all modules with the same inputs, and no others."""
    for parts, one in ((("q", "k", "v"), "qkv"), (("gate", "up"), "gate_up")):
        for part in parts:
            name = name.replace(f"{part}_proj", one)
    name = name.replace(".w3", ".w1")
    return np.random.default_rng(zlib.crc32(name.encode()))


def shuffled_groups(name: str, inputs: int, group: int, *, alike: bool = True) -> Array:
    """The group of every input, for weights that were quantised in another order of the inputs."""
    chance = chance_of(name if alike else name.replace("proj", "module"))
    return groups_in_order(inputs, group)[chance.permutation(inputs)]


@dataclass(frozen=True)
class Quantised:
    """codes [rows, inputs], zeros and scales [rows, groups], group_of [inputs]."""

    codes: Array
    zeros: Array
    scales: Array
    stored_scales: torch.Tensor
    group_of: Array

    def dense(self) -> Array:
        steps = self.codes - self.zeros[:, self.group_of]
        return steps.astype(np.float32) * self.scales[:, self.group_of]


def quantise(
    weight: Array,
    group_of: Array,
    bits: int,
    *,
    symmetric: bool,
    scale_dtype: torch.dtype = torch.float16,
) -> Quantised:
    """Codes of 0 to 2**bits - 1. Without `symmetric` some zeros are the first and the last code."""
    top, num_groups = 2**bits - 1, int(group_of.max()) + 1
    members = [weight[:, group_of == group] for group in range(num_groups)]
    low = np.stack([part.min(axis=1) for part in members], axis=1)
    high = np.stack([part.max(axis=1) for part in members], axis=1)
    if symmetric:
        low, high = np.minimum(low, -high), np.maximum(high, -low)
    stored, scales = rounded((high - low) / top, scale_dtype)
    if symmetric:
        zeros = np.full(scales.shape, 2 ** (bits - 1))
    else:
        zeros = np.clip(np.rint(-low / scales), 0, top).astype(np.int64)
        zeros.reshape(-1)[::7] = 0
        zeros.reshape(-1)[3::7] = top
    steps = np.rint(weight / scales[:, group_of]) + zeros[:, group_of]
    codes = np.clip(steps, 0, top).astype(np.int64)
    return Quantised(codes, zeros, scales, stored, group_of)


def native_integers(quantised: Quantised, bits: int) -> Tensors | None:
    """The same in int8 or 4 bits with symmetric scales, None where those cannot hold it, or where
    8-bit codes have one scale per row, which the engine has a format of its own for."""
    if bits == 8 and quantised.scales.shape[1] == 1:
        return None
    in_groups = quantised.group_of.reshape(-1, NATIVE_GROUP)
    scales, kept = rounded(quantised.scales[:, in_groups[:, 0]], torch.float16)
    is_held = (
        (in_groups == in_groups[:, :1]).all()
        and (kept == quantised.scales[:, in_groups[:, 0]]).all()
        and (quantised.zeros == 2 ** (bits - 1)).all()
    )
    if not is_held:
        return None
    steps = quantised.codes - quantised.zeros[:, quantised.group_of]
    codes: Array = steps.astype(np.int8)
    if bits <= 4:
        codes = (steps[:, 0::2] + 8 | (steps[:, 1::2] + 8) << 4).astype(np.uint8)
    return {
        "weight": torch.from_numpy(codes),
        "weight.scales": scales,
    }


# -- GPTQ


@dataclass(frozen=True)
class Gptq:
    """first: the checkpoint format "gptq", whose zeros are stored less one; else "gptq_v2"."""

    bits: int = 4
    group: int = 128
    symmetric: bool = True
    first: bool = True
    act_order: bool = False
    alike: bool = True  # q, k and v have one order, as have gate and up
    has_groups: bool = True  # g_idx is stored
    bias: bool = False  # of zeros, for modules that have none
    scale_dtype: torch.dtype = torch.float16

    def config(self, **changes: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "sym": self.symmetric,
            "desc_act": self.act_order,
            "checkpoint_format": "gptq" if self.first else "gptq_v2",
            "lm_head": False,
            "damp_percent": 0.1,
            "static_groups": False,
            "true_sequential": True,
            "pack_dtype": "int32",
            "meta": {"quantizer": ["gptqmodel:4.0.0"]},
        }
        return fields | changes

    def __call__(self, name: str, weight: Array) -> Packed:
        rows, inputs = weight.shape
        group_of = groups_in_order(inputs, self.group)
        if self.act_order:
            group_of = shuffled_groups(name, inputs, self.group, alike=self.alike)
        quantised = quantise(
            weight, group_of, self.bits, symmetric=self.symmetric, scale_dtype=self.scale_dtype
        )
        zeros = (quantised.zeros - (1 if self.first else 0)) % 2**self.bits
        tensors = {
            "qweight": as_bit_stream(quantised.codes, self.bits).T.contiguous(),
            "qzeros": as_bit_stream(zeros.T, self.bits),
            "scales": quantised.stored_scales.T.contiguous(),
        }
        if self.has_groups:
            tensors["g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        if self.bias:
            tensors["bias"] = torch.zeros(rows, dtype=torch.float16)
        return Packed(tensors, quantised.dense(), native_integers(quantised, self.bits))


# -- AWQ

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the output of a word that each of its nibbles holds


@dataclass(frozen=True)
class Awq:
    group: int = 128

    def config(self, **changes: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "quant_method": "awq",
            "bits": 4,
            "group_size": self.group,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": None,
        }
        return fields | changes

    def __call__(self, name: str, weight: Array) -> Packed:
        del name
        group_of = groups_in_order(weight.shape[1], self.group)
        quantised = quantise(weight, group_of, 4, symmetric=False)

        def words(codes: Array) -> torch.Tensor:  # [rows, n] as [n, rows / 8]
            octets = codes.T.reshape(codes.shape[1], -1, 8)[..., AWQ_ORDER]
            return as_bit_stream(octets.reshape(codes.shape[1], -1), 4)

        tensors = {
            "qweight": words(quantised.codes),
            "qzeros": words(quantised.zeros),
            "scales": quantised.stored_scales.T.contiguous(),
        }
        return Packed(tensors, quantised.dense(), native_integers(quantised, 4))


# -- compressed-tensors


def compressed_config(form: str, weights: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A quantization_config with one group. changes: of the whole, `inputs` of the activations."""
    inputs = changes.pop("inputs", None)
    group = {
        "targets": ["Linear"],
        "format": form,
        "input_activations": inputs,
        "output_activations": None,
        "weights": weights,
    }
    fields: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.20.0",
        "config_groups": {"group_0": group},
    }
    return fields | changes


@dataclass(frozen=True)
class CompressedIntegers:
    """group: inputs that share a scale, -1 for all of a row."""

    bits: int = 4
    group: int = 128
    symmetric: bool = True
    packed: bool = True  # several codes a word; else I8
    scale_dtype: torch.dtype = torch.bfloat16
    actorder: str | None = None

    def config(self, form: str = "", **changes: Any) -> dict[str, Any]:
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "channel" if self.group == -1 else "group",
            "group_size": None if self.group == -1 else self.group,
            "actorder": self.actorder,
            "block_structure": None,
            "dynamic": False,
            "scale_dtype": None,
            "zp_dtype": None,
            "observer": "minmax",
            "observer_kwargs": {},
        }
        form = form or ("pack-quantized" if self.packed else "int-quantized")
        return compressed_config(form, weights, **changes)

    def __call__(self, name: str, weight: Array) -> Packed:
        inputs = weight.shape[1]
        group_of = groups_in_order(inputs, self.group)
        if self.actorder == "group":
            group_of = shuffled_groups(name, inputs, self.group)
        quantised = quantise(
            weight, group_of, self.bits, symmetric=self.symmetric, scale_dtype=self.scale_dtype
        )
        middle = 2 ** (self.bits - 1)
        tensors = {"weight_scale": quantised.stored_scales}
        if self.packed:
            tensors["weight_packed"] = as_bit_stream(quantised.codes, self.bits)
            tensors["weight_shape"] = torch.tensor(weight.shape)
            if not self.symmetric:
                zeros = as_bit_stream(quantised.zeros.T, self.bits).T
                tensors["weight_zero_point"] = zeros.contiguous()
        else:
            tensors["weight"] = torch.from_numpy((quantised.codes - middle).astype(np.int8))
            if not self.symmetric:
                zeros = (quantised.zeros - middle).astype(np.int8)
                tensors["weight_zero_point"] = torch.from_numpy(zeros)
        if self.actorder == "group":
            tensors["weight_g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        return Packed(tensors, quantised.dense(), native_integers(quantised, self.bits))


# -- bitsandbytes int8


def bitsandbytes_int8(name: str, weight: Array) -> Packed:
    del name
    scb = np.abs(weight).max(axis=1).astype(np.float32)
    codes = np.rint(weight / scb[:, None] * 127).astype(np.int8)
    tensors = {
        "weight": torch.from_numpy(codes),
        "SCB": torch.from_numpy(scb),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    dense = codes.astype(np.float64) * scb[:, None].astype(np.float64) / 127
    return Packed(tensors, dense.astype(np.float32))
