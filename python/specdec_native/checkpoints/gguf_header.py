"""Opens a GGUF file: what lies before its tensors is checked before the gguf package reads it."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.layout import GGUF_MAGIC
from specdec_native.checkpoints.optional import import_gguf

_HEADER_BYTES = 24
# Bytes of a metadata value by its type; strings (8) and arrays (9) say their length.
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
# The reader takes about a microsecond and a hundred bytes per element. Vocabularies have fewer than
# a million elements.
_MAX_ARRAY_ELEMENTS = 1 << 22


class _UnknownTypeError(Exception):
    """The file may be whole, but cannot be read."""


class _MetadataCheck:
    """Walks over metadata and tensor infos and compares every length with the size of the file: the
    reader trusts the lengths and would read on past the end of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._known_types = {int(kind) for kind in import_gguf().GGMLQuantizationType}
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
            name = self._skip_string(keep=True)
            self._skip(8 * self._number("<I"), "tensor's extents")
            kind = self._number("<I")
            if kind not in self._known_types:
                raise _UnknownTypeError(
                    f"tensor {name:.200} has the type of number {kind}, which this version of the "
                    "gguf package does not know; update it, or take a file of other types"
                )
            self._skip(8, "tensor's offset")

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


def open_gguf(path: Path) -> Any:
    """The gguf package's reader of the file. Raises CheckpointError."""
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
    except _UnknownTypeError as fault:
        raise CheckpointError(str(fault), path) from fault
    except (ValueError, IndexError, KeyError, OverflowError, struct.error) as fault:
        raise CheckpointError(
            f"the file is truncated or malformed ({fault}); download it again", path
        ) from fault
