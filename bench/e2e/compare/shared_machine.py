"""Locks for a machine on which others build and measure too."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


class SharedMachine:
    """Takes `flock` locks on files, in order: shared while loading, exclusive while measuring."""

    def __init__(self, files: Sequence[Path] = (), max_hold_seconds: float = 120.0) -> None:
        """Without files there is nothing to wait for."""
        self._files = files
        self._max_hold_seconds = max_hold_seconds

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Others may work, none may measure."""
        hold = Hold(self._files, fcntl.LOCK_SH, self._max_hold_seconds)
        try:
            yield
        finally:
            hold.release()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Hold]:
        """Nobody else works."""
        hold = Hold(self._files, fcntl.LOCK_EX, self._max_hold_seconds)
        try:
            yield hold
        finally:
            hold.release()


class Hold:
    """Locks that are held."""

    def __init__(self, files: Sequence[Path], operation: int, max_seconds: float) -> None:
        self._files = files
        self._operation = operation
        self._max_seconds = max_seconds
        self._descriptors: list[int] = []
        self._take()

    def breathe(self) -> None:
        """Lets others have a turn if the locks were held for long."""
        if time.monotonic() - self._since > self._max_seconds:
            self.release()
            self._take()

    def release(self) -> None:
        """Gives the locks back."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _take(self) -> None:
        for file in self._files:
            self._descriptors.append(os.open(file, os.O_RDWR | os.O_CREAT, 0o666))
            fcntl.flock(self._descriptors[-1], self._operation)
        self._since = time.monotonic()
