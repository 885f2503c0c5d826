"""Stores examples on disk, in shards that are written atomically."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import errno
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specdec_lab.training.batch import Example
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.files import replacing
from specdec_native.checkpoints.safetensors_writer import TensorSpec, write_shard

FORMAT = 1
SHARD_BYTES = 64_000_000
SHARD_EXAMPLES = 256

_HEADER = "store.json"
_DIGEST_BYTES = 32
_TENSORS = {
    "token_ids": torch.int32,
    "is_answer": torch.bool,
    "starts": torch.int64,
    "is_greedy": torch.bool,
    "next_conversation": torch.int64,
    "digest": torch.uint8,
}


@dataclasses.dataclass(frozen=True)
class SourceCursor:
    """How far a source of conversations was read.

    Attributes:
        next_conversation: index of the first conversation that was not read.
        digest: SHA-256 of the conversations before it, 32 bytes.
    """

    next_conversation: int = 0
    digest: bytes = bytes(_DIGEST_BYTES)


class ExampleStore:
    """A directory of examples: store.json, and shards named examples-00000.safetensors and so on.

    A shard has token_ids int32 [tokens], is_answer bool [tokens], starts int64 [examples + 1] (the
    first token of each example), is_greedy bool [examples], next_conversation int64 [1] and digest
    uint8 [32] (SourceCursor); with features also states bfloat16 [tokens - examples, taps, hidden
    size].

    Attributes:
        directory: the store's folder.
        header: the content of store.json: "format", and how and from what the data was made.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Opens a store. Raises TrainingError where store.json or a shard is missing or damaged."""
        self.directory = Path(directory)
        self.header: Mapping[str, Any] = _read_header(self.directory / _HEADER)
        self._shards: list[_Shard] = []
        self._ends: list[int] = []  # by shard: examples up to its end
        for path in _shard_paths(self.directory):
            self._add(_Shard(path, self.has_states))

    @classmethod
    def create(cls, directory: str | os.PathLike[str], header: Mapping[str, Any]) -> ExampleStore:
        """Makes an empty store. `header` is JSON; "features" is "stored" or "recomputed"."""
        directory = Path(directory)
        with _disk_errors(directory, 1):
            text = json.dumps({"format": FORMAT, **header}, indent=2) + "\n"
            with replacing(directory / _HEADER) as part:
                part.write_text(text, encoding="utf-8")
        return cls(directory)

    @staticmethod
    def exists(directory: str | os.PathLike[str]) -> bool:
        """Whether there is a store."""
        return (Path(directory) / _HEADER).is_file()

    # -- reading

    @property
    def has_states(self) -> bool:
        """Whether states are stored; else an engine recomputes them."""
        return bool(self.header["features"] == "stored")

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each example."""
        return _joined([np.diff(shard.starts) for shard in self._shards])

    @property
    def answer_lengths(self) -> npt.NDArray[np.int64]:
        """Answer tokens of each example."""
        return _joined([shard.answer_lengths() for shard in self._shards])

    @property
    def num_tokens(self) -> int:
        """Tokens of all examples."""
        return sum(int(shard.starts[-1]) for shard in self._shards)

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the target wrote."""
        return sum(shard.num_answer_tokens for shard in self._shards)

    @property
    def cursor(self) -> SourceCursor:
        """How far the source was read up to the last shard."""
        return self._shards[-1].cursor if self._shards else SourceCursor()

    def __getitem__(self, index: int) -> Example:
        """An example; its states are read from the disk, or empty where none are stored."""
        shard, offset = self._find(index)
        return shard.example(offset)

    def __iter__(self) -> Iterator[Example]:
        return (self[i] for i in range(len(self)))

    def load(self, indices: Sequence[int]) -> list[Example]:
        """The examples of some indices."""
        return [self[i] for i in indices]

    def answer_tokens(self, indices: Iterable[int] | None = None) -> Iterator[Tensor]:
        """Tokens that the target wrote, int32, in pieces: of all examples or of some."""
        if indices is None:
            return (shard.token_ids[shard.is_answer] for shard in self._shards)
        return (shard.answer_tokens(i) for shard, i in map(self._find, indices))

    # -- writing

    def append(self, examples: Sequence[Example], cursor: SourceCursor) -> None:
        """Writes one more shard. Raises TrainingError where the disk has no room."""
        path = self.directory / _shard_name(len(self._shards))
        specs = _specs(examples, cursor, self.has_states)
        num_bytes = sum(spec.num_bytes for spec in specs)
        require_room(self.directory, num_bytes)
        with _disk_errors(self.directory, num_bytes), replacing(path) as part:
            write_shard(part, specs)
        self._add(_Shard(path, self.has_states))

    def take_unfilled(self) -> tuple[list[Example], SourceCursor]:
        """The examples of the last shard if it is not full, and how far the source was read.

        The shard is no longer part of this object, and its file is replaced by the next append().
        """
        if not self._shards:
            return [], SourceCursor()
        last = self._shards[-1]
        examples = [last.example(i) for i in range(len(last))]
        if self.is_full(examples):
            return [], last.cursor
        self._shards.pop()
        self._ends.pop()
        return examples, last.cursor

    def is_full(self, examples: Sequence[Example]) -> bool:
        """Whether these examples fill a shard."""
        num_bytes = sum(example_bytes(example) for example in examples)
        most_bytes, most_examples = self.header["shard_bytes"], self.header["shard_examples"]
        return bool(num_bytes >= most_bytes or len(examples) >= most_examples)

    def _find(self, index: int) -> tuple[_Shard, int]:
        """The shard of an example, and its index there."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} examples, and no {index}")
        index %= len(self)
        shard = bisect.bisect_right(self._ends, index)
        return self._shards[shard], index - (self._ends[shard - 1] if shard else 0)

    def _add(self, shard: _Shard) -> None:
        self._ends.append(len(self) + len(shard))
        self._shards.append(shard)


