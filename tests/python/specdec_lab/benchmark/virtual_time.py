"""An event loop whose clock jumps: whatever sleeps, sleeps for no time and exactly as long."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_IO_SECONDS = 0.02  # what is on its way through a socket arrives before the clock jumps


class _Selector(selectors.DefaultSelector):
    """Looks for what has arrived, and lets the clock jump where nothing has."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        has_sockets = len(self.get_map()) > 1  # the loop has one of its own
        found = super().select(_IO_SECONDS if timeout and has_sockets else 0)
        if not found:
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns; it begins at the time 0."""
    with contextlib.closing(_Loop()) as loop:
        try:
            return loop.run_until_complete(work)
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
