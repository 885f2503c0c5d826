"""Our server with a fault planted between it and its clients."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Body = dict[str, Any]

_ANSWERS = ("/completions", "/chat/completions")


@dataclasses.dataclass
class Traffic:
    """What the server has seen.

    Attributes:
        num_running: requests that are being answered, this one included.
        num_streams: those of them that are streamed.
        seen: prompts that were answered before this one.
    """

    num_running: int = 0
    num_streams: int = 0
    seen: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Fault:
    """What a doctored server does.

    Attributes:
        request: changes the body of a request, given the traffic.
        answer: changes a whole answer, or an event of a stream, given the request's first body.
    """

    request: Callable[[Body, Traffic], None] = lambda _body, _traffic: None
    answer: Callable[[Body, Body], None] = lambda _answer, _request: None


class Doctored:
    """An ASGI application around the server's own."""

    def __init__(self, app: ASGIApp, fault: Fault) -> None:
        self._app = app
        self._fault = fault
        self._traffic = Traffic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(_ANSWERS):
            await self._app(scope, receive, send)
            return
        asked = await _whole_body(receive)
        body = json.loads(asked)
        first = json.loads(asked)
        prompt = json.dumps(first.get("prompt") or first.get("messages"))
        traffic = self._traffic
        traffic.num_running += 1
        traffic.num_streams += bool(first.get("stream"))
        try:
            self._fault.request(body, traffic)
            traffic.seen.add(prompt)
            changed = json.dumps(body).encode()
            headers = [(k, v) for k, v in scope["headers"] if k != b"content-length"]
            headers.append((b"content-length", str(len(changed)).encode()))
            sender = _Sender(send, lambda answer: self._fault.answer(answer, first))
            await self._app({**scope, "headers": headers}, _replayed(changed, receive), sender.send)
        finally:
            traffic.num_running -= 1
            traffic.num_streams -= bool(first.get("stream"))


async def _whole_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    is_sent = False

    async def replay() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class _Sender:
    """Changes the JSON of what the application sends: a whole body, or each event."""

    def __init__(self, send: Send, change: Callable[[Body], None]) -> None:
        self._send = send
        self._change = change
        self._start: Message = {}
        self._rest = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._rest += message.get("body", b"")
        is_stream = b"event-stream" in dict(self._start["headers"]).get(b"content-type", b"")
        is_last = not message.get("more_body")
        if is_stream:
            *events, self._rest = self._rest.split(b"\n\n")
            ready = b"".join(self._event(event) + b"\n\n" for event in events)
        elif not is_last:
            return
        else:
            ready = self._json(self._rest)
            kept = [(k, v) for k, v in self._start["headers"] if k.lower() != b"content-length"]
            self._start["headers"] = [*kept, (b"content-length", str(len(ready)).encode())]
        if "sent" not in self._start:
            await self._send(self._start)
            self._start["sent"] = True
        await self._send({"type": "http.response.body", "body": ready, "more_body": not is_last})

    def _event(self, event: bytes) -> bytes:
        prefix, data = event[:6], event[6:]
        if prefix != b"data: " or data == b"[DONE]":
            return event
        return prefix + self._json(data)

    def _json(self, text: bytes) -> bytes:
        answer = json.loads(text)
        if answer.get("choices"):
            self._change(answer)
        return json.dumps(answer).encode()
