"""The outputs of requests, as an iterator."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType

from specdec_native import _core
from specdec_native.requests.news import Mailbox
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.request import Request
from specdec_native.requests.request_runner import RequestRunner


class RequestStream(Iterator[RequestOutput], AsyncIterator[RequestOutput]):
    """The outputs of requests as they come, by `for` or `async for`. For one reader at a time.

    The requests run whether or not anybody reads; an output holds everything since its request's
    last one. Outputs of several requests alternate, and their request_id says whose they are. The
    error of a request that failed is raised after its last output, once; the others go on.
    """

    def __init__(
        self,
        owner: object,
        runner: RequestRunner,
        requests: Sequence[Request],
        handles: Sequence[_core.RequestHandle],
    ) -> None:
        self._owner = owner  # the engine, which lives as long as the stream
        self._runner = runner
        self._requests = requests
        self._handles = handles  # they abort the requests when the stream is dropped
        self._unread = list(requests)  # those whose end was not shown
        # Those of them that had something to show when the reader last waited. A request that an
        # interrupt takes out of here unread is found again.
        self._ready: collections.deque[Request] = collections.deque()
        self._mailbox: Mailbox[Request] | None = None  # of the coroutine that reads

    @property
    def request_ids(self) -> list[str]:
        """The requests' ids, in the order of their prompts."""
        return [request.request_id for request in self._requests]

    @property
    def request_id(self) -> str:
        """The only request's id, for Engine.abort(). Raises ValueError if there are several."""
        if len(self._requests) != 1:
            raise ValueError(f"this stream has {len(self._requests)} requests: use request_ids")
        return self._requests[0].request_id

    @property
    def finished(self) -> bool:
        """Whether every request has ended, so that reading their last outputs does not wait."""
        return all(request.finished for request in self._requests)

    def __iter__(self) -> RequestStream:
        return self

    def __next__(self) -> RequestOutput:
        if not self._ready:
            self._runner.wait_for(self._is_readable)
        if not self._ready:
            raise StopIteration
        return self._take_output(self._ready.popleft())

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if not self._ready:
            mailbox = self._mailbox_here()
            while not self._is_readable():
                await self._runner.wait_for_news(mailbox)
        if not self._ready:
            raise StopAsyncIteration
        return self._take_output(self._ready.popleft())

    def abort(self) -> None:
        """Ends the requests soon; their last outputs have the finish_reason "abort"."""
        for handle in self._handles:
            handle.abort()

    def close(self) -> None:
        """Aborts the requests that are unfinished, and waits for their end; iteration ends."""
        if not self.finished:
            self.abort()
            self._runner.wait_for(lambda: self.finished)

    def _is_readable(self) -> bool:
        """Whether reading does not wait; looks for requests that have something to show."""
        self._unread = [r for r in self._unread if not r.finished or r.has_news()]
        self._ready = collections.deque(r for r in self._unread if r.has_news())
        return bool(self._ready) or not self._unread

    def _take_output(self, request: Request) -> RequestOutput:
        try:
            return request.take_output()
        except BaseException as error:
            if error is request.error:
                self._unread.remove(request)
            raise

    def _mailbox_here(self) -> Mailbox[Request]:
        """The mailbox of the running event loop, where all news from here on come."""
        if self._mailbox is None or self._mailbox.loop is not asyncio.get_running_loop():
            self._mailbox = Mailbox()
            for request in self._requests:
                request.mailbox = self._mailbox
        return self._mailbox

    def __enter__(self) -> RequestStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Aborts the requests that are unfinished; waits for nothing."""
        self.abort()
