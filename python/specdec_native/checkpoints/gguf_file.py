"""Reads a GGUF file: checked metadata, and tensors as numbers a few rows at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, get_args

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
# Bytes of a metadata value by its type; strings (8) and arrays (9) say their length.
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
# The reader takes about a microsecond and a hundred bytes per element. Vocabularies have fewer than
# a million elements.
_MAX_ARRAY_ELEMENTS = 1 << 22
_CHUNK_ELEMENTS = 1 << 22  # 16 MiB as float32: large enough to vectorise, small beside any model


def import_gguf() -> Any:
    """The package that knows the encodings."""
    return import_optional("gguf", purpose="reading a GGUF file", extra="gguf")


@dataclasses.dataclass(frozen=True)
class _StoredArray:
    """An array in a file. It is read, not mapped: touching a mapping of a file that has been
    truncated meanwhile ends the process."""

    path: Path
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def _item_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def item(self, index: int) -> _StoredArray:
        """Element `index` of the first axis."""
        offset = self.offset + index * self._item_bytes
        return dataclasses.replace(self, offset=offset, shape=self.shape[1:])

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Elements [begin, end) of the first axis."""
        shape = (min(end, self.shape[0]) - begin, *self.shape[1:])
        with self.path.open("rb") as file:
            file.seek(self.offset + begin * self._item_bytes)
            values = np.fromfile(file, self.dtype, math.prod(shape))
        if values.size != math.prod(shape):
            raise CheckpointError("the file was truncated while it was being read", self.path)
        return values.reshape(shape)


class GgufTensor:
    """A tensor of a GGUF file, still in the file and in its own encoding."""

    def __init__(self, name: str, type_name: str, data: _StoredArray, shape: tuple[int, ...]):
        self.name = name
        self.type_name = type_name
        self.shape = shape  # row-major: [out_features, in_features]
        self._data = data  # same rank; the last axis counts bytes where the type packs blocks

    def slice(self, index: int) -> GgufTensor:
        """Element `index` of the first axis, such as one expert's matrix."""
        return GgufTensor(
            f"{self.name}[{index}]", self.type_name, self._data.item(index), self.shape[1:]
        )

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self._data.shape) * self._data.dtype.itemsize

    @property
    def integer_type(self) -> IntegerType | None:
        """How the matrix is held in integers; None for floating point and other shapes."""
        return INTEGER_TYPES.get(self.type_name) if len(self.shape) == 2 else None

    def rows(self, order: npt.NDArray[np.intp] | None = None) -> Iterator[npt.NDArray[np.float32]]:
        """The values as float32, some rows at a time; `order` picks the rows, default all."""
        if len(self.shape) == 1:
            values = self._decode(self._data.read(0, self._data.shape[0]))
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
            if order is None:
                yield self._data.read(begin, begin + step)
            else:
                chosen = order[begin : begin + step]
                first = int(chosen.min())
                yield self._data.read(first, int(chosen.max()) + 1)[chosen - first]

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
        self._read: set[str] = set()
        self.architecture = self.require("general.architecture", str)
        if self.get("split.count", 0) > 1:
            raise self.error(
                "this is one part of a GGUF split over several files; "
                "join them first (llama-gguf-split --merge)"
            )
        self.tensors = {str(tensor.name): self._tensor(tensor) for tensor in reader.tensors}

    def error(self, message: str) -> CheckpointError:
        """An error that names this file, to be raised."""
        return CheckpointError(message, self.path)

    def get(self, key: str, default: Any = None, kind: Any = None) -> Any:
        """The metadata value `key`; CheckpointError unless it is of the type `kind`, by default
        that of `default`. Kinds: int, float, bool, str and lists of these, such as list[int]."""
        value = self._contents(key)
        return default if value is None else self._checked(key, value, kind or type(default))

    def require(self, key: str, kind: Any) -> Any:
        """The metadata value `key`, likewise; CheckpointError if it is missing."""
        value = self.get(key, kind=kind)
        if value is None:
            raise self.error(f"metadata {key} is missing")
        return value

    def hyperparameter(self, key: str, default: Any = None, kind: Any = None) -> Any:
        """The metadata value `<architecture>.<key>`; one per layer must agree over the layers."""
        name = f"{self.architecture}.{key}"
        self._read.add(name)
        value = self._contents(name)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.error(f"metadata {name} differs between layers, which is not supported")
            value = value[0]
        return default if value is None else self._checked(name, value, kind or type(default))

    def require_hyperparameter(self, key: str, kind: Any) -> Any:
        """The metadata value `<architecture>.<key>`; CheckpointError if it is missing."""
        value = self.hyperparameter(key, kind=kind)
        if value is None:
            raise self.error(f"metadata {self.architecture}.{key} is missing")
        return value

    def unread_hyperparameters(self) -> dict[str, Any]:
        """The metadata of the architecture that nothing has asked for yet, as it is stored."""
        prefix = f"{self.architecture}."
        unread = [key for key in self._fields if key.startswith(prefix) and key not in self._read]
        return {key.removeprefix(prefix): self._contents(key) for key in unread}

    def _contents(self, key: str) -> Any:
        if key not in self._values:
            field = self._fields.get(key)
            try:
                self._values[key] = None if field is None else field.contents()
            except (UnicodeDecodeError, IndexError, ValueError) as fault:
                raise self.error(f"metadata {key} is malformed: {fault}") from fault
        return self._values[key]

    def _checked(self, name: str, value: Any, kind: Any) -> Any:
        of_list = get_args(kind)
        parts = value if of_list and isinstance(value, list) else [value]
        if bool(of_list) != isinstance(value, list) or not all(
            _is(part, of_list[0] if of_list else kind) for part in parts
        ):
            expected = kind if of_list else kind.__name__
            raise self.error(f"metadata {name} is {value!r:.80}, expected {expected}")
        return value

    def _tensor(self, tensor: Any) -> GgufTensor:
        type_name = tensor.tensor_type.name
        if type_name not in SUPPORTED_TENSOR_TYPES:
            raise self.error(
                f"tensor {tensor.name} has type {type_name}; supported: "
                + ", ".join(SUPPORTED_TENSOR_TYPES)
            )
        shape = tuple(int(n) for n in reversed(tensor.shape.tolist()))
        stored = tensor.data.shape
        if len(shape) == 1 and type_name not in ("F32", "F16"):
            stored = (tensor.data.size,)
        data = _StoredArray(self.path, int(tensor.data_offset), tensor.data.dtype, stored)
        return GgufTensor(str(tensor.name), type_name, data, shape)


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind or (kind is bool and value in (0, 1))