class _Shard:
    """One file. Everything but its states is in memory."""

    def __init__(self, path: Path, has_states: bool) -> None:
        self.path = path
        try:
            file: Any = safe_open(path, framework="pt")
            tensors = {name: file.get_tensor(name) for name in _TENSORS}
            self._states = file.get_slice("states") if has_states else None
        except (SafetensorError, OSError) as fault:
            raise _damaged(path, str(fault)) from fault
        if any(tensors[name].dtype != dtype for name, dtype in _TENSORS.items()):
            raise _damaged(path, "a tensor has an unexpected dtype")
        self.token_ids = tensors["token_ids"]
        self.is_answer = tensors["is_answer"]
        self.is_greedy = tensors["is_greedy"]
        self.starts: npt.NDArray[np.int64] = tensors["starts"].numpy()
        self.num_answer_tokens = int(self.is_answer.sum())
        self.cursor = SourceCursor(
            int(tensors["next_conversation"][0]), bytes(tensors["digest"].numpy())
        )
        num_tokens = len(self.token_ids)
        num_rows = num_tokens - len(self)
        if (
            len(self.starts) == 0
            or (self.starts[0], self.starts[-1]) != (0, num_tokens)
            or (np.diff(self.starts) < 1).any()
            or len(self.is_answer) != num_tokens
            or len(self.is_greedy) != len(self)
            or (self._states is not None and self._states.get_shape()[0] != num_rows)
        ):
            raise _damaged(path, "its tensors do not fit each other")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def answer_lengths(self) -> npt.NDArray[np.int64]:
        """Answer tokens of each example."""
        before = np.concatenate([[0], np.cumsum(self.is_answer.numpy(), dtype=np.int64)])
        counts: npt.NDArray[np.int64] = np.diff(before[self.starts])
        return counts

    def answer_tokens(self, index: int) -> Tensor:
        """Tokens of an example that the target wrote."""
        start, end = int(self.starts[index]), int(self.starts[index + 1])
        answers: Tensor = self.token_ids[start:end][self.is_answer[start:end]]
        return answers

    def example(self, index: int) -> Example:
        """Reads the states of this one example."""
        start, end = int(self.starts[index]), int(self.starts[index + 1])
        states = no_states()
        if self._states is not None:
            states = self._states[start - index : end - index - 1]
        return Example(
            self.token_ids[start:end],
            self.is_answer[start:end],
            states,
            bool(self.is_greedy[index]),
        )


