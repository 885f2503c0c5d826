"""Middleware of the API: request ids, keys, and the reading of bodies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib
import inspect
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, cast

import fastapi
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdec_serve.http.errors import ApiError, bad_request, is_anthropic
from specdec_serve.http.server_options import ServerOptions

# Requests to these paths need a key.
_GUARDED = ("/v1", "/v2", "/inference", "/infill", "/server_info", "/reset_prefix_cache")
_SAFE_ID = re.compile(rb"[\x21-\x7e]{1,256}")
_SLOWEST_BODY = 64 << 10  # bytes per second, beside a fixed time for every body
_MAX_DIGITS = 18
_LINGER_SECONDS = 2.0  # time for a client that still sends to read that its body is too long


def add_middleware(app: fastapi.FastAPI, options: ServerOptions) -> None:
    """Adds the middleware that the options ask for; the last added is the outermost."""
    app.add_middleware(
        Bodies, max_bytes=options.max_body_bytes, max_seconds=options.max_body_seconds
    )
    if options.api_keys:
        app.add_middleware(Keys, keys=options.api_keys)
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=options.allowed_methods,
            allow_headers=options.allowed_headers,
            allow_credentials=options.allow_credentials,
        )
    app.add_middleware(RequestIds, of_all=options.request_id_headers)
    for path in options.middleware:
        function = import_middleware(path)
        if inspect.isclass(function):
            app.add_middleware(cast(Any, function))
        else:
            app.middleware("http")(function)
    if options.root_path:
        app.add_middleware(RootPath, root_path=options.root_path)


def import_middleware(path: str) -> Any:
    """The class or coroutine function at an import path such as `package.module.Name`.

    Raises ValueError if there is none.
    """
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"middleware {path!r} cannot be imported: {error}") from error
    if not inspect.isclass(function) and not inspect.iscoroutinefunction(function):
        raise ValueError(f"middleware {path!r} is neither a class nor a coroutine function")
    return function


class RootPath:
    """Accepts paths with and without the prefix that a proxy has put before the API's."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tells the routes which prefix to remove."""
        await self._app({**scope, "root_path": self._root_path}, receive, send)


class Heads:
    """Answers HEAD like GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs HEAD as GET and drops the body."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


class RequestIds:
    """Sets the id of answers: the request header's, the body's request_id, or a new id.

    It is X-Request-Id, if `of_all`, and request-id in answers of Anthropic's API.
    """

    def __init__(self, app: ASGIApp, *, of_all: bool) -> None:
        self._app = app
        self._of_all = of_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Adds the header."""
        names = [b"x-request-id"] if self._of_all else []
        if scope["type"] == "http" and is_anthropic(scope["path"]):
            names.append(b"request-id")
        if scope["type"] != "http" or not names:
            await self._app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id")
        if given is None or not _SAFE_ID.fullmatch(given):
            given = uuid.uuid4().hex.encode()
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"x-request-id"]
        scope.setdefault("state", {})["request_id"] = given.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                chosen = scope["state"]["request_id"].encode()  # may have come from the body
                shown = chosen if _SAFE_ID.fullmatch(chosen) else given
                ids = [(name, shown) for name in names]
                message["headers"] = [*message.get("headers", ()), *ids]
            await send(message)

        await self._app(scope, receive, send_with_id)


class Keys:
    """Requires one of the keys in requests to the API."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers requests without a key with 401."""
        needs_key = scope["type"] == "http" and scope["method"] != "OPTIONS" and _is_guarded(scope)
        if needs_key and not any(map(self._is_known, _keys(scope))):
            error = ApiError(
                401,
                "A valid API key is needed: send the header 'Authorization: Bearer KEY' or "
                "'x-api-key: KEY'.",
                headers={"www-authenticate": "Bearer"},
            )
            await error.response(scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, key: bytes) -> bool:
        """Compares in constant time, whether or not the key is right."""
        digest = hashlib.sha256(key).digest()
        known = False
        for each in self._digests:
            known |= hmac.compare_digest(each, digest)
        return known


class Bodies:
    """Reads the whole body before the API sees the request, within limits of time and length."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a body that is too long with 413, a body that is too slow with 408."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            self._check_length(_header(scope, b"content-length"))
            body = await self._read(receive)
        except ApiError as error:
            await _refuse(error, scope, receive, send)
            return
        if body is None:
            return  # the client has left
        _set_length(scope, len(body))
        message: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def receive_again() -> Message:
            nonlocal message
            if message is None:
                return await receive()
            first, message = message, None
            return first

        await self._app(scope, receive_again, send)

    def _check_length(self, length: bytes | None) -> None:
        if length is None:
            return
        if not length.isdigit():
            raise bad_request("Content-Length must be a number")
        if len(length) > _MAX_DIGITS or int(length) > self._max_bytes:
            raise self._too_long()

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None where the client leaves. Raises ApiError."""
        chunks: list[bytes] = []
        num_bytes = 0
        with _Deadline(self._max_seconds) as deadline:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                chunk = message.get("body", b"")
                num_bytes += len(chunk)
                if num_bytes > self._max_bytes:
                    raise self._too_long()
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
                deadline.extend(len(chunk) / _SLOWEST_BODY)

    def _too_long(self) -> ApiError:
        return ApiError(
            413,
            f"The body is longer than {self._max_bytes} bytes; shorten it, or start the server "
            "with a larger --max-body-bytes.",
            headers={"connection": "close"},
        )


class _Deadline:
    """Interrupts the awaits in its block with an ApiError when the body is too slow."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds
        self._is_over = False

    def __enter__(self) -> _Deadline:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = self._loop.call_at(self._end, self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._is_over and kind is asyncio.CancelledError:
            uncancel: Callable[[], int] | None = getattr(self._task, "uncancel", None)  # 3.11
            if uncancel is not None:
                uncancel()
            raise ApiError(
                408, "The body has not come in time.", headers={"connection": "close"}
            ) from None

    def extend(self, seconds: float) -> None:
        """Moves the deadline."""
        self._end += seconds

    def _look(self) -> None:
        if self._loop.time() < self._end:
            self._timer = self._loop.call_at(self._end, self._look)
        else:
            self._is_over = True
            self._task.cancel()


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the error, then reads on for a while: closing at once would lose the answer."""
    response = error.response(scope)
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
    )
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    try:
        with _Deadline(_LINGER_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    except ApiError:
        pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def _keys(scope: Scope) -> list[bytes]:
    """The keys that a request gives, as OpenAI's clients send them and as Anthropic's do."""
    kind, _, key = (_header(scope, b"authorization") or b"").partition(b" ")
    keys = [key.strip()] if kind.lower() == b"bearer" else []
    other = _header(scope, b"x-api-key")
    return keys if other is None else [*keys, other.strip()]


def _set_length(scope: Scope, length: int) -> None:
    """Sets Content-Length, which not every client sends."""
    framing = (b"content-length", b"transfer-encoding")
    others = [pair for pair in scope["headers"] if pair[0] not in framing]
    scope["headers"] = [*others, (b"content-length", b"%d" % length)]


def _is_guarded(scope: Scope) -> bool:
    """Whether the path, with or without a proxy's prefix, needs a key."""
    path: str = scope["path"]
    inner = path.removeprefix(scope.get("root_path", ""))
    return any(f"/{each.lstrip('/')}".startswith(_GUARDED) for each in (path, inner))