class _MetadataCheck:
    """Walks over metadata and tensor infos and compares every length with the size of the file: the
    reader trusts the lengths and would read on past the end of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size - _HEADER_BYTES
        self._elements_left = _MAX_ARRAY_ELEMENTS

    def run(self, num_tensors: int, num_values: int) -> None:
        """Leaves the file at the end of what describes its tensors. Raises ValueError."""
        for _ in range(num_values):
            key = self._skip_string(keep=True)
            try:
                self._skip_value(self._number("<I"))
            except ValueError as fault:
                raise ValueError(f"metadata {key!r:.200}: {fault}") from None
        for _ in range(num_tensors):
            self._skip_string()
            self._skip(8 * self._number("<I") + 12, "tensor's description")  # extents, type, offset

    def _skip_value(self, kind: int) -> None:
        if kind == _STRING:
            self._skip_string()
        elif kind != _ARRAY:
            self._skip(self._bytes_of(kind), "value")
        else:
            kind, length = self._number("<I"), self._number("<Q")
            self._elements_left -= length
            if self._elements_left < 0:
                raise ValueError(f"arrays have more than {_MAX_ARRAY_ELEMENTS} elements")
            if kind == _STRING:
                for _ in range(length):
                    self._skip_string()
            else:
                self._skip(length * self._bytes_of(kind), "array")

    def _bytes_of(self, kind: int) -> int:
        if kind not in _SCALAR_BYTES:  # an array of arrays among them
            raise ValueError(f"unknown type {kind}")
        return _SCALAR_BYTES[kind]

    def _skip_string(self, *, keep: bool = False) -> str:
        length = self._number("<Q")
        self._claim(length, "string")
        if keep:
            return self._file.read(length).decode(errors="replace")
        self._file.seek(length, os.SEEK_CUR)
        return ""

    def _skip(self, num_bytes: int, what: str) -> None:
        self._claim(num_bytes, what)
        self._file.seek(num_bytes, os.SEEK_CUR)

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        self._claim(size, "number")
        (number,) = struct.unpack(form, self._file.read(size))
        return int(number)

    def _claim(self, num_bytes: int, what: str) -> None:
        self._left -= num_bytes
        if self._left < 0:
            raise ValueError(f"a {what} of {num_bytes} bytes ends past the end of the file")


@contextlib.contextmanager
def _header_copy(file: BinaryIO, header: bytes) -> Iterator[str]:
    """The path of an in-memory file that holds all bytes before the tensors. The reader maps the
    file, so it is as long as the original, but its tail is a hole that takes no memory."""
    file.seek(_HEADER_BYTES)
    _MetadataCheck(file).run(*struct.unpack("<QQ", header[8:]))
    header_bytes = file.tell()
    file.seek(0)
    copy = os.memfd_create("gguf")
    try:
        with os.fdopen(copy, "wb", closefd=False) as target:
            target.write(file.read(header_bytes))
        os.ftruncate(copy, os.fstat(file.fileno()).st_size)
        yield f"/proc/self/fd/{copy}"
    finally:
        os.close(copy)


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
        with path.open("rb") as file, _header_copy(file, header) as copy:
            return gguf.GGUFReader(copy)
    except (ValueError, IndexError, KeyError, OverflowError, struct.error) as fault:
        raise CheckpointError(
            f"the file is truncated or malformed ({fault}); download it again", path
        ) from fault
