"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import fastapi
from starlette.requests import HTTPConnection
from starlette.responses import Response

from specdec_native.common.checks import check_text
from specdec_native.requests.inputs import Prompt
from specdec_native.requests.outputs import RequestOutput
from specdec_serve.http.chat_choices import Deltas, Messages
from specdec_serve.http.chunks import dumps
from specdec_serve.http.logprobs import prompt_logprobs_json
from specdec_serve.http.messages import plain_messages
from specdec_serve.http.protocol.chat import ChatCompletionRequest
from specdec_serve.http.protocol.common import check_max_tokens, check_n
from specdec_serve.http.service import Call, Service
from specdec_serve.http.sse import unless_disconnected
from specdec_serve.http.streaming import answer_of, events_of
from specdec_serve.http.templates import template_options
from specdec_serve.http.tools.answer_params import adapt_params, check_served
from specdec_serve.http.tools.request import ToolUse


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the route."""

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatCompletionRequest, http: fastapi.Request) -> Response:
        service.check_model(body.model)
        body.check()
        tools = body.tool_use()
        check_served(service.answer_format, tools)
        messages = plain_messages(body.messages)
        call = call_of(body, messages, tools, service, http)
        generation = await service.start(call)
        head = {
            "id": call.request_id,
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": service.model_name,
        }
        if body.stream:
            ids = generation.requests[0].prompt_token_ids
            events = events_of(
                generation,
                head,
                Deltas(body, messages, tools, generation, service),
                body.stream_options,
                service.options,
                first_members=f',"prompt_token_ids":{dumps(ids)}' if body.return_token_ids else "",
            )
            return service.event_stream(generation, events)

        def members(outputs: Sequence[RequestOutput]) -> str:
            ids = outputs[0].prompt_token_ids if body.return_token_ids else None
            logprobs = prompt_logprobs_json(outputs[0].prompt_logprobs)
            return f',"prompt_logprobs":{logprobs},"prompt_token_ids":{dumps(ids)}'

        choices = Messages(body, messages, tools, generation, service)
        work = answer_of(generation, head, choices, service.options, members=members)
        answer = await unless_disconnected(http.receive, work)
        return Response(answer, media_type="application/json")


def call_of(
    body: ChatCompletionRequest,
    messages: list[dict[str, Any]],
    tools: ToolUse | None,
    service: Service,
    http: HTTPConnection,
) -> Call:
    """The Call for a request. Raises ApiError for what this server does not allow."""
    for name in ("max_tokens", "max_completion_tokens"):
        check_max_tokens(name, getattr(body, name), service.max_model_len)
    truncate_to = body.truncated_to(service.max_model_len)
    options = service.options
    check_n(body.n, 1, options.max_n_sequences)
    template = template_options(
        service,
        tools=body.tools,
        tool_use=tools,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=body.reasoning_effort,
    )

    params = body.chat_params(service.defaults)
    adapt_params(params, service.answer_format, tools, body.grammar(), service.engine)

    def make_prompts() -> list[Prompt]:
        prompt = service.engine.chat_prompt(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            **template,
        )
        check_text("messages", prompt.text or "")
        prompt.add_special_tokens = body.add_special_tokens
        body.complete(prompt, truncate_to)
        prompt.is_continued = body.continue_final_message
        return [prompt]

    return Call.of(
        body,
        http,
        kind="chat.completion",
        id_prefix="chatcmpl-",
        make_prompts=make_prompts,
        params=params,
        is_plain=not (body.chat_template or body.chat_template_kwargs),
    )
