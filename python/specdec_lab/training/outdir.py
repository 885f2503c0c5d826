"""The output directory of a training: its layout, and a lock for one writing process."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec_lab.training.errors import TrainingError
from specdec_lab.training.files import write_errors, write_whole

_MARK = "run.json"
_LOCK = ".lock"


class OutDirectory:
    """The output directory of a training.

    Attributes:
        path: the directory itself.
        data, checkpoints, head: directories in it.
        log, chart: files in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.checkpoints = path / "checkpoints"
        self.head = path / "head"
        self.log = path / "log.jsonl"
        self.chart = path / "chart.png"

    @contextlib.contextmanager
    def claimed(self, model: str) -> Iterator[None]:
        """Locks the directory against other processes. Creates it if needed.

        Raises TrainingError where it holds unrelated files, or cannot be written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise TrainingError("is a file; give --out a directory", self.path)
        with write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            # A process that was killed early may have left only hidden files.
            is_used = any(path.name[0] != "." for path in self.path.iterdir())
            if is_used and not (self.path / _MARK).is_file():
                raise TrainingError(
                    "is not empty and holds no training; give --out a directory of its own",
                    self.path,
                )
            lock = (self.path / _LOCK).open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TrainingError(
                    "another process trains in this directory now; wait for it, or give --out "
                    "another one",
                    self.path,
                ) from None
            if not (self.path / _MARK).is_file() or self._is_unused():
                self._write_facts({"model": model})
            begun_with = self._facts().get("model")
            if begun_with != model:
                raise TrainingError(
                    f"holds a training for the model {begun_with}; give --out another directory",
                    self.path,
                )
            yield

    def _is_unused(self) -> bool:
        """Whether the directory's owner wrote nothing, for example because of a misspelt model."""
        return all(path.name == _MARK or path.name[0] == "." for path in self.path.iterdir())

    def add_data_seconds(self, seconds: float) -> None:
        """Adds to the time spent on making data; interrupted runs count, too."""
        self._write_facts({**self._facts(), "data_seconds": self.data_seconds() + seconds})

    def data_seconds(self) -> float:
        """Seconds spent on making data, over all runs."""
        return float(self._facts().get("data_seconds", 0.0))

    def _facts(self) -> dict[str, Any]:
        try:
            facts = json.loads((self.path / _MARK).read_text(encoding="utf-8"))
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise TrainingError(
                "is damaged; give --out another directory", self.path / _MARK
            ) from None
        return facts

    def _write_facts(self, facts: dict[str, Any]) -> None:
        text = json.dumps(facts) + "\n"
        write_whole(self.path / _MARK, lambda path: path.write_text(text))