def no_states() -> Tensor:
    """An empty tensor in place of states that are not stored."""
    return torch.empty(0, 0, 0, dtype=torch.bfloat16)


def example_bytes(example: Example) -> int:
    """Bytes of an example in a shard, its offset aside."""
    return 5 * len(example.token_ids) + 2 * example.states.numel()


def require_room(directory: Path, num_bytes: int) -> None:
    """Raises TrainingError where `num_bytes` more do not fit on the disk of `directory`."""
    free = shutil.disk_usage(directory).free
    if free < num_bytes:
        raise _no_room(directory, num_bytes, f"{free / 2**20:.0f} MiB are free")


def _specs(examples: Sequence[Example], cursor: SourceCursor, has_states: bool) -> list[TensorSpec]:
    lengths = [len(example.token_ids) for example in examples]
    arrays: dict[str, tuple[str, npt.NDArray[Any]]] = {
        "token_ids": ("I32", _concatenated([e.token_ids.to(torch.int32) for e in examples])),
        "is_answer": ("BOOL", _concatenated([e.is_answer for e in examples])),
        "starts": ("I64", np.array([0, *itertools.accumulate(lengths)], np.int64)),
        "is_greedy": ("BOOL", np.array([e.is_greedy for e in examples], np.bool_)),
        "next_conversation": ("I64", np.array([cursor.next_conversation], np.int64)),
        "digest": ("U8", np.frombuffer(cursor.digest, np.uint8)),
    }
    specs = [_spec(name, dtype, array.shape, [array]) for name, (dtype, array) in arrays.items()]
    if has_states:
        states = [example.states.to(torch.bfloat16).contiguous() for example in examples]
        shape = (sum(len(x) for x in states), *states[0].shape[1:])
        specs.append(_spec("states", "BF16", shape, [x.view(torch.uint16).numpy() for x in states]))
    return specs


def _spec(
    name: str, dtype: str, shape: tuple[int, ...], arrays: Sequence[npt.NDArray[Any]]
) -> TensorSpec:
    return TensorSpec(name, dtype, shape, lambda: iter(arrays))


def _concatenated(tensors: Sequence[Tensor]) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = torch.cat(list(tensors)).numpy()
    return array


def _joined(arrays: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def _shard_name(number: int) -> str:
    return f"examples-{number:05d}.safetensors"


def _shard_paths(directory: Path) -> list[Path]:
    names = sorted(path.name for path in directory.glob("examples-*.safetensors"))
    wanted = [_shard_name(i) for i in range(len(names))]
    if names != wanted:
        missing = next(name for name in wanted if name not in names)
        raise TrainingError(
            f"{missing} is missing among the shards; delete those after it and make the data again",
            directory,
        )
    return [directory / name for name in names]


def _read_header(path: Path) -> dict[str, Any]:
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TrainingError(
            "there is no store of examples here; make its data", path.parent
        ) from None
    except (OSError, ValueError) as fault:
        raise TrainingError(f"cannot be read ({fault}); make the data again", path) from fault
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise TrainingError(
            f'"format" must be {FORMAT}: the store is of another version; make its data again', path
        )
    for name in ("features", "shard_bytes", "shard_examples"):
        if name not in header:
            raise TrainingError(f'"{name}" is missing; make the data again', path)
    return header


@contextlib.contextmanager
def _disk_errors(directory: Path, num_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(directory, num_bytes, "the disk is full") from fault
        raise TrainingError(f"cannot be written ({fault.strerror})", directory) from fault


def _no_room(directory: Path, num_bytes: int, reason: str) -> TrainingError:
    return TrainingError(
        f"{num_bytes / 2**20:.0f} MiB ({num_bytes} bytes) are needed and {reason}; free some space "
        "and run the same command again, which goes on from here",
        directory,
    )


def _damaged(path: Path, reason: str) -> TrainingError:
    return TrainingError(
        f"the shard is damaged ({reason}); delete the file and the shards after it, and make the "
        "data again: those before it are kept",
        path,
    )
