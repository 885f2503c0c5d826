"""Writes safetensors files tensor by tensor, so that a model is never held whole in memory.

Format: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape,
data_offsets), then the tensors' bytes without gaps. https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

MAX_SHARD_BYTES = 4 * 10**9

_ITEM_BYTES = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """One tensor to write. `chunks` makes its bytes, row-major, when its turn comes."""

    name: str
    dtype: str  # as safetensors spells it: "F32", "BF16"
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[npt.NDArray[np.generic]]]

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return _ITEM_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.item_bytes


def float32_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of `values` as bfloat16, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    lowest_kept_bit = (bits >> np.uint32(16)) & np.uint32(1)
    # Adding just under half of the last kept bit, plus one when that bit is odd, carries into it
    # exactly where rounding goes up. Infinity has a zero mantissa and passes unchanged.
    rounded: npt.NDArray[np.uint16]
    rounded = ((bits + (np.uint32(0x7FFF) + lowest_kept_bit)) >> np.uint32(16)).astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():
        quiet = (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(0x0040)
        rounded = np.where(is_nan, quiet, rounded)
    return rounded


def write_checkpoint(
    directory: Path, specs: Sequence[TensorSpec], on_bytes: Callable[[int], None]
) -> None:
    """Writes `model.safetensors`, or shards of up to MAX_SHARD_BYTES and their index."""
    shards = list(_split(specs, MAX_SHARD_BYTES))
    if len(shards) == 1:
        write_shard(directory / "model.safetensors", shards[0], on_bytes)
        return
    names = shard_names(len(shards))
    for name, shard in zip(names, shards, strict=True):
        write_shard(directory / name, shard, on_bytes)
    weight_map = {
        spec.name: name for name, shard in zip(names, shards, strict=True) for spec in shard
    }
    write_index(directory, weight_map, sum(spec.num_bytes for spec in specs))


def shard_names(num_shards: int) -> list[str]:
    """File names of a checkpoint in `num_shards` files, as Hugging Face numbers them."""
    return [f"model-{i:05d}-of-{num_shards:05d}.safetensors" for i in range(1, num_shards + 1)]


def write_index(directory: Path, weight_map: dict[str, str], total_bytes: int) -> None:
    """Writes `model.safetensors.index.json`. `weight_map`: tensor name -> file name."""
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_shard(
    path: Path, specs: Iterable[TensorSpec], on_bytes: Callable[[int], None] = lambda _: None
) -> None:
    """Writes one file and flushes it to the disk. `on_bytes` hears of every chunk written."""
    # Wide items first keeps every tensor aligned to its own item size.
    ordered = sorted(specs, key=lambda spec: -spec.item_bytes)
    with path.open("wb") as out:
        out.write(_header(ordered))
        for spec in ordered:
            written = 0
            for chunk in spec.chunks():
                written += out.write(np.ascontiguousarray(chunk).view(np.uint8).data)
                on_bytes(chunk.nbytes)
            if written != spec.num_bytes:
                raise RuntimeError(f"{spec.name}: wrote {written} of {spec.num_bytes} bytes")
        out.flush()
        os.fsync(out.fileno())


def _header(specs: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.num_bytes],
        }
        offset += spec.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def _split(specs: Sequence[TensorSpec], max_bytes: int) -> Iterator[list[TensorSpec]]:
    shard: list[TensorSpec] = []
    shard_bytes = 0
    for spec in specs:
        if shard and shard_bytes + spec.num_bytes > max_bytes:
            yield shard
            shard, shard_bytes = [], 0
        shard.append(spec)
        shard_bytes += spec.num_bytes
    yield shard
