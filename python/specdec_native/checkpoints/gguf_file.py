"""Reads a GGUF file: checked metadata, and tensors as numbers a few rows at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_forms import IntegerType
from specdec_native.checkpoints.gguf_header import open_gguf
from specdec_native.checkpoints.gguf_integers import INTEGER_TYPES
from specdec_native.checkpoints.layout import gguf_parts
from specdec_native.checkpoints.optional import import_gguf

SUPPORTED_TENSOR_TYPES = ("F32", "F16", "BF16", *INTEGER_TYPES)

_CHUNK_ELEMENTS = 1 << 22  # 16 MiB as float32: large enough to vectorise, small beside any model
# What general.type may be but a model.
_OTHER_CONTENTS = {
    "adapter": "a LoRA adapter; give the model that it belongs to",
    "mmproj": "the vision or audio part of a model; give the text model's file",
}
# Matrices of an architecture whose "X.scale" is a tensor of its own: Gemma 4 scales what its router
# reads, and the weight of each expert.
_OWN_SCALES = {"gemma4": ("ffn_gate_inp", "ffn_down_exps")}


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

    def items(self, begin: int, end: int) -> _StoredArray:
        """Elements [begin, end) of the first axis."""
        offset = self.offset + begin * self._item_bytes
        return dataclasses.replace(self, offset=offset, shape=(end - begin, *self.shape[1:]))

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Elements [begin, end) of the first axis."""
        shape = (min(end, self.shape[0]) - begin, *self.shape[1:])
        with self.path.open("rb") as file:
            file.seek(self.offset + begin * self._item_bytes)
            values = np.fromfile(file, self.dtype, math.prod(shape))
        if values.size != math.prod(shape):
            raise CheckpointError("the file was truncated while it was being read", self.path)
        return values.reshape(shape)


@dataclasses.dataclass(frozen=True)
class _JoinedArrays:
    """Matrices of one file as one: rows behind each other, or values by turns."""

    parts: tuple[_StoredArray, ...]
    by_turns: int = 0  # the values in a row of a part; 0: rows behind each other

    @property
    def path(self) -> Path:
        return self.parts[0].path

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        num_rows, width = self.parts[0].shape
        if self.by_turns:
            return (num_rows, width * len(self.parts))
        return (sum(part.shape[0] for part in self.parts), width)

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Rows [begin, end)."""
        if self.by_turns:
            rows = [part.read(begin, end) for part in self.parts]
            values = [r.view(np.uint8).reshape(len(r), self.by_turns, -1) for r in rows]
            joined = np.stack(values, axis=2).reshape(len(rows[0]), -1)
            return joined.view(self.dtype)
        pieces = []
        for part in self.parts:
            first, last = max(begin, 0), min(end, part.shape[0])
            if first < last:
                pieces.append(part.read(first, last))
            begin, end = begin - part.shape[0], end - part.shape[0]
        return np.concatenate(pieces)


@dataclasses.dataclass(frozen=True, eq=False)
class _PickedRows:
    """Some rows of an array."""

    whole: _StoredArray
    order: npt.NDArray[np.intp]

    @property
    def path(self) -> Path:
        return self.whole.path

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.whole.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.order), *self.whole.shape[1:])

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Rows [begin, end)."""
        runs = np.split(self.order[begin:end], _ends_of_runs(self.order[begin:end]))
        return np.concatenate([self.whole.read(int(run[0]), int(run[-1]) + 1) for run in runs])


