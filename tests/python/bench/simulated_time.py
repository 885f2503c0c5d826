"""Time for tests that passes only where they say so."""

import math
from collections.abc import Callable, Sequence

from gpu.steps import Threads


class Clock:
    """Seconds that a test adds to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SimulatedThreads(Threads):
    """What would run in the background runs at once, and ends when it would have."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._ends: dict[str, float] = {}

    def start(self, name: str, body: Callable[[], None]) -> None:
        begin = self._clock.now
        body()
        self._ends[name] = self._clock.now
        self._clock.now = begin

    def are_done(self, names: Sequence[str]) -> bool:
        return all(self._ends.get(name, 0.0) <= self._clock.now for name in names)

    def wait(self, done: Callable[[], bool], seconds: float | None = None) -> None:
        limit = math.inf if seconds is None else self._clock.now + seconds
        while not done() and self._clock.now < limit:
            ends = [end for end in self._ends.values() if end > self._clock.now]
            self._clock.now = min([*ends, limit])
