"""Makes the data that a head is trained on, and resumes an earlier run."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.training.answers import Answerer, AnswerOptions
from specdec_lab.training.batch import Example
from specdec_lab.training.conversations import read_conversations
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.files import write_errors
from specdec_lab.training.made_up_prompts import SampledTurns
from specdec_lab.training.store import (
    SHARD_BYTES,
    SHARD_EXAMPLES,
    ExampleStore,
    SourceCursor,
    require_room,
)
from specdec_native.checkpoints.layout import safetensors_files
from specdec_native.engine import Engine
from specdec_native.text.chat_template import Message

Source = SampledTurns | str | os.PathLike[str] | Sequence[Sequence[Message]]
"""User turns sampled from the target, a JSONL file, or conversations."""

Progress = Callable[[int, int], None]
"""Called with the numbers of answer tokens made and wanted; 0 wanted if unknown."""

_TURNS = "turns.jsonl"
_LOCK = ".lock"


def make_data(
    engine: Engine,
    target_directory: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    source: Source,
    options: AnswerOptions = AnswerOptions(),  # noqa: B008 - frozen
    *,
    taps: Sequence[int | str] = (),
    num_answer_tokens: int = 0,
    num_conversations: int = 0,
    at_most: bool = False,
    progress: Progress | None = None,
) -> ExampleStore:
    """Makes a store of examples, or continues an existing one.

    However often it is interrupted or killed, the finished store is the same, bit for bit. A
    complete store can be extended with a larger number.

    Args:
        engine: the target's engine, with taps if states are to be stored.
        target_directory: the target's checkpoint.
        directory: the store's folder.
        source: the conversations; the target writes the assistant's turns anew, unless
            options.keep_answers.
        options: how conversations are answered.
        taps: the engine's taps; empty: states are not stored but recomputed by an engine.
        num_answer_tokens: answer tokens wanted; 0: no limit but num_conversations and the source.
        num_conversations: examples wanted; 0: no limit but num_answer_tokens and the source.
        at_most: whether fewer are accepted where the source ends.
        progress: see Progress.

    Raises TrainingError where the store belongs to another target or was made with other options,
    where the source ends too early or the disk is full. Finished examples are kept.
    """
    directory = Path(directory)
    if isinstance(source, SampledTurns) and not num_answer_tokens and not num_conversations:
        raise TrainingError("num_answer_tokens must be given, as sampled turns have no end")
    info = engine.model_info()
    options = dataclasses.replace(options, max_length=min(options.max_length, info.max_model_len))
    header = {
        "features": "stored" if taps else "recomputed",
        "target": target_identity(target_directory),
        "engine": {"dtype": info.dtype, "weight_format": info.weight_format},
        "taps": list(taps),
        "answers": dataclasses.asdict(options),
        "source": {"sampled": source.settings} if isinstance(source, SampledTurns) else "given",
        "shard_bytes": SHARD_BYTES,
        "shard_examples": SHARD_EXAMPLES,
    }
    with _locked(directory):
        if ExampleStore.exists(directory):
            store = ExampleStore(directory)
            _check_header(store, header)
        else:
            store = ExampleStore.create(directory, header)
        run = _Run(store, num_answer_tokens, num_conversations, at_most, progress)
        if not run.is_complete():
            state_bytes = 2 * len(taps) * info.hidden_size
            require_room(directory, (num_answer_tokens - store.num_answer_tokens) * state_bytes)
            answerer = Answerer(engine, options, with_states=bool(taps))
            run.make(_Conversations(source, directory), answerer, options.max_answer_tokens / 2)
    return store


def check_target(
    store: ExampleStore, target_directory: str | os.PathLike[str], taps: Sequence[int | str]
) -> None:
    """Raises TrainingError unless the store is this target's and has these taps or stores none."""
    wanted: dict[str, Any] = {"target": target_identity(target_directory)}
    if store.has_states:
        wanted["taps"] = list(taps)
    _check_header(store, wanted)


def target_identity(target_directory: str | os.PathLike[str]) -> dict[str, str]:
    """The target's name, and a hash of its config.json and of the ends of its weight files."""
    target_directory = Path(target_directory)
    hashed = hashlib.sha256()
    try:
        config = json.loads((target_directory / "config.json").read_text(encoding="utf-8"))
        hashed.update(json.dumps(config, sort_keys=True).encode())
        for path in safetensors_files(target_directory):
            hashed.update(f"{path.name} {path.stat().st_size}".encode())
            with path.open("rb") as file:
                file.seek(-min(path.stat().st_size, 65536), os.SEEK_END)
                hashed.update(file.read())
    except (OSError, ValueError) as fault:
        raise TrainingError(
            f"is no checkpoint of a target ({fault}); give a directory with config.json and "
            "safetensors files",
            target_directory,
        ) from fault
    return {"name": target_directory.resolve().name, "fingerprint": hashed.hexdigest()}


