"""An HTTP server on the test's event loop that answers what a test says, when it says so."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

Step = tuple[float, bytes]  # seconds to wait, then a piece of the body


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def text_chunk(text: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish_reason}])


def usage_chunk(num_prompt: int, num_output: int, **fields: Any) -> bytes:
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_output}
    return event(choices=[], usage=usage, **fields)


class Reply:
    """An answer: its status, the pieces of its body, and how its end is told."""

    def __init__(
        self, steps: Sequence[Step] | bytes, *, status: int = 200, framing: str = "chunked"
    ) -> None:
        """`framing`: chunked, length, close (the connection's end), or torn (in the middle)."""
        self.steps = [(0.0, steps)] if isinstance(steps, bytes) else list(steps)
        self.status = status
        self.framing = framing


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply(json.dumps(value).encode(), status=status, framing="length")


class ScriptedServer:
    """What was asked, and what is answered.

    Attributes:
        requests: method, path and body of each request, in order.
        connections: how many there were.
    """

    def __init__(self, reply: Callable[[str, str, Any], Reply]) -> None:
        """`reply` is given the method, the path and the JSON of a request."""
        self._reply = reply
        self.requests: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_connections = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._answer(reader, writer):
                pass
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        text = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(text) if text else None
        self.requests.append((method, path, body))
        self.headers.append(headers)
        reply = self._reply(method, path, body)
        whole = b"".join(piece for _, piece in reply.steps)
        framing = {
            "chunked": "Transfer-Encoding: chunked\r\n",
            "length": f"Content-Length: {len(whole)}\r\n",
            "torn": f"Content-Length: {len(whole) + 1}\r\n",
            "close": "",
        }[reply.framing]
        writer.write(f"HTTP/1.1 {reply.status} Whatever\r\n{framing}\r\n".encode())
        for seconds, piece in reply.steps:
            if seconds:
                await writer.drain()
                await asyncio.sleep(seconds)
            is_chunk = reply.framing == "chunked"
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunk else piece)
        if reply.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return reply.framing in ("chunked", "length")
