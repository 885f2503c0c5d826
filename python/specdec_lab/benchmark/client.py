"""A client of an OpenAI-compatible server that times the chunks of streamed answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from specdec_lab.benchmark.answers import Acceptance, Answer, Question
from specdec_lab.benchmark.connections import HTTP_OK, Connections
from specdec_lab.benchmark.event_stream import AnswerStream, StreamError, error_text

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

_PATIENCE_SECONDS = 60.0  # for short answers; the model's answers may take any time
_COUNTER = re.compile(
    r"^vllm:spec_decode_num_(?P<name>drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"_total(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>[\d.eE+]+)",
    re.M,
)
_POSITION = re.compile(r'position="(\d+)"')


class OpenAIClient:
    """A server behind a URL.

    Attributes:
        name: the URL.
        model: the model name in requests; find_model() sets it.
    """

    def __init__(
        self,
        base_url: str,
        *,
        endpoint: str = COMPLETIONS,
        model: str = "",
        api_key: str | None = None,
        temperature: float | None = 0.0,
        ignore_eos: bool = False,
        extra_body: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        """`extra_body` are further members of each request; they replace ours of the same name."""
        self.name = name or base_url
        self.model = model
        self._is_chat = endpoint.rstrip("/").endswith("/chat/completions")
        self._endpoint = endpoint
        self._fixed: dict[str, Any] = {
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if temperature is None else {"temperature": temperature}),
            **({"ignore_eos": True} if ignore_eos else {}),
        }
        self._sends_seed = temperature != 0
        self._extra = dict(extra_body or {})
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._url = base_url
        try:
            self._http = Connections(base_url.rstrip("/").removesuffix("/v1"), headers)
        except ValueError as error:
            raise ValueError(f"--base-url {error}") from error

    async def find_model(self) -> str:
        """Sets `model` to the server's first model unless it is set; returns it.

        Raises ConnectionError where the server cannot be reached, ValueError where it lists no
        model.
        """
        try:
            status, text = await self._fetch("/v1/models")
        except (OSError, asyncio.TimeoutError) as error:
            why = str(error) or f"no answer in {_PATIENCE_SECONDS:g} s"
            raise ConnectionError(
                f"{self._url} cannot be reached ({why}); start the server, or give another "
                "--base-url"
            ) from error
        if not self.model:
            try:
                self.model = str(json.loads(text)["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise ValueError(
                    f"{self._url}/v1/models names no model (HTTP {status}); give --model"
                ) from None
        return self.model

    async def ask(self, question: Question) -> Answer:
        """The answer; a failed one has an error, and the HTTP status if there is one."""
        body = json.dumps(self._body_of(question)).encode()
        clock = asyncio.get_running_loop().time
        answer = Answer(question, clock())
        try:
            async with self._http.request("POST", self._endpoint, body) as response:
                answer.status = response.status
                if response.status != HTTP_OK:
                    answer.error = error_text(await response.read())
                    return answer
                stream = AnswerStream(answer)
                async for piece in response.body:
                    stream.take(piece, clock())
                stream.end()
        except (OSError, ValueError, StreamError) as error:
            answer.error = str(error) or type(error).__name__
        except (LookupError, TypeError, AttributeError) as error:
            answer.error = f"the stream is not one of OpenAI's API: {error!r}"
        return answer

    async def acceptance(self) -> Acceptance | None:
        """How all drafts so far fared, from /metrics."""
        text = await self._get("/metrics")
        return None if text is None else acceptance_of_page(text.decode(errors="replace"))

    async def count_tokens(self, text: str) -> int | None:
        """The tokens of a prompt, from /tokenize, which vLLM's server has, too."""
        reply = await self._get("/tokenize", {"model": self.model, "prompt": text})
        try:
            return None if reply is None else int(json.loads(reply)["count"])
        except (ValueError, LookupError, TypeError):
            return None

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.close()

    def _body_of(self, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "max_tokens": question.max_tokens}
        if self._is_chat:
            body["messages"] = [{"role": "user", "content": question.prompt}]
        else:
            text = question.prompt
            body["prompt"] = text if isinstance(text, str) else list(text)
        if self._sends_seed:
            body["seed"] = question.seed
        return {**body, **self._fixed, **self._extra}

    async def _get(self, path: str, body: Mapping[str, Any] | None = None) -> bytes | None:
        """The body of an optional path; None where the server does not have it."""
        try:
            status, text = await self._fetch(path, body)
        except (OSError, asyncio.TimeoutError):
            return None
        return text if status == HTTP_OK else None

    async def _fetch(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """The status and body of a short answer. Raises OSError, asyncio.TimeoutError."""

        async def work() -> tuple[int, bytes]:
            message = None if body is None else json.dumps(body).encode()
            method = "GET" if message is None else "POST"
            async with self._http.request(method, path, message) as response:
                return response.status, await response.read()

        return await asyncio.wait_for(work(), _PATIENCE_SECONDS)


def acceptance_of_page(text: str) -> Acceptance | None:
    """The draft counters of a /metrics page, summed over engines; None without any."""
    totals: dict[str, int] = {}
    positions: dict[int, int] = {}
    for sample in _COUNTER.finditer(text):
        value = int(float(sample["value"]))
        position = _POSITION.search(sample["labels"] or "")
        if position is not None:
            positions[int(position[1])] = positions.get(int(position[1]), 0) + value
        else:
            totals[sample["name"]] = totals.get(sample["name"], 0) + value
    if "drafts" not in totals:
        return None
    return Acceptance(
        totals["drafts"],
        totals.get("draft_tokens", 0),
        totals.get("accepted_tokens", 0),
        tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1)),
    )
