"""Locks for a machine on which others build and measure too."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


class SharedMachine:
    """A `flock` lock, shared while loading, exclusive while measuring.

    Of several files the last is held and those before it only while waiting for it, one after the
    other: a turnstile, at which whoever wants to measure is not overtaken for ever.
    """

    def __init__(self, files: Sequence[Path] = (), max_hold_seconds: float = 100.0) -> None:
        """Without files there is nothing to wait for."""
        self._files = files
        self._max_hold_seconds = max_hold_seconds

    @contextlib.contextmanager
    def shared(self) -> Iterator[Hold]:
        """Others may work, none may measure."""
        hold = Hold(self._files, fcntl.LOCK_SH, self._max_hold_seconds)
        try:
            yield hold
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
    """The lock while it is held."""

    def __init__(self, files: Sequence[Path], operation: int, max_seconds: float) -> None:
        self._files = files
        self._operation = operation
        self._max_seconds = max_seconds
        self._descriptor: int | None = None
        self._take()

    def breathe(self) -> None:
        """Lets others have a turn if the lock was held for long."""
        if time.monotonic() - self._since > self._max_seconds:
            self.release()
            self._take()

    def release(self) -> None:
        """Gives the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> None:
        taken = []
        for file in self._files:
            taken.append(os.open(file, os.O_RDWR | os.O_CREAT, 0o666))
            fcntl.flock(taken[-1], self._operation)
        self._descriptor = taken.pop() if taken else None
        for descriptor in taken:
            os.close(descriptor)
        self._since = time.monotonic()
