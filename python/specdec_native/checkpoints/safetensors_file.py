"""Reads safetensors files without holding them in memory, and without another package.

Values come as they are stored; bfloat16 and 8-bit floats, which numpy does not have, as the bits of
each value.
The format is in safetensors_writer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.layout import safetensors_files
from specdec_native.checkpoints.safetensors_writer import TensorSpec, float32_to_bfloat16

_NUMPY_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file. `begin` is the offset of its first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * np.dtype(_NUMPY_TYPES[self.dtype]).itemsize

    def values(self) -> npt.NDArray[Any]:
        """All values, read from the disk as they are used; bfloat16 as uint16 bits."""
        dtype = np.dtype(_NUMPY_TYPES[self.dtype])
        if math.prod(self.shape) == 0:
            return np.zeros(self.shape, dtype)
        return np.memmap(self.file, dtype, "r", self.begin, self.shape)

    @property
    def is_float(self) -> bool:
        """Whether its values are floating-point numbers of 16 bits or more."""
        return self.dtype in _FLOATS

    def as_float32(self, rows: slice) -> npt.NDArray[np.float32]:
        """Some rows. Raises CheckpointError."""
        self._check_float()
        values = self.values()[rows]
        if self.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)

    def as_bfloat16(self, rows: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.uint16]:
        """The bits of all values, or of some rows, in bfloat16. Raises CheckpointError."""
        self._check_float()
        values = self.values()
        if rows is not None:
            values = values[rows]
        if self.dtype == "BF16":
            return np.ascontiguousarray(values, np.uint16)
        return float32_to_bfloat16(values.astype(np.float32))

    def _check_float(self) -> None:
        if not self.is_float:
            raise CheckpointError(
                f"tensor {self.name!r} is {self.dtype}, not floating point", self.file
            )


def open_file(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name. Raises CheckpointError for one that is damaged."""
    try:
        size = file.stat().st_size
        with file.open("rb") as source:
            length = int.from_bytes(source.read(8), "little")
            if not 0 < length <= min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError("its header is longer than the file")
            header = json.loads(source.read(length))
        header.pop("__metadata__", None)
        return {
            name: _tensor(name, entry, file, 8 + length, size) for name, entry in header.items()
        }
    except OSError as fault:
        raise CheckpointError(f"cannot be read ({fault.strerror})", file) from fault
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise CheckpointError(f"is no whole safetensors file ({fault})", file) from fault


def open_checkpoint(directory: Path) -> dict[str, StoredTensor]:
    """The tensors of all safetensors files of a directory. Raises CheckpointError."""
    tensors: dict[str, StoredTensor] = {}
    for file in safetensors_files(directory):
        tensors |= open_file(file)
    return tensors


def spec_of(name: str, dtype: str, values: npt.NDArray[Any]) -> TensorSpec:
    """A tensor to write with these values; bfloat16 values are given as their bits."""

    def chunks() -> Iterator[npt.NDArray[np.generic]]:
        yield values

    return TensorSpec(name, dtype, tuple(values.shape), chunks)


def _tensor(name: str, entry: dict[str, Any], file: Path, start: int, size: int) -> StoredTensor:
    shape: Sequence[int] = entry["shape"]
    begin, end = entry["data_offsets"]
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"tensor {name!r} has a wrong shape or place")
    item_bytes = np.dtype(_NUMPY_TYPES[entry["dtype"]]).itemsize
    if end - begin != math.prod(shape) * item_bytes or start + end > size:
        raise ValueError(f"tensor {name!r} reaches past its end")
    return StoredTensor(name, entry["dtype"], tuple(shape), file, start + begin)
