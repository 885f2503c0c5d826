"""One request's outputs, as an iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from specdec_native import _core
from specdec_native.requests.news import Mailbox
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.request import Request
from specdec_native.requests.request_runner import RequestRunner


class RequestStream(Iterator[RequestOutput], AsyncIterator[RequestOutput]):
    """The outputs of one request as they come, by `for` or `async for`. For one reader at a time.

    The request runs whether or not anybody reads; an output holds everything since the last one.
    """

    def __init__(
        self, owner: object, runner: RequestRunner, request: Request, handle: _core.RequestHandle
    ) -> None:
        self._owner = owner  # the engine, which lives as long as the stream
        self._runner = runner
        self._request = request
        self._handle = handle  # aborts the request when the stream is dropped

    @property
    def request_id(self) -> str:
        """The request's id, for Engine.abort()."""
        return self._request.request_id

    @property
    def finished(self) -> bool:
        """Whether the request has ended, so that reading its last output does not wait."""
        return self._request.finished

    def __iter__(self) -> RequestStream:
        return self

    def __next__(self) -> RequestOutput:
        self._runner.wait_for(self._is_readable)
        if not self._request.has_news():
            raise StopIteration
        return self._request.take_output()

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        mailbox = self._request.mailbox
        if mailbox is None or mailbox.loop is not asyncio.get_running_loop():
            mailbox = self._request.mailbox = Mailbox()  # news from here on come there
        while not self._is_readable():
            await self._runner.wait_for_news(mailbox)
        if not self._request.has_news():
            raise StopAsyncIteration
        return self._request.take_output()

    def abort(self) -> None:
        """Ends the request soon; its last output has the finish_reason "abort"."""
        self._handle.abort()

    def close(self) -> None:
        """Aborts the request if it is unfinished, and waits for its end; iteration ends."""
        if not self._request.finished:
            self.abort()
            self._runner.wait_for(self._request.is_finished)

    def _is_readable(self) -> bool:
        return self._request.finished or self._request.has_news()

    def __enter__(self) -> RequestStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
