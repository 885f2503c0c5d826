"""A lock that threads get in the order they asked for it."""

from __future__ import annotations

import collections
import threading
from types import TracebackType


class FairLock:
    """Hands itself over in first-come order.

    `threading.Lock` lets a thread that releases and at once reacquires it, as a loop over engine
    steps does, keep all others waiting. Not reentrant.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiters: collections.deque[threading.Lock] = collections.deque()

    def acquire(self, blocking: bool = True) -> bool:
        """Takes the lock; without `blocking`, returns False if that would mean waiting."""
        with self._guard:
            if not self._held:
                self._held = True
                return True
            if not blocking:
                return False
            turn = threading.Lock()
            turn.acquire()
            self._waiters.append(turn)
        try:
            turn.acquire()
        except BaseException:  # interrupted: leave the queue, or pass on a turn that just came
            with self._guard:
                if turn in self._waiters:
                    self._waiters.remove(turn)
                    raise
            self.release()
            raise
        return True

    def release(self) -> None:
        """Passes the lock to the thread that has waited longest."""
        with self._guard:
            if self._waiters:
                self._waiters.popleft().release()
            else:
                self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
