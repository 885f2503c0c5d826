"""Checkpoints of a training: after a kill it resumes as if nothing had happened."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import pickle
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specdec_lab.training.errors import TrainingError
from specdec_lab.training.files import write_errors, write_whole
from specdec_lab.training.training_options import TrainingOptions, differences

_logger = logging.getLogger("specdec_native")

_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{8})\.pt")
# Errors of torch.load for damaged files, and of reading the contents of unrelated files.
_UNREADABLE = (
    *(OSError, RuntimeError, EOFError, pickle.UnpicklingError),
    *(TypeError, KeyError, AttributeError),
)


@dataclasses.dataclass(frozen=True)
class Saved:
    """The content of a checkpoint.

    Attributes:
        options: the training's options.
        begun: the fields of Begun: numbers, strings and tensors by name.
        trainer: Trainer.state_dict().
        log_bytes: length of the log at that time.
    """

    options: TrainingOptions
    begun: Mapping[str, Any]
    trainer: dict[str, Any]
    log_bytes: int


class Checkpoints:
    """The checkpoints in a directory. The last two are kept, each written whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, saved: Saved, step: int) -> None:
        """Raises TrainingError where the disk is full; earlier checkpoints stay intact."""
        contents = {**vars(saved), "options": dataclasses.asdict(saved.options)}
        contents["begun"] = dict(saved.begun)
        for part in self._directory.glob(".*.part"):  # left by killed processes
            part.unlink(missing_ok=True)

        def write(path: Path) -> None:
            try:
                torch.save(contents, path)
            except RuntimeError as fault:  # torch's error for a full disk
                raise OSError(errno.ENOSPC, str(fault)) from fault

        write_whole(self._directory / f"checkpoint-{step:08d}.pt", write)
        for path in self._paths()[:-_KEPT]:
            path.unlink(missing_ok=True)

    def load(self) -> Saved | None:
        """The latest readable checkpoint; None where there is none.

        Raises TrainingError where there are checkpoints and none can be read.
        """
        paths = self._paths()
        for path in reversed(paths):
            try:
                contents = torch.load(path, map_location="cpu", weights_only=True)
                options = TrainingOptions(**contents.pop("options"))
                return Saved(options=options, **contents)
            except _UNREADABLE as fault:
                _logger.warning("%s cannot be read (%s); trying the one before", path, fault)
        if paths:
            raise TrainingError(
                "no checkpoint can be read; delete this directory to train from the beginning",
                self._directory,
            )
        return None

    def _paths(self) -> list[Path]:
        """The checkpoint files, the oldest first."""
        if not self._directory.is_dir():
            return []
        return sorted(p for p in self._directory.iterdir() if _NAME.fullmatch(p.name))


def require_same(saved: Saved, options: TrainingOptions) -> None:
    """Raises TrainingError where a training cannot resume with these options."""
    for name, old, new in differences(saved.options, options):
        flag = "--" + name.replace("_", "-")
        if isinstance(old, bool):
            flag = flag if old else flag.replace("--", "--no-", 1)
        else:
            flag = f"{flag} {old}"
        raise TrainingError(
            f"{name}: the training in this directory began with {old!r} and cannot go on with "
            f"{new!r}; give {flag}, or train into another directory"
        )


class Timer:
    """Says when the next checkpoint is due."""

    def __init__(self, minutes: float) -> None:
        self._seconds = minutes * 60
        self._last = time.monotonic()

    def is_due(self) -> bool:
        """Whether a checkpoint is due; if so, the timer restarts."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


class TrainingLog:
    """A file of JSON lines. A resumed training truncates it to the state at its checkpoint."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        """Opens the log and keeps its first `num_bytes`."""
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            self._file.truncate(num_bytes)
        self._path = path

    def write(self, entry: Mapping[str, Any]) -> None:
        """Adds a line."""
        with write_errors(self._path):
            self._file.write(json.dumps(entry).encode() + b"\n")

    def num_bytes(self) -> int:
        """Bytes so far, all of them on the disk."""
        with write_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Flushes and closes the file."""
        with write_errors(self._path):
            self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a log; an incomplete last line is left out."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            entries.append(json.loads(line))
    return entries
