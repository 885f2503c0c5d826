"""HTTP connections with limits on the time and size of requests."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's connection, closed where headers take too long or are too large.

    Attributes:
        header_seconds: time from the connection, or from a request's first byte, to the end of its
            headers.
        max_header_bytes: limit of headers, chunk extensions and trailers; more gets a 431.
        max_headers: limit of a request's headers; more gets a 400.
        half_closed_seconds: how often to check that a client which has closed its sending side is
            still there.
        max_pipelined: requests that may wait on a connection for earlier answers; one more closes
            the connection.
    """

    header_seconds = 30.0
    max_header_bytes = 64 << 10
    max_headers = 256
    max_pipelined = 16
    half_closed_seconds = 2.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._num_header_bytes = 0  # since the last complete headers, body piece or request
        self._num_head_bytes = 0  # URL and headers of the request
        self._running: RequestResponseCycle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._has_asked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts waiting for a request."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: ends all its requests, pipelined ones included."""
        self._stop_waiting()
        if self._look is not None:
            self._look.cancel()
        self.pipeline.clear()
        super().connection_lost(exc)
        self._end_running()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has closed its sending side. It may still read the answers.

        Only sending something shows whether it still reads. So after a while the server sends
        "100 Continue", which HTTP/1.1 clients skip, or an empty line in an event stream.
        """
        last = self.cycle
        if self.scheme == "https" or last is None or last.more_body or last.response_complete:
            return False  # closes the connection, as TLS does in any case
        last.keep_alive = False
        self._look = self.loop.call_later(self.half_closed_seconds, self._look_for_client)
        return True

    def data_received(self, data: bytes) -> None:
        """Bytes of headers or of a body."""
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_headers()  # the next request's
        self._num_header_bytes += len(data)
        super().data_received(data)
        if self._num_header_bytes > self.max_header_bytes:
            self._refuse(431)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the URL. An error makes uvicorn answer 400."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. An error makes uvicorn answer 400."""
        if len(self.headers) >= self.max_headers:
            raise ValueError(f"more than {self.max_headers} headers")
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers are complete; the application awaits the body."""
        self._stop_waiting()
        self._num_header_bytes = 0
        super().on_headers_complete()
        if len(self.pipeline) > self.max_pipelined:
            self.transport.close()
        elif self.pipeline:
            self.flow.resume_reading()  # else a client that leaves would go unnoticed

    def on_body(self, body: bytes) -> None:
        """A piece of a body, which the application counts."""
        self._num_header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._num_header_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers invalid HTTP and closes: earlier requests can no longer be answered."""
        if self._num_head_bytes > self.max_header_bytes:
            self._refuse(431)
            return
        super().send_400_response(msg)
        self._end_running()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _end_running(self) -> None:
        """Tells the running request that its client has left."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _count_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self.max_header_bytes:
            raise ValueError(f"more than {self.max_header_bytes} bytes of headers")

    def _look_for_client(self) -> None:
        """Closes the connection if the client has: a closed client answers with a reset."""
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        running = self._running
        is_gone = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        if not is_gone and not self._has_asked and running is not None:
            self._has_asked = True
            if running.scope["http_version"] != "1.1":
                is_gone = not running.response_started  # as far as can be known
            elif not running.response_started:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif running.chunked_encoding:
                self.transport.write(b"1\r\n\n\r\n")
        if is_gone:
            self.transport.abort()
            return
        self._look = self.loop.call_later(self.half_closed_seconds, self._look_for_client)

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(self.header_seconds, self._refuse, 408)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int) -> None:
        self._stop_waiting()
        if self.transport.is_closing():
            return
        running = self._running
        if running is None or running.response_complete or not running.response_started:
            headers = b"content-length: 0\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + headers)
        self._end_running()
        self.transport.close()
