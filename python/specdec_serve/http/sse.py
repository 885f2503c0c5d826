"""Answers, whole or as server-sent events, that stop when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

Result = TypeVar("Result")

KEEP_ALIVE = b": keep-alive\n\n"  # a comment


class Disconnected(Exception):
    """The client has left: nobody reads the answer."""


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of `work`. If the client leaves, cancels it and raises Disconnected.

    `receive` belongs to a request whose body was read.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Disconnected
    finally:
        for each in (task, leaving):
            each.cancel()
        await asyncio.wait([task])  # lets it clean up


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. `events` is closed when the client leaves.

    A slow client delays `events`, which then has more to send at once.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], None],
        keep_alive_seconds: float = 0.0,
        pulse: bytes = KEEP_ALIVE,
    ) -> None:
        """`close` is called at the end, even if `events` never began.

        After `keep_alive_seconds` without events `pulse` is sent.
        """
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._last_sent = 0.0
        self._keep_alive = keep_alive_seconds
        self._pulse = pulse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until they or the client end."""
        try:
            await unless_disconnected(receive, self._send_all(send))
        except (Disconnected, OSError):
            pass
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        pulse = asyncio.ensure_future(self._send_pulse(send)) if self._keep_alive else None
        try:
            async for event in self._events:
                await send(_body(event))
                self._last_sent = asyncio.get_running_loop().time()
        finally:
            if pulse is not None:
                pulse.cancel()
            await self._events.aclose()
        await send(_body(b"", more=False))

    async def _send_pulse(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._keep_alive)
            if loop.time() - self._last_sent >= self._keep_alive:
                await send(_body(self._pulse))


def _body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
