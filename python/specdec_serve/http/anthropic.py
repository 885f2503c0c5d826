"""POST /v1/messages and POST /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import fastapi
from starlette.requests import HTTPConnection
from starlette.responses import Response

from specdec_native.requests.inputs import Prompt
from specdec_native.requests.outputs import CompletionOutput
from specdec_serve.http.answer_items import Written
from specdec_serve.http.chunks import dumps, named_event
from specdec_serve.http.errors import ApiError
from specdec_serve.http.message_blocks import MessageBlocks
from specdec_serve.http.protocol.anthropic import (
    Conversation,
    CountTokensRequest,
    MessagesRequest,
)
from specdec_serve.http.service import Call, Generation, Service, body_bytes
from specdec_serve.http.sse import unless_disconnected
from specdec_serve.http.templates import located, template_options
from specdec_serve.http.tokenize import of_tokens
from specdec_serve.http.tools.answer import AnswerReader
from specdec_serve.http.tools.answer_params import ANTHROPIC_WORDS, adapt_params, check_served
from specdec_serve.http.tools.harmony import EFFORTS as HARMONY_EFFORTS
from specdec_serve.http.tools.request import ToolUse
from specdec_serve.http.usage import reasoning_tokens

_PING = named_event("ping", {})


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the routes."""

    @app.post("/v1/messages")
    async def messages(body: MessagesRequest, http: fastapi.Request) -> Response:
        service.check_model(body.model)
        body.check()
        tools = body.tool_use()
        check_served(service.answer_format, tools, ANTHROPIC_WORDS)
        generation = await service.start(call_of(body, tools, service, http))
        message = _Message(body, tools, generation, service)
        if body.stream:
            return service.event_stream(generation, _events(message, generation), pulse=_PING)
        whole = await unless_disconnected(http.receive, _whole(message, generation))
        return Response(dumps(whole), media_type="application/json")

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountTokensRequest, http: fastapi.Request) -> Response:
        service.check_model(body.model)
        template = _template_of(body, body.tool_use(), service)
        count = await of_tokens(
            service,
            body_bytes(http.headers),
            lambda: _prompt(body, template, service).text or "",
            lambda _, token_ids: len(token_ids),
            field="messages",
            add_special_tokens=False,  # the template writes them
        )
        return Response(dumps({"input_tokens": count}), media_type="application/json")


def call_of(
    body: MessagesRequest, tools: ToolUse | None, service: Service, http: HTTPConnection
) -> Call:
    """The Call for a request. Raises ApiError for what this engine cannot do."""
    truncate_to = body.truncated_to(service.max_model_len)
    template = _template_of(body, tools, service)
    reasoning = service.answer_format.reasoning
    params = body.message_params(service.defaults)
    adapt_params(params, service.answer_format, tools, body.grammar(), service.engine)
    if body.thinking is not None and reasoning is not None and reasoning.can_be_cut:
        params.thinking_token_budget = body.thinking.budget_tokens

    def make_prompts() -> list[Prompt]:
        prompt = _prompt(body, template, service)
        body.complete(prompt, truncate_to)
        return [prompt]

    return Call.of(
        body,
        http,
        kind="message",
        id_prefix="msg_",
        make_prompts=make_prompts,
        params=params,
        is_plain=not body.chat_template_kwargs,
    )


def _template_of(body: Conversation, tools: ToolUse | None, service: Service) -> dict[str, Any]:
    """Arguments of Engine.chat_prompt."""
    effort = body.effort
    if service.answer_format.is_harmony and effort not in (None, *HARMONY_EFFORTS):
        effort = HARMONY_EFFORTS[-1]  # there is none above
    return template_options(
        service,
        tools=body.chat_tools(),
        tool_use=tools,
        chat_template=None,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=effort,
        thinks=body.thinks,
    )


def _prompt(body: Conversation, template: Mapping[str, Any], service: Service) -> Prompt:
    """The conversation as a prompt. A last message of the assistant is continued.

    Raises ApiError for what the model's template cannot show.
    """
    chat = body.chat_messages()
    options = {
        **template,
        "add_generation_prompt": not chat.is_begun,
        "continue_final_message": chat.is_begun,
    }
    try:
        prompt = service.engine.chat_prompt(chat.messages, **options)
    except ValueError as error:
        simpler = chat.without_later_systems()
        if simpler.messages == chat.messages:
            raise located(error, chat.paths, "messages") from error
        try:
            prompt = service.engine.chat_prompt(simpler.messages, **options)
        except ValueError as other:
            raise located(other, simpler.paths, "messages") from other
    prompt.is_continued = chat.is_begun
    return prompt