def _ends_of_runs(order: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Where rows are not behind each other."""
    return np.flatnonzero(np.diff(order) != 1) + 1


@dataclasses.dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF file, still in the file and in its own encoding."""

    name: str
    type_name: str
    shape: tuple[int, ...]  # row-major: [out_features, in_features]
    # The last axis counts bytes where the type packs blocks. The rank is the same but for axes of
    # one element.
    data: _StoredArray | _JoinedArrays | _PickedRows
    factors: tuple[float, ...] = (1.0,)  # of all values, or of each element of the first axis
    # Inputs of a matrix are that many rows and columns of equal blocks, to be transposed.
    input_blocks: tuple[int, int] = (1, 1)
    # What becomes of all values, which are then float32 in every checkpoint; None: nothing.
    change: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]] | None = None

    def slice(self, index: int) -> GgufTensor:
        """Element `index` of the first axis, such as one expert's matrix."""
        assert isinstance(self.data, _StoredArray)
        return GgufTensor(
            f"{self.name}[{index}]",
            self.type_name,
            self.shape[1:],
            self.data.item(index),
            (self.factors[index % len(self.factors)],),
        )

    def halves(self) -> tuple[GgufTensor, GgufTensor]:
        """The first and the last half of a matrix's rows."""
        assert isinstance(self.data, _StoredArray)
        num_rows, width = self.shape
        if num_rows % 2:
            raise CheckpointError(
                f"tensor {self.name} has {num_rows} rows, expected two halves", self.data.path
            )
        middle = num_rows // 2
        first, last = (
            dataclasses.replace(
                self, shape=(middle, width), data=self.data.items(begin, begin + middle)
            )
            for begin in (0, middle)
        )
        return first, last

    def first_rows(self, count: int) -> GgufTensor:
        """The first rows of a matrix."""
        assert isinstance(self.data, _StoredArray)
        shape = (count, *self.shape[1:])
        return dataclasses.replace(self, shape=shape, data=self.data.items(0, count))

    def as_row(self) -> GgufTensor:
        """A vector as a matrix of one row."""
        assert isinstance(self.data, _StoredArray)
        data = dataclasses.replace(self.data, shape=(1, *self.data.shape))
        return dataclasses.replace(self, shape=(1, *self.shape), data=data)

    def picked(self, order: npt.NDArray[np.intp]) -> GgufTensor:
        """Those rows of a matrix, or values of a vector."""
        assert isinstance(self.data, _StoredArray)
        if self.data.shape[0] != self.shape[0]:
            raise CheckpointError(
                f"tensor {self.name} is a vector of type {self.type_name}; supported: F32, F16",
                self.data.path,
            )
        shape = (len(order), *self.shape[1:])
        return dataclasses.replace(self, shape=shape, data=_PickedRows(self.data, order))

    def joined(self, other: GgufTensor, *, by_turns: bool) -> GgufTensor:
        """A matrix with the rows of this one and then of the other's; or, of equal size, with a
        value of this one, one of the other's, and so on."""
        alike = (self.type_name, self.shape[1:], len(self.shape), self.factors)
        if alike != (other.type_name, other.shape[1:], 2, other.factors) or (
            by_turns and self.shape != other.shape
        ):
            raise CheckpointError(
                f"tensors {self.name} and {other.name} become one and differ in type or width",
                self.data.path,
            )
        assert isinstance(self.data, _StoredArray)
        assert isinstance(other.data, _StoredArray)
        rows, width = self.shape
        shape = (rows, 2 * width) if by_turns else (rows + other.shape[0], width)
        data = _JoinedArrays((self.data, other.data), width if by_turns else 0)
        return dataclasses.replace(self, shape=shape, data=data)

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.data.shape) * int(self.data.dtype.itemsize)

    @property
    def integer_type(self) -> IntegerType | None:
        """How the matrix is held in integers; None for floating point and other shapes."""
        return INTEGER_TYPES.get(self.type_name) if len(self.shape) == 2 else None

    def rows(self, order: npt.NDArray[np.intp] | None = None) -> Iterator[npt.NDArray[np.float32]]:
        """The values as float32, some rows at a time; `order` picks the rows, default all."""
        if len(self.shape) == 1:
            values = self._decode(self.data.read(0, self.data.shape[0]))
            yield values if order is None else values[order]
            return
        for rows in self._encoded_rows(order):
            yield self._decode(rows)

    def integers(
        self,
        part: Literal["codes", "scales", "mins"],
        order: npt.NDArray[np.intp] | None = None,
    ) -> Iterator[npt.NDArray[Any]]:
        """The codes, or the scales or mins in float16, of a matrix with an integer_type, likewise.

        Raises CheckpointError for a scale or min that is not a finite float16.
        """
        read = getattr(self.integer_type, part)
        for rows in self._encoded_rows(order):
            with np.errstate(invalid="ignore", over="ignore"):  # of what is refused below
                found = read(np.ascontiguousarray(rows).view(np.uint8))
                if part != "codes":
                    found = (found * np.float32(self.factors[0])).astype(np.float16)
                found = self._in_order(found)
            if part != "codes" and not np.isfinite(found).all():
                raise CheckpointError(
                    f"tensor {self.name}: one of its {part} is not a finite float16; "
                    "give quantization='none'",
                    self.data.path,
                )
            yield found

    def _encoded_rows(self, order: npt.NDArray[np.intp] | None) -> Iterator[npt.NDArray[Any]]:
        step = max(1, _CHUNK_ELEMENTS // math.prod(self.shape[1:]))
        for begin in range(0, self.shape[0] if order is None else len(order), step):
            # A quantised block never crosses a row, so rows are picked before decoding.
            if order is None:
                yield self.data.read(begin, begin + step)
            else:
                chosen = order[begin : begin + step]
                first = int(chosen.min())
                yield self.data.read(first, int(chosen.max()) + 1)[chosen - first]

    def _decode(self, data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        gguf = import_gguf()
        values = gguf.dequantize(data, gguf.GGMLQuantizationType[self.type_name])
        scaled = np.asarray(values * np.float32(self.factors[0]), dtype=np.float32)
        ordered = self._in_order(scaled)
        return ordered if self.change is None else self.change(ordered)

    def _in_order(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values, codes or scales of rows, with blocks of inputs in their order."""
        if self.input_blocks == (1, 1):
            return rows
        blocks = rows.reshape(len(rows), *self.input_blocks, -1)
        return np.ascontiguousarray(blocks.swapaxes(1, 2)).reshape(rows.shape)


class GgufMetadata:
    """The metadata of an open file. Every fault of the file is a CheckpointError that names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = open_gguf(path)
        self._values: dict[str, Any] = {}

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

    def check_part(self, number: int, count: int) -> None:
        """Raises CheckpointError unless this is part `number`, from 0, of a file in `count`."""
        own_count = self.get("split.count", 1)
        if own_count != count:
            raise self.error(
                f"metadata split.count is {own_count}, but by its name there are {count}; parts "
                "are found by their names, as in model-00001-of-00003.gguf"
            )
        if self.get("split.no", 0) != number:
            raise self.error(
                f"metadata split.no is {self.get('split.no', 0)}, but its name is that of part "
                f"{number + 1}, whose split.no is {number}; names have been mixed up"
            )

    def stored_tensors(self) -> Iterator[GgufTensor]:
        """The tensors of this file, in its order."""
        for tensor in self._reader.tensors:
            yield self._tensor(tensor)

    def _contents(self, key: str) -> Any:
        if key not in self._values:
            field = self._reader.fields.get(key)
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
        if not shape or 0 in shape:
            raise self.error(f"tensor {tensor.name} has no values; its extents are {shape}")
        stored = tensor.data.shape
        if len(shape) == 1 and type_name not in ("F32", "F16"):
            stored = (tensor.data.size,)
        data = _StoredArray(self.path, int(tensor.data_offset), tensor.data.dtype, stored)
        return GgufTensor(str(tensor.name), type_name, shape, data)


class GgufFile(GgufMetadata):
    """A model in a GGUF file, or in the parts of a split one, whichever of them is named.

    The metadata is the first part's. Raises CheckpointError that names the file at fault.
    """

    def __init__(self, path: Path) -> None:
        paths = gguf_parts(path)
        super().__init__(paths[0])
        self._read: set[str] = set()
        self.vectors_read: set[str] = set()
        self.tensors: dict[str, GgufTensor] = {}
        for number, part_path in enumerate(paths):
            part = self if number == 0 else GgufMetadata(part_path)
            part.check_part(number, len(paths))
            for tensor in part.stored_tensors():
                if tensor.name in self.tensors:
                    raise part.error(f"tensor {tensor.name} is in an earlier part, too")
                self.tensors[tensor.name] = tensor
        num_tensors = self.get("split.tensors.count", len(self.tensors))
        if num_tensors != len(self.tensors):
            raise self.error(
                f"metadata split.tensors.count is {num_tensors}, but the {len(paths)} parts have "
                f"{len(self.tensors)} tensors"
            )
        contents = self.get("general.type", "model")
        if contents != "model":
            described = _OTHER_CONTENTS.get(contents, "not a model")
            raise self.error(f"metadata general.type is {contents!r}: this is {described}")
        self.architecture = self.require("general.architecture", str)
        self._apply_scales()

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

    def of_layers(
        self,
        key: str,
        num_layers: int,
        kind: type,
        *,
        must_be_list: bool = False,
        may_be_infinite: bool = False,
    ) -> list[Any]:
        """The metadata value `<architecture>.<key>` of each layer; one value is that of all.

        must_be_list: a single value is refused.
        may_be_infinite: numbers of a list need not be finite; none may be NaN all the same.
        """
        name = f"{self.architecture}.{key}"
        self._read.add(name)
        value = self._contents(name)
        if value is None:
            raise self.error(f"metadata {name} is missing")
        if not isinstance(value, list) and not must_be_list:
            return [self._checked(name, value, kind)] * num_layers
        infinities = (math.inf, -math.inf) if may_be_infinite else ()
        is_list = isinstance(value, list)
        checked = [one for one in value if one not in infinities] if is_list else value
        self._checked(name, checked, list[kind])  # type: ignore[valid-type]
        values: list[Any] = value
        if len(values) != num_layers:
            raise self.error(f"metadata {name} has {len(values)} values for {num_layers} layers")
        return values

    def layer_values(self, key: str, num_layers: int) -> list[float]:
        """The metadata `key`, without the architecture, one number for each layer."""
        values: list[float] = self.require(key, list[float])
        if len(values) != num_layers:
            raise self.error(f"metadata {key} has {len(values)} values for {num_layers} layers")
        return values

    def unread_hyperparameters(self) -> dict[str, Any]:
        """The metadata of the architecture that nothing has asked for yet, as it is stored."""
        prefix = f"{self.architecture}."
        keys = [key for key in self._reader.fields if key.startswith(prefix)]
        return {
            key.removeprefix(prefix): self._contents(key) for key in keys if key not in self._read
        }

    def vector(self, name: str) -> npt.NDArray[np.float64] | None:
        """The values of a tensor with one axis, then in `vectors_read`; None without the tensor."""
        self.vectors_read.add(name)
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        if len(tensor.shape) != 1:
            raise self.error(f"tensor {name} has {len(tensor.shape)} axes, expected one")
        return np.concatenate(list(tensor.rows())).astype(np.float64)

    def _apply_scales(self) -> None:
        """Moves tensors "X.scale", what all of a matrix "X.weight" is multiplied with, into it.

        "X.input_scale", which a model that computes in fewer bits divides its inputs by, goes.
        """
        own = _OWN_SCALES.get(self.architecture, ())
        for name in list(self.tensors):
            stem, _, ending = name.rpartition(".")
            weight = self.tensors.get(f"{stem}.weight")
            if weight is None or ending not in ("scale", "input_scale"):
                continue
            if ending == "scale" and stem.rpartition(".")[2] in own:
                continue
            factors = self.vector(name)
            del self.tensors[name]
            if ending == "input_scale" or factors is None:
                continue
            if factors.size not in (1, weight.shape[0] if len(weight.shape) == 3 else 1):
                raise self.error(
                    f"tensor {name} has {factors.size} values, expected one, or one for each expert"
                )
            self.tensors[weight.name] = dataclasses.replace(
                weight, factors=tuple(float(factor) for factor in factors)
            )


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is kind or (kind is bool and value in (0, 1))
