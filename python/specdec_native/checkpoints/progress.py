"""How long-running work reports progress: one callback, called from the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[int, int, str], None]
"""Called as `progress(done_bytes, total_bytes, phase)`.

`phase` is a short lower-case phrase ("download", "convert"); within a phase `done_bytes` never
falls. `total_bytes` is 0 while the total is unknown.
"""


class ProgressMeter:
    """Adds up the bytes of one phase; does nothing without a callback."""

    def __init__(self, callback: ProgressCallback | None, total_bytes: int, phase: str) -> None:
        self._callback = callback
        self._total_bytes = total_bytes
        self._phase = phase
        self._done_bytes = 0
        self.set(0)

    def add(self, num_bytes: int) -> None:
        """Moves on by `num_bytes`."""
        self.set(self._done_bytes + num_bytes)

    def set(self, done_bytes: int) -> None:
        """Moves to `done_bytes`, never backwards and never past a known total."""
        done_bytes = max(done_bytes, self._done_bytes)
        if self._total_bytes:
            done_bytes = min(done_bytes, self._total_bytes)
        self._done_bytes = done_bytes
        if self._callback is not None:
            self._callback(done_bytes, self._total_bytes, self._phase)
