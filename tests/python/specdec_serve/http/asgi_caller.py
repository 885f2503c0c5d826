"""Calls an ASGI application in its own event loop, without sockets."""

import asyncio
import dataclasses
from typing import Any

from starlette.types import ASGIApp, Message

Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [(b"host", b"test"), (b"content-type", b"application/json")]


@dataclasses.dataclass
class Answer:
    """What an application sent."""

    status: int
    headers: dict[str, str]
    body: bytes


def scope_of(method: str, path: str, headers: Headers, query: bytes = b"") -> dict[str, Any]:
    """ASGI's scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
    }


class AsgiCaller:
    """A client of an application: each call is a request of its own."""

    def __init__(self, app: ASGIApp, timeout: float = 30.0) -> None:
        self._app = app
        self._timeout = timeout

    async def call(
        self,
        method: str,
        path: str,
        *,
        headers: Headers = JSON_HEADERS,
        body: bytes = b"",
        query: bytes = b"",
        num_pieces: int = 1,
        leaves: bool = False,
    ) -> Answer:
        """The answer. Raises TimeoutError where none comes, and what the application raised.

        The body comes in `num_pieces`. A client that `leaves` does so when it has sent the body.
        """
        size = max(1, -(-len(body) // num_pieces))
        pieces = [body[i : i + size] for i in range(0, len(body), size)] or [b""]
        inbox: asyncio.Queue[Message] = asyncio.Queue()
        for i, piece in enumerate(pieces):
            more = i + 1 < len(pieces)
            inbox.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        if leaves:
            inbox.put_nowait({"type": "http.disconnect"})
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope = scope_of(method, path, headers, query)
        await asyncio.wait_for(self._app(scope, inbox.get, send), self._timeout)
        if not sent:
            assert leaves, "the application sent nothing"
            return Answer(499, {}, b"")
        start = sent[0]
        assert start["type"] == "http.response.start"
        pieces = [message.get("body", b"") for message in sent[1:]]
        names = {key.decode("latin1"): value.decode("latin1") for key, value in start["headers"]}
        return Answer(start["status"], names, b"".join(pieces))
