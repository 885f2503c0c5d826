"""Reads a GGUF file: checked metadata, and tensors as numbers a few rows at a time."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_integers import INTEGER_TYPES, Integers, IntegerType
from specdec_native.checkpoints.layout import GGUF_MAGIC
from specdec_native.checkpoints.optional import import_optional

SUPPORTED_TENSOR_TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip

_HEADER_BYTES = 24
_CHUNK_ELEMENTS = 1 << 22  # 16 MiB as float32: large enough to vectorise, small beside any model


def import_gguf() -> Any:
    """The package that knows the encodings."""
    return import_optional("gguf", purpose="reading a GGUF file", extra="gguf")


class GgufTensor:
    """A tensor of a GGUF file, still in its own encoding and memory-mapped."""

    def __init__(self, name: str, type_name: str, data: npt.NDArray[Any], shape: tuple[int, ...]):
        self.name = name
        self.type_name = type_name
        self.shape = shape  # row-major: [out_features, in_features]
        self._data = data  # same rank; the last axis counts bytes where the type packs blocks

    def slice(self, index: int) -> GgufTensor:
        """Element `index` of the first axis, such as one expert's matrix."""
        return GgufTensor(
            f"{self.name}[{index}]", self.type_name, self._data[index], self.shape[1:]
        )

    @property
    def integer_type(self) -> IntegerType | None:
        """How the matrix is held in integers; None for floating point and other shapes."""
        return INTEGER_TYPES.get(self.type_name) if len(self.shape) == 2 else None

    def rows(self, order: npt.NDArray[np.intp] | None = None) -> Iterator[npt.NDArray[np.float32]]:
        """The values as float32, some rows at a time; `order` picks the rows, default all."""
        if len(self.shape) == 1:
            values = self._decode(self._data)
            yield values if order is None else values[order]
            return
        for rows in self._encoded_rows(order):
            yield self._decode(rows)

    def integers(self, order: npt.NDArray[np.intp] | None = None) -> Iterator[Integers]:
        """The rows of a matrix with an integer_type as integers, likewise."""
        kind = self.integer_type
        assert kind is not None
        for rows in self._encoded_rows(order):
            yield kind.read(np.ascontiguousarray(rows).view(np.uint8))

    def _encoded_rows(self, order: npt.NDArray[np.intp] | None) -> Iterator[npt.NDArray[Any]]:
        step = max(1, _CHUNK_ELEMENTS // math.prod(self.shape[1:]))
        for begin in range(0, self.shape[0], step):
            # A quantised block never crosses a row, so rows are picked before decoding.
            chosen: Any = slice(begin, begin + step)
            yield self._data[chosen if order is None else order[chosen]]

    def _decode(self, data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        gguf = import_gguf()
        values = gguf.dequantize(data, gguf.GGMLQuantizationType[self.type_name])
        return np.asarray(values, dtype=np.float32)


class GgufFile:
    """An open GGUF file. Every fault of the file is a CheckpointError that names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _open(path)
        self._fields = reader.fields
        self._values: dict[str, Any] = {}
        self.architecture = str(self.require("general.architecture"))
        if int(self.get("split.count", 0)) > 1:
            raise self.error(
                "this is one part of a GGUF split over several files; "
                "join them first (llama-gguf-split --merge)"
            )
        self.tensors = {str(tensor.name): self._tensor(tensor) for tensor in reader.tensors}

    def error(self, message: str) -> CheckpointError:
        """An error that names this file, to be raised."""
        return CheckpointError(message, self.path)

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata value `key`: a number, string, bool or list of these."""
        field = self._fields.get(key)
        if field is None:
            return default
        if key not in self._values:
            try:
                self._values[key] = field.contents()
            except (UnicodeDecodeError, IndexError, ValueError) as fault:
                raise self.error(f"metadata {key} is malformed: {fault}") from fault
        return self._values[key]

    def require(self, key: str) -> Any:
        """The metadata value `key`; CheckpointError if it is missing."""
        value = self.get(key)
        if value is None:
            raise self.error(f"metadata {key} is missing")
        return value

    def hyperparameter(self, key: str, default: Any = None) -> Any:
        """The metadata value `<architecture>.<key>`; one per layer must agree over the layers."""
        name = f"{self.architecture}.{key}"
        value = self.get(name, default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.error(f"metadata {name} differs between layers, which is not supported")
            value = value[0]
        return value

    def require_hyperparameter(self, key: str) -> Any:
        """The metadata value `<architecture>.<key>`; CheckpointError if it is missing."""
        value = self.hyperparameter(key)
        if value is None:
            raise self.error(f"metadata {self.architecture}.{key} is missing")
        return value

    def _tensor(self, tensor: Any) -> GgufTensor:
        type_name = tensor.tensor_type.name
        if type_name not in SUPPORTED_TENSOR_TYPES:
            raise self.error(
                f"tensor {tensor.name} has type {type_name}; supported: "
                + ", ".join(SUPPORTED_TENSOR_TYPES)
            )
        shape = tuple(int(n) for n in reversed(tensor.shape.tolist()))
        data: npt.NDArray[Any] = tensor.data
        if len(shape) == 1 and type_name not in ("F32", "F16"):
            data = data.reshape(-1)
        return GgufTensor(str(tensor.name), type_name, data, shape)


def _open(path: Path) -> Any:
    gguf = import_gguf()
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if header[:4] != GGUF_MAGIC:
        raise CheckpointError("this is not a GGUF file (it does not begin with 'GGUF')", path)
    if len(header) < _HEADER_BYTES:
        raise CheckpointError("the file is truncated: it ends inside its header", path)
    (version,) = struct.unpack("<I", header[4:8])
    if version not in (2, 3):
        raise CheckpointError(
            f"GGUF version {version} is not supported, only 2 and 3 in little-endian order", path
        )
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as fault:
        raise CheckpointError(
            f"the file is truncated or malformed ({fault}); download it again", path
        ) from fault
