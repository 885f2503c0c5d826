"""A server with OpenAI's API, as the experiments ask it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_lab.benchmark.client import acceptance_of_page
from specdec_lab.benchmark.connections import HTTP_OK, Connections
from specdec_lab.benchmark.event_stream import error_text
from specdec_lab.conformance.replies import Reply, Unreadable

_BAD_REQUEST = 400
_SERVER_ERROR = 500
_NOT_FOUND = (404, 405, 501)
_EXTENSIONS: Mapping[str, Any] = {
    # Fields beside OpenAI's that make answers comparable, with the values that are sent.
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
# Of fields that questions are about: a value that makes sense, and one of the wrong type.
_SENSE: Mapping[str, Any] = {
    "top_k": 5,
    "stop_token_ids": [1],
    "min_tokens": 1,
    "return_tokens_as_token_ids": True,
}
_NONSENSE = {"no": "such value"}
_PATIENCE_SECONDS = 600.0
_LOGPROB_COUNTS = (20, 10, 5)  # the most that a server gives is taken


class Missing(Exception):
    """The server lacks what a question needs; the message says what."""


class Refused(Exception):
    """The server refused a question that it should answer, or did not answer it whole."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"HTTP {reply.status}: {reply.error}")
        self.reply = reply


class Server:
    """A server behind a URL.

    Attributes:
        url: with its /v1, /v3, ...
        model: the name in requests.
        is_chat: whether questions go to /chat/completions, where there are no completions.
        num_logprobs: how many of the most likely tokens answers list; 0 for none.
        ignores_logprobs: whether it answers a request for logprobs, without any.
        max_context: tokens of a prompt and its answer, where the server says it.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        api_key: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """`extra_body` are further members of each request. Raises ValueError for a bad URL."""
        base = url.rstrip("/")
        has_version = urllib.parse.urlsplit(base).path.rpartition("/")[2] in ("v1", "v3")
        self.url = base if has_version else base + "/v1"
        self.model = model
        self.is_chat = False
        self.num_logprobs = 0
        self.ignores_logprobs = False
        self.max_context: int | None = None
        self._extra = dict(extra_body or {})
        self._extensions: dict[str, Any] = {}
        self._logprob_fields: dict[str, Any] | None = None
        self._readings: dict[str, bool] = {}
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = Connections(self.url, headers)
        self._root = Connections(self.url.rpartition("/")[0], headers)

    async def meet(self, *, is_chat: bool = False) -> None:
        """Finds the model, the endpoint and the fields that the server takes.

        is_chat: ask chats even where there are completions, as another server is asked.

        Raises ConnectionError where the server cannot be reached, ValueError where it lists no
        model, Refused where it answers neither completions nor chats.
        """
        await self._read_models()
        self.is_chat = is_chat
        reply = await self._one_token()
        if reply.status in _NOT_FOUND and not is_chat:
            self.is_chat = True
            reply = await self._one_token()
        if reply.error is not None:
            raise Refused(reply)
        for name, value in _EXTENSIONS.items():
            if (await self._one_token(**{name: value})).error is None:
                self._extensions[name] = value
        for count in _LOGPROB_COUNTS:
            fields = (
                {"logprobs": True, "top_logprobs": count} if self.is_chat else {"logprobs": count}
            )
            reply = await self._one_token(**fields)
            if reply.error is None and reply.first.tokens:
                self._logprob_fields, self.num_logprobs = fields, count
                break
            self.ignores_logprobs |= reply.error is None

    @property
    def has_logprobs(self) -> bool:
        """Whether answers have logprobs when they are asked for."""
        return self._logprob_fields is not None

    async def ask(self, prompt: str, *, with_logprobs: bool = False, **fields: Any) -> Reply:
        """The whole answer to a question. Raises Missing for logprobs, Refused for no answer."""
        reply = await self.try_ask(prompt, with_logprobs=with_logprobs, **fields)
        if reply.error is not None:
            raise Refused(reply)
        return reply

    async def ask_all(
        self, prompts: Sequence[str], *, with_logprobs: bool = False, **fields: Any
    ) -> list[Reply]:
        """The answers to questions that are asked at once."""
        return list(
            await asyncio.gather(
                *(self.ask(prompt, with_logprobs=with_logprobs, **fields) for prompt in prompts)
            )
        )

    async def try_ask(
        self,
        prompt: str,
        *,
        with_logprobs: bool = False,
        cancel_after: int | None = None,
        **fields: Any,
    ) -> Reply:
        """An answer that may be an error.

        prompt: the text, or a user's message where the server has chats only.
        with_logprobs: as many as the server gives.
        cancel_after: closes the connection of a streamed answer after so many events.
        fields: of the request; with stream=True the answer is put together from its events.
        """
        body = self._body(prompt, fields)
        if with_logprobs:
            if self._logprob_fields is None:
                raise Missing("logprobs")
            body |= self._logprob_fields
        path = "/chat/completions" if self.is_chat or "messages" in fields else "/completions"
        return await self._post(path, body, cancel_after)

    async def reads(self, field: str) -> bool:
        """Whether the server reads a field of _SENSE: it takes that value, and refuses another."""
        if field not in self._readings:
            right = await self._one_token(**{field: _SENSE[field]})
            wrong = await self._one_token(**{field: _NONSENSE})
            is_refused = _BAD_REQUEST <= wrong.status < _SERVER_ERROR
            self._readings[field] = right.error is None and is_refused
        return self._readings[field]

    async def num_accepted(self) -> int | None:
        """Accepted draft tokens since the server's start, from /metrics; None if it is silent."""
        try:
            async with self._root.request("GET", "/metrics") as response:
                text = (await response.read()).decode(errors="replace")
        except OSError:
            return None
        acceptance = acceptance_of_page(text)
        return None if acceptance is None else acceptance.num_accepted_tokens

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()
        await self._root.close()

    async def _read_models(self) -> None:
        """The model's name, unless it is known, and its context, where the server says it."""
        try:
            async with self._http.request("GET", "/models") as response:
                text = await response.read()
        except OSError as error:
            raise ConnectionError(
                f"{self.url} cannot be reached ({error}); start the server, or give another URL"
            ) from error
        try:
            models = {str(entry["id"]): entry for entry in json.loads(text)["data"]}
        except (ValueError, LookupError, TypeError):
            models = {}
        if not self.model:
            if not models:
                raise ValueError(f"{self.url}/models names no model; give --model")
            self.model = next(iter(models))
        entry = models.get(self.model) or {}
        context = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
        self.max_context = None if context is None else int(context)

    async def _one_token(self, **fields: Any) -> Reply:
        return await self.try_ask("Hello", max_tokens=1, temperature=0, **fields)

    def _body(self, prompt: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        asked: dict[str, Any] = {"model": self.model}
        if self.is_chat and "messages" not in fields:
            asked["messages"] = [{"role": "user", "content": prompt}]
        elif "messages" not in fields:
            asked["prompt"] = prompt
        if fields.get("stream"):
            asked["stream_options"] = {"include_usage": True}
        return {**asked, **self._extensions, **self._extra, **fields}

    async def _post(self, path: str, body: Mapping[str, Any], cancel_after: int | None) -> Reply:
        reply = Reply()
        begin = time.perf_counter()
        try:
            await asyncio.wait_for(
                self._exchange(path, body, cancel_after, reply), _PATIENCE_SECONDS
            )
        except asyncio.TimeoutError:
            reply.error = f"no answer in {_PATIENCE_SECONDS:g} s"
        except (OSError, ValueError, Unreadable) as error:
            reply.error = str(error) or type(error).__name__
        reply.seconds = time.perf_counter() - begin
        if reply.error is None and not reply.completions and cancel_after is None:
            reply.error = "the answer has no choices"
        return reply

    async def _exchange(
        self, path: str, body: Mapping[str, Any], cancel_after: int | None, reply: Reply
    ) -> None:
        message = json.dumps(body).encode()
        async with self._http.request("POST", path, message) as response:
            reply.status = response.status
            if response.status != HTTP_OK:
                reply.error = error_text(await response.read())
                return
            if not body.get("stream"):
                reply.take(json.loads(await response.read()))
                return
            num_events = 0
            async with contextlib.aclosing(_events(response.body)) as events:
                async for data in events:
                    if data == "[DONE]":
                        reply.has_done = True
                        return
                    reply.take(json.loads(data))
                    num_events += 1
                    if num_events == cancel_after:
                        return
        if not reply.completions or not all(c.finish_reason for c in reply.completions):
            raise Unreadable("the stream ended in mid-answer")


async def meet_all(subjects: Sequence[Server]) -> None:
    """Meets servers that are to be asked the same: by chats if one of them has nothing else.

    Raises what Server.meet raises.
    """
    for server in subjects:
        await server.meet()
    if any(server.is_chat for server in subjects):
        for server in subjects:
            if not server.is_chat:
                await server.meet(is_chat=True)


async def _events(body: Any) -> Any:
    """The data of server-sent events."""
    rest = b""
    async for piece in body:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode()
