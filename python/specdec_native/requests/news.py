"""Wakes waiting threads and coroutines when a request has changed."""

from __future__ import annotations

import asyncio
import collections
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar


class HasNews(Protocol):
    """The members of a request that News uses."""

    mailbox: Mailbox[Any] | None  # belongs to the coroutine that reads the request

    def has_news(self) -> bool:
        """Whether there is something to read."""


RequestT = TypeVar("RequestT", bound=HasNews)


class Mailbox(Generic[RequestT]):
    """Tells one coroutine which of its requests have news. Belongs to the running event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._letters: collections.deque[RequestT] = collections.deque()
        self._waiting: asyncio.Future[None] | None = None

    def put(self, request: RequestT) -> None:
        """Adds a request with news. Any thread; wake() must follow in the event loop's thread."""
        self._letters.append(request)

    def wake(self) -> None:
        """Makes the coroutine look again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def take(self) -> list[RequestT]:
        """The requests that have news, each once."""
        taken: dict[RequestT, None] = {}
        while self._letters:
            taken[self._letters.popleft()] = None
        return [request for request in taken if request.has_news()]

    async def wait(self) -> None:
        """Waits until there may be something to take, or for wake()."""
        if not self._letters:
            self._waiting = self.loop.create_future()
            await self._waiting


class _Bell:
    """Wakes an event loop once for all mailboxes that got news since it last looked."""

    def __init__(self) -> None:
        self._mailboxes: collections.deque[Mailbox[Any]] = collections.deque()
        self._is_rung = False

    def ring(self, mailbox: Mailbox[Any]) -> None:
        """Called in the thread that announces."""
        self._mailboxes.append(mailbox)
        if not self._is_rung:
            self._is_rung = True
            try:
                mailbox.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # the loop was closed
                self._is_rung = False
                self._mailboxes.clear()

    def _answer(self) -> None:
        self._is_rung = False  # first, so that any later ring() schedules another wake-up
        while self._mailboxes:
            self._mailboxes.popleft().wake()


class News:
    """Wakes the threads that wait for something to change, and the coroutines with a mailbox.

    Unlike threading.Condition, which is written in Python, it has no state that an exception from a
    signal handler could corrupt: the only lock is one per waiting thread, in C.
    """

    def __init__(self) -> None:
        self._waiting: collections.deque[threading.Lock] = collections.deque()
        self._bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bell] = (
            weakref.WeakKeyDictionary()
        )

    def announce(self, requests: Iterable[HasNews] = ()) -> None:
        """Makes all threads that wait look again, and the coroutines that read these requests."""
        for request in requests:
            mailbox = request.mailbox
            if mailbox is not None:
                mailbox.put(request)
                bell = self._bells.get(mailbox.loop)
                if bell is None:
                    bell = self._bells[mailbox.loop] = _Bell()
                bell.ring(mailbox)
        for _ in range(len(self._waiting)):
            try:
                self._waiting.popleft().release()
            except IndexError:  # another thread announces, too
                return

    def wait_until(self, is_true: Callable[[], bool], timeout: float = -1.0) -> bool:
        """Waits until `is_true()`, or for `timeout` seconds; returns whether it came true."""
        while not is_true():
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
            if is_true():  # it may have come true before this thread was in the queue
                break
            if not turn.acquire(timeout=timeout):
                return is_true()
        return True