class _Conversations:
    """Reads a source's conversations from a given place, and keeps track of places."""

    def __init__(self, source: Source, directory: Path) -> None:
        self._digests: dict[int, bytes] = {}
        self._directory = directory
        self.conversations: Iterator[Sequence[Message]]
        if isinstance(source, SampledTurns):
            self.conversations = source.conversations(directory / _TURNS)
        elif isinstance(source, (str, os.PathLike)):
            self.conversations = iter(read_conversations(source))
        else:
            self.conversations = iter(source)

    def after(self, cursor: SourceCursor) -> Iterator[Sequence[Message]]:
        """The conversations after a place. Raises TrainingError if those before it differ."""
        digest = SourceCursor().digest
        num_skipped = 0
        for messages in itertools.islice(self.conversations, cursor.next_conversation):
            digest = _digest(digest, messages)
            num_skipped += 1
        if (num_skipped, digest) != (cursor.next_conversation, cursor.digest):
            raise TrainingError(
                f"the store was begun with other conversations: those of the first "
                f"{cursor.next_conversation} lines; give the same ones (more may follow), or "
                "another directory",
                self._directory,
            )
        for index, messages in enumerate(self.conversations, cursor.next_conversation):
            digest = self._digests[index] = _digest(digest, messages)
            yield messages

    def cursor_after(self, index: int) -> SourceCursor:
        """The place after a conversation that after() has yielded. Call once for each, in order."""
        return SourceCursor(index + 1, self._digests.pop(index))


class _Run:
    """Fills a store up to the wanted size."""

    def __init__(
        self,
        store: ExampleStore,
        num_answer_tokens: int,
        num_conversations: int,
        at_most: bool,
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._wanted_tokens = num_answer_tokens
        self._wanted_examples = num_conversations
        self._may_be_fewer = at_most or not (num_answer_tokens or num_conversations)
        self._progress = progress
        self._num_tokens = store.num_answer_tokens
        self._num_examples = len(store)
        self._pending: list[Example] = []  # examples for the next shard
        self._cursor = store.cursor  # the source's place after these

    def is_complete(self) -> bool:
        """Whether the store has the wanted size."""
        return self._is_enough(0, 0.0)

    def make(self, source: _Conversations, answerer: Answerer, first_guess: float) -> None:
        """Makes the missing examples. `first_guess`: answer tokens expected per conversation."""

        def is_enough(num_under_way: int) -> bool:
            mean = self._num_tokens / self._num_examples if self._num_examples else first_guess
            return self._is_enough(num_under_way, mean)

        self._pending, self._cursor = self._store.take_unfilled()
        try:
            answers = answerer.answer(
                source.after(self._cursor),
                first=self._cursor.next_conversation,
                is_enough=is_enough,
            )
            with contextlib.closing(answers):
                for answered in answers:
                    cursor = source.cursor_after(answered.index)
                    if answered.example is not None:
                        self._add(answered.example, cursor)
                    if self.is_complete():
                        break
        finally:
            self._flush()  # also after an error or interrupt
        is_too_little = not self._may_be_fewer or not self._num_examples
        if is_too_little and not self.is_complete():
            raise self._too_little(answerer.num_left_out)

    def _is_enough(self, num_under_way: int, expected_tokens: float) -> bool:
        num_examples = self._num_examples + num_under_way
        num_tokens = self._num_tokens + num_under_way * expected_tokens
        return 0 < self._wanted_examples <= num_examples or 0 < self._wanted_tokens <= num_tokens

    def _add(self, example: Example, cursor: SourceCursor) -> None:
        num_taps = len(self._store.header["taps"])
        if self._store.has_states and example.states.shape[1] != num_taps:
            raise TrainingError(
                f"taps names {num_taps} states, and the engine gives {example.states.shape[1]}; "
                "make both with the same taps"
            )
        pending = [*self._pending, example]
        num_tokens = self._num_tokens + example.num_answer_tokens
        # There is no call between these stores, so an interrupt sees all of them changed or none.
        self._pending, self._cursor = pending, cursor
        self._num_examples, self._num_tokens = self._num_examples + 1, num_tokens
        if self._store.is_full(self._pending):
            self._flush()
        if self._progress is not None:
            self._progress(self._num_tokens, self._wanted_tokens)

    def _flush(self) -> None:
        if self._num_examples > len(self._store):  # else interrupted just after append()
            self._store.append(self._pending, self._cursor)
        self._pending = []

    def _too_little(self, num_left_out: int) -> TrainingError:
        wanted = []
        if self._wanted_tokens:
            wanted.append(f"{self._wanted_tokens} answer tokens")
        if self._wanted_examples:
            wanted.append(f"{self._wanted_examples} conversations")
        left_out = f" ({num_left_out} did not fit into max_length)" if num_left_out else ""
        return TrainingError(
            f"the source has ended: its conversations{left_out} gave {self._num_examples} examples "
            f"with {self._num_tokens} answer tokens, and {' or '.join(wanted) or 'some'} are "
            "wanted; give more prompts, or ask for less",
            self._store.directory,
        )


def _check_header(store: ExampleStore, wanted: Mapping[str, Any]) -> None:
    for name, value in _flat(wanted).items():
        have = _flat(store.header).get(name)
        if name in ("target.name", "shard_bytes", "shard_examples") or have == value:
            continue
        if name == "target.fingerprint":
            raise TrainingError(
                f"the store is of another target, {store.header['target']['name']}, not of "
                f"{wanted['target']['name']}; give another directory",
                store.directory,
            )
        raise TrainingError(
            f"the store was made with {name} = {json.dumps(have)}, and {json.dumps(value)} is "
            "asked for; ask for the same, or give another directory",
            store.directory,
        )


def _flat(header: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values by the dotted path of their keys, such as "answers.seed"."""
    flat: dict[str, Any] = {}
    for name, value in header.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _digest(before: bytes, messages: Sequence[Message]) -> bytes:
    text = json.dumps([dict(message) for message in messages], sort_keys=True)
    return hashlib.sha256(before + text.encode()).digest()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Creates a directory if needed, and locks it against other writing processes."""
    with write_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(
                "another process makes this data now; wait for it, or give another directory",
                directory,
            ) from None
        yield
