"""How a coroutine learns that its requests have news."""

from __future__ import annotations

import asyncio
import collections
from typing import Generic, Protocol, TypeVar


class HasNews(Protocol):
    """What a mailbox is about."""

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
        """Says that a request has news, in any thread; wake() must follow in the event loop's."""
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
