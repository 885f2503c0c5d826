"""HTTP/1.1 connections of one server, kept open between requests, on asyncio's streams.

Bodies are handed on as they arrive, so that a reader knows the arrival time of each part.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

_PIECE_BYTES = 1 << 16
HTTP_OK = 200
_BODILESS = (204, 304)
_TORN = "the server closed the connection in the middle of an answer"


class ProtocolError(ConnectionError):
    """The server's answer is not HTTP, or it ends in the middle."""


@dataclasses.dataclass
class Response:
    """An answer whose body is still to be read."""

    status: int
    headers: Mapping[str, str]
    body: AsyncGenerator[bytes, None]

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.body])


class Connections:
    """Connections to one server. Any number of requests may run at once."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        """`headers` go with every request. Raises ValueError for what is no http(s) URL."""
        parts = urllib.parse.urlsplit(base_url)
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{base_url}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url} is not a URL such as http://127.0.0.1:8000")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes | None = None
    ) -> AsyncIterator[Response]:
        """The answer to a request. Its connection is reused if the body is read to the end.

        Raises OSError where the server cannot be reached or the connection breaks.
        """
        head = [f"{method} {self._path}{path} HTTP/1.1"]
        head += [f"{name}: {value}" for name, value in self._headers.items()]
        if body is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        message = "\r\n".join([*head, "", ""]).encode() + (body or b"")
        reader, writer, response = await self._exchange(message)
        is_done = False

        async def pieces() -> AsyncGenerator[bytes, None]:
            nonlocal is_done
            async with contextlib.aclosing(_body(reader, response)) as whole:
                async for piece in whole:
                    yield piece
            is_done = _stays_open(response.headers)

        response.body = pieces()
        try:
            yield response
        finally:
            await response.body.aclose()
            if is_done:
                self._idle.append((reader, writer))
            else:
                writer.close()

    async def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(
        self, message: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Response]:
        """Sends a request; reconnects where the server has closed an idle connection."""
        while self._idle and self._idle[-1][0].at_eof():
            self._idle.pop()[1].close()
        while True:
            is_used = bool(self._idle)
            reader, writer = (
                self._idle.pop()
                if is_used
                else await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            )
            try:
                writer.write(message)
                await writer.drain()
                return reader, writer, await _read_head(reader)
            except OSError:
                writer.close()
                if not is_used:
                    raise
            except BaseException:
                writer.close()
                raise


async def _read_head(reader: asyncio.StreamReader) -> Response:
    line = await _line(reader)
    version, _, rest = line.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdigit():
        raise ProtocolError(f"the server does not speak HTTP/1.1: {line[:80]!r}")
    headers: dict[str, str] = {}
    while line := await _line(reader):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if int(status) < HTTP_OK:  # such as 100 Continue
        return await _read_head(reader)
    return Response(int(status), headers, _nothing())


async def _nothing() -> AsyncGenerator[bytes, None]:
    return
    yield b""


async def _body(reader: asyncio.StreamReader, response: Response) -> AsyncGenerator[bytes, None]:
    headers = response.headers
    if response.status in _BODILESS:
        return
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := _number((await _line(reader)).partition(";")[0], 16):
            yield await _exactly(reader, size)
            await _line(reader)
        while await _line(reader):  # trailers
            pass
    elif "content-length" in headers:
        left = _number(headers["content-length"], 10)
        while left:
            if not (piece := await reader.read(min(left, _PIECE_BYTES))):
                raise ProtocolError(_TORN)
            left -= len(piece)
            yield piece
    else:
        while piece := await reader.read(_PIECE_BYTES):
            yield piece


def _number(text: str, base: int) -> int:
    """The size of a chunk or of a body."""
    try:
        return int(text, base)
    except ValueError:
        raise ProtocolError(f"the server sent {text[:80]!r} for a size") from None


def _stays_open(headers: Mapping[str, str]) -> bool:
    has_end = "content-length" in headers or "transfer-encoding" in headers
    return has_end and headers.get("connection", "").lower() != "close"


async def _line(reader: asyncio.StreamReader) -> str:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.IncompleteReadError:
        raise ProtocolError("the server closed the connection") from None
    except asyncio.LimitOverrunError:
        raise ProtocolError("the server sent a header that is too long") from None
    return line[:-2].decode("latin-1")


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise ProtocolError(_TORN) from None
