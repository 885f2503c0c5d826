"""Tensors of layers that keep a state, which GGUF files have otherwise than Hugging Face does.

Rates of decays, -exp(A_log), are stored as such. A_log is found again so that its exponential in
float32, which the core computes, is the stored rate, wherever a float32 has that exponential, as
each has that a file was made from. Otherwise the rate is off by one rounding.

Qwen3.5's heads of values are reordered: those of key head g of n are g, g + n, g + 2n, ..., and in
Hugging Face they are neighbours.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_file import GgufTensor

_LAYER = re.compile(r"blk\.\d+\.")
_Floats = npt.NDArray[np.float32]
_Order = npt.NDArray[np.intp]
_Change = Callable[[_Floats], _Floats]


def recurrent_tensors(tensor: GgufTensor, config: dict[str, Any]) -> Iterator[GgufTensor]:
    """LFM2's and Granite's: the tensor as Hugging Face has it, under its name in the file."""
    del config
    part = _part(tensor)
    if part in ("shortconv.conv.weight", "ssm_conv1d.weight"):
        yield _conv(tensor)
    elif part == "ssm_a":
        yield _vector(tensor, _log_of_rates(tensor))
    elif part in ("ssm_d", "ssm_dt.bias", "ssm_norm.weight"):
        yield _vector(tensor)
    else:
        yield tensor


def delta_tensors(tensor: GgufTensor, config: dict[str, Any]) -> Iterator[GgufTensor]:
    """Qwen3-Next's, likewise. Those that hold several projections become several tensors, which
    have their names in files of Qwen3.5."""
    heads = _Heads.of(config)
    part, prefix = _part(tensor), _prefix(tensor)
    if part == "ssm_in.weight":  # of older files: q, k, v and z of each key head
        keys, values = heads.key_dim, heads.per_key * heads.value_dim
        q, k, v, z = _parts_of_heads(tensor, heads.num_keys, (keys, keys, values, values))
        yield _renamed(tensor.picked(np.concatenate([q, k, v])), f"{prefix}attn_qkv.weight")
        yield _renamed(tensor.picked(z), f"{prefix}attn_gate.weight")
    elif part == "ssm_ba.weight":
        b, a = _parts_of_heads(tensor, heads.num_keys, (heads.per_key, heads.per_key))
        yield _renamed(tensor.picked(b), f"{prefix}ssm_beta.weight")
        yield _renamed(tensor.picked(a), f"{prefix}ssm_alpha.weight")
    else:
        yield from recurrent_tensors(tensor, config)


def tiled_delta_tensors(tensor: GgufTensor, config: dict[str, Any]) -> Iterator[GgufTensor]:
    """Qwen3.5's, likewise, with heads of values in Hugging Face's order."""
    heads = _Heads.of(config)
    part = _part(tensor)
    if heads.per_key == 1:
        pass
    elif part in ("attn_qkv.weight", "ssm_conv1d.weight"):
        num_keys = 2 * heads.num_keys * heads.key_dim
        values = heads.in_order(heads.value_dim)
        _require_rows(tensor, num_keys + len(values))
        tensor = tensor.picked(np.concatenate([np.arange(num_keys), num_keys + values]))
    elif part in ("attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight", "ssm_dt.bias"):
        order = heads.in_order(heads.value_dim if part == "attn_gate.weight" else 1)
        _require_rows(tensor, len(order))
        tensor = tensor.picked(order)
    elif part == "ssm_a":
        order = heads.in_order(1)
        _require_rows(tensor, len(order))
        tensor = tensor.picked(order)
    elif part == "ssm_out.weight":
        tensor = _with_input_blocks(tensor, heads)
    yield from recurrent_tensors(tensor, config)


@dataclasses.dataclass(frozen=True)
class _Heads:
    """The heads of a Gated DeltaNet."""

    num_keys: int
    per_key: int  # heads of values
    key_dim: int
    value_dim: int

    @staticmethod
    def of(config: dict[str, Any]) -> _Heads:
        num_keys = config["linear_num_key_heads"]
        return _Heads(
            num_keys,
            config["linear_num_value_heads"] // num_keys,
            config["linear_key_head_dim"],
            config["linear_value_head_dim"],
        )

    def in_order(self, width: int) -> _Order:
        """Which stored values come first, of vectors with `width` of them for each value head."""
        shape = (self.per_key, self.num_keys, width)
        return np.arange(math.prod(shape)).reshape(shape).swapaxes(0, 1).reshape(-1)


def _part(tensor: GgufTensor) -> str:
    """The name without the layer."""
    return _LAYER.sub("", tensor.name, count=1)


def _prefix(tensor: GgufTensor) -> str:
    return tensor.name.removesuffix(_part(tensor))


def _renamed(tensor: GgufTensor, name: str) -> GgufTensor:
    return dataclasses.replace(tensor, name=name)


def _conv(tensor: GgufTensor) -> GgufTensor:
    """Weights [channels, width], as a convolution of one channel each has them."""
    if len(tensor.shape) != 2:
        raise _error(tensor, f"has {len(tensor.shape)} axes, expected two")
    channels, width = tensor.shape
    return dataclasses.replace(tensor, shape=(channels, 1, width), change=_unchanged)


def _unchanged(values: _Floats) -> _Floats:
    return values


def _vector(tensor: GgufTensor, change: _Change = _unchanged) -> GgufTensor:
    """Values of whatever axes, behind each other."""
    shape = (math.prod(tensor.shape),)
    return dataclasses.replace(tensor, shape=shape, change=change)


def _log_of_rates(tensor: GgufTensor) -> _Change:
    def change(rates: _Floats) -> _Floats:
        if not (np.isfinite(rates) & (rates < 0)).all():
            raise _error(tensor, "has a value that is no finite number below 0, as -exp(A_log) is")
        return logarithms(-rates)

    return change


def logarithms(values: _Floats) -> _Floats:
    """Of each value the float32 whose exponential in float32 is the value, or nearest to it."""
    best = np.log(values.astype(np.float64)).astype(np.float32)
    for direction in (-np.inf, np.inf):
        other = np.nextafter(best, np.float32(direction))
        is_nearer = np.abs(_exp(other) - values) < np.abs(_exp(best) - values)
        best = np.where(is_nearer, other, best)
    return best


def _exp(values: _Floats) -> _Floats:
    return np.exp(values.astype(np.float64)).astype(np.float32)


def _parts_of_heads(tensor: GgufTensor, num_heads: int, sizes: tuple[int, ...]) -> list[_Order]:
    """The rows of each part of all heads, where a head has so many of each, one after the other."""
    _require_rows(tensor, num_heads * sum(sizes))
    rows = np.arange(tensor.shape[0]).reshape(num_heads, -1)
    return [part.reshape(-1) for part in np.split(rows, np.cumsum(sizes)[:-1], axis=1)]


def _with_input_blocks(tensor: GgufTensor, heads: _Heads) -> GgufTensor:
    width = heads.per_key * heads.num_keys * heads.value_dim
    if len(tensor.shape) != 2 or tensor.shape[1] != width:
        raise _error(tensor, f"has the shape {tensor.shape}, expected {width} columns")
    return dataclasses.replace(tensor, input_blocks=(heads.per_key, heads.num_keys))


def _require_rows(tensor: GgufTensor, count: int) -> None:
    if tensor.shape[0] != count:
        raise _error(tensor, f"has {tensor.shape[0]} rows, expected {count}")


def _error(tensor: GgufTensor, message: str) -> CheckpointError:
    return CheckpointError(f"tensor {tensor.name} {message}", tensor.data.path)