class _Message:
    """The message as it grows.

    Attributes:
        error: what has ended it early, or None.
    """

    def __init__(
        self,
        body: MessagesRequest,
        tools: ToolUse | None,
        generation: Generation,
        service: Service,
    ) -> None:
        self._max_tokens = body.max_tokens
        self._generation = generation
        self._service = service
        self._num_tokens = 0
        self._num_cached = 0
        self._stop: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}
        reader = AnswerReader.of(tools, service.answer_format, generation.requests[0].params)
        self._blocks = MessageBlocks(reader, shows_thinking=body.shows_thinking)
        self.error: ApiError | None = None

    def begin(self) -> list[Written]:
        """The events before the first output."""
        return [("message_start", {"message": self.json()})]

    def add(self, part: CompletionOutput, num_cached: int | None) -> list[Written]:
        """Adds new output; returns its events, with those of the end after the last output."""
        self._num_tokens += len(part.token_ids)
        self._num_cached = max(self._num_cached, num_cached or 0)
        is_last = part.finish_reason is not None
        written = self._blocks.add(part.text, is_last=is_last)
        if not is_last:
            return written
        if part.finish_reason == "abort":
            self.error = ApiError(503, "The server has ended the message before its end.")
            return written
        self._stop = self._stop_of(part)
        return [
            *written,
            ("message_delta", {"delta": self._stop, "usage": self._usage()}),
            ("message_stop", {}),
        ]

    def json(self) -> dict[str, Any]:
        """The message as it is now."""
        return {
            "id": self._generation.call.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._service.model_name,
            "content": self._blocks.json(),
            **self._stop,
            "usage": self._usage(),
        }

    def _stop_of(self, part: CompletionOutput) -> dict[str, str | None]:
        reason, sequence = "end_turn", None
        if part.finish_reason == "length":
            reason = "max_tokens"
            if self._num_tokens < self._max_tokens and self._is_context_full:
                reason = "model_context_window_exceeded"
        elif self._blocks.has_call:
            reason = "tool_use"
        elif isinstance(part.stop_reason, str):
            reason, sequence = "stop_sequence", part.stop_reason
        return {"stop_reason": reason, "stop_sequence": sequence}

    @property
    def _is_context_full(self) -> bool:
        return self._num_prompt + self._num_tokens >= self._service.max_model_len

    @property
    def _num_prompt(self) -> int:
        return len(self._generation.requests[0].prompt_token_ids)

    def _usage(self) -> dict[str, Any]:
        """The tokens so far. At Anthropic the input does not include what the cache had."""
        thinking = reasoning_tokens(self._service, self._blocks.thoughts)
        return {
            "input_tokens": self._num_prompt - self._num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._num_cached,
            "output_tokens": self._num_tokens,
            "output_tokens_details": {"thinking_tokens": min(thinking, self._num_tokens)},
        }


async def _whole(message: _Message, generation: Generation) -> dict[str, Any]:
    (output,) = await generation.results()
    message.add(output.outputs[0], output.num_cached_tokens)
    if message.error is not None:
        raise message.error
    return message.json()


async def _events(message: _Message, generation: Generation) -> AsyncGenerator[bytes, None]:
    """Yields all events, a step's events together. Closes the generation."""
    try:
        yield _joined(message.begin()) + _PING
        async for outputs in generation:
            written: list[Written] = []
            for _, output in outputs:
                for part in output.outputs:
                    written += message.add(part, output.num_cached_tokens)
            if written:
                yield _joined(written)
    except ApiError as error:
        message.error = error
    finally:
        generation.close()
    if message.error is not None:
        body = message.error.anthropic_body(generation.call.request_id.removeprefix("msg_"))
        yield named_event("error", body)


def _joined(written: list[Written]) -> bytes:
    return b"".join(named_event(kind, members) for kind, members in written)
