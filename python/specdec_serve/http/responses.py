"""POST /v1/responses: one answer in the form of OpenAI's Responses API. Nothing is stored."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import fastapi
from starlette.requests import HTTPConnection
from starlette.responses import Response

from specdec_native.requests.inputs import Prompt
from specdec_native.requests.outputs import CompletionOutput
from specdec_serve.http.answer_items import Written
from specdec_serve.http.chunks import dumps, named_event
from specdec_serve.http.errors import ApiError
from specdec_serve.http.logprobs import TokenNames, chat_logprobs
from specdec_serve.http.protocol.common import check_max_tokens
from specdec_serve.http.protocol.responses import ResponsesRequest
from specdec_serve.http.response_items import OutputItems
from specdec_serve.http.service import Call, Generation, Service
from specdec_serve.http.sse import unless_disconnected
from specdec_serve.http.templates import located, template_options
from specdec_serve.http.tools.answer import AnswerReader
from specdec_serve.http.tools.answer_params import adapt_params, check_served
from specdec_serve.http.tools.request import ToolUse
from specdec_serve.http.usage import reasoning_tokens


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the routes."""

    @app.post("/v1/responses")
    async def responses(body: ResponsesRequest, http: fastapi.Request) -> Response:
        service.check_model(body.model)
        body.check()
        tools = body.tool_use()
        check_served(service.answer_format, tools)
        call = call_of(body, tools, service, http)
        generation = await service.start(call)
        answer = _Answer(body, tools, generation, service)
        if body.stream:
            return service.event_stream(generation, _events(answer, generation))
        whole = await unless_disconnected(http.receive, _whole(answer, generation))
        return Response(dumps(whole), media_type="application/json")

    @app.get("/v1/responses/{response_id}")
    @app.delete("/v1/responses/{response_id}")
    @app.post("/v1/responses/{response_id}/cancel")
    async def stored(response_id: str) -> Response:
        raise ApiError(
            404, f"The response {response_id[:80]!r} does not exist: this server stores none."
        )


def call_of(
    body: ResponsesRequest, tools: ToolUse | None, service: Service, http: HTTPConnection
) -> Call:
    """The Call for a request. Raises ApiError for what this engine cannot do."""
    check_max_tokens("max_output_tokens", body.max_output_tokens, service.max_model_len)
    truncate_to = body.truncated_to(service.max_model_len)
    if truncate_to is None and body.truncation == "auto":
        truncate_to = service.max_model_len - 1
    template = template_options(
        service,
        tools=body.chat_tools(),
        tool_use=tools,
        chat_template=None,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
    )

    params = body.response_params(service.defaults)
    adapt_params(params, service.answer_format, tools, body.grammar(), service.engine)

    def make_prompts() -> list[Prompt]:
        messages = body.messages()
        try:
            prompt = service.engine.chat_prompt([*messages.values()], **template)
        except ValueError as error:
            raise located(error, [*messages], "input") from error
        body.complete(prompt, truncate_to)
        return [prompt]

    return Call.of(
        body,
        http,
        kind="response",
        id_prefix="resp_",
        make_prompts=make_prompts,
        params=params,
        is_plain=not body.chat_template_kwargs,
    )


class _Answer:
    """The response as it grows."""

    def __init__(
        self,
        body: ResponsesRequest,
        tools: ToolUse | None,
        generation: Generation,
        service: Service,
    ) -> None:
        self._body = body
        self._generation = generation
        self._service = service
        self._created = int(time.time())
        self._num_tokens = 0
        self._num_cached = 0
        self._status = "in_progress"
        self._names = TokenNames(
            service.engine.tokenizer, as_token_ids=body.return_tokens_as_token_ids
        )
        self._items = OutputItems(
            AnswerReader.of(tools, service.answer_format, generation.requests[0].params)
        )
        self.error: ApiError | None = None

    @property
    def status(self) -> str:
        """in_progress, completed, incomplete or failed."""
        return "failed" if self.error is not None else self._status

    def add(self, part: CompletionOutput, num_cached: int | None) -> list[Written]:
        """Adds new output; returns its events."""
        logprobs = self._count(part, num_cached)
        is_last = part.finish_reason is not None
        return self._items.add(part.text, logprobs, part.text_lengths, is_last=is_last)

    def end(self) -> list[Written]:
        """Ends the last item; returns the events for that."""
        return self._items.end("incomplete" if self.error is not None else self.status)

    def _count(self, part: CompletionOutput, num_cached: int | None) -> list[dict[str, Any]]:
        self._num_tokens += len(part.token_ids)
        self._num_cached = max(self._num_cached, num_cached or 0)
        if part.finish_reason == "abort":
            self.error = ApiError(503, "The server has ended the response before its end.")
        elif part.finish_reason is not None:
            self._status = "incomplete" if part.finish_reason == "length" else "completed"
        if part.logprobs is None:
            return []
        num_top = self._body.top_logprobs or 0
        written = chat_logprobs(self._names, part.logprobs, num_top, part.text_lengths)
        logprobs: list[dict[str, Any]] = json.loads(written)["content"]
        return logprobs

    def response(self) -> dict[str, Any]:
        """The whole response as it is now."""
        body, params = self._body, self._generation.call.params
        has_ended = self.status != "in_progress"
        error = None
        if self.error is not None:
            error = {"code": "server_error", "message": str(self.error)}
        return {
            "id": self._generation.call.request_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if self.status == "completed" else None,
            "status": self.status,
            "background": False,
            "error": error,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if self.status == "incomplete" else None
            ),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._service.model_name,
            "output": self._items.json() if has_ended else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": None if body.reasoning is None else {"effort": body.reasoning.effort},
            "store": False,
            "temperature": params.temperature,
            "text": {"format": body.text_format()},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage() if has_ended else None,
            "user": body.user,
        }

    def _usage(self) -> dict[str, Any]:
        (request,) = self._generation.requests
        num_prompt = len(request.prompt_token_ids)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {
                "cached_tokens": self._num_cached,
                "cache_write_tokens": 0,
            },
            "output_tokens": self._num_tokens,
            "output_tokens_details": {
                "reasoning_tokens": min(
                    self._num_tokens, reasoning_tokens(self._service, self._items.reasoning)
                )
            },
            "total_tokens": num_prompt + self._num_tokens,
        }


async def _whole(answer: _Answer, generation: Generation) -> dict[str, Any]:
    (output,) = await generation.results()
    answer.add(output.outputs[0], output.num_cached_tokens)
    answer.end()
    return answer.response()


class _EventWriter:
    """Numbers the events of a stream."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, kind: str, **members: Any) -> bytes:
        """One event."""
        data = {"sequence_number": self._number, **members}
        self._number += 1
        return named_event(kind, data)

    def events(self, written: Iterable[Written]) -> bytes:
        """Several events, as items write them."""
        return b"".join(self.event(kind, **members) for kind, members in written)


async def _events(answer: _Answer, generation: Generation) -> AsyncGenerator[bytes, None]:
    """Yields all events, a step's events together. Closes the generation."""
    writer = _EventWriter()
    write = writer.event
    try:
        yield b"".join(
            [
                write("response.created", response=answer.response()),
                write("response.in_progress", response=answer.response()),
            ]
        )
        async for outputs in generation:
            written = []
            for _, output in outputs:
                for part in output.outputs:
                    written += answer.add(part, output.num_cached_tokens)
            yield writer.events(written)
    except ApiError as error:
        answer.error = error
        yield write("error", code="server_error", message=str(error), param=error.param)
    finally:
        generation.close()
    yield writer.events(answer.end()) + write(
        f"response.{answer.status}", response=answer.response()
    )
