"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence

import fastapi
from starlette.requests import HTTPConnection
from starlette.responses import Response

from specdec_native.requests.inputs import Prompt, parse_prompts
from specdec_native.requests.logprobs import PromptLogprobs
from specdec_native.requests.outputs import CompletionOutput, RequestOutput
from specdec_native.requests.request import Request
from specdec_serve.http.chunks import dumps
from specdec_serve.http.infill import prompt_around
from specdec_serve.http.logprobs import (
    CompletionLogprobs,
    TokenNames,
    prompt_logprobs_json,
)
from specdec_serve.http.protocol.common import check_max_tokens, check_n
from specdec_serve.http.protocol.completions import CompletionRequest
from specdec_serve.http.service import Call, Service
from specdec_serve.http.sse import unless_disconnected
from specdec_serve.http.streaming import answer_of, events_of

_RUNNING = 'null,"stop_reason":null'  # the finish_reason of a choice that has not ended
# Members of whole answers' choices that were not requested.
_NULLS = ',"token_ids":null,"prompt_token_ids":null,"prompt_logprobs":null'


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the route."""

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, http: fastapi.Request) -> Response:
        service.check_model(body.model)
        body.check()
        call = call_of(body, service, http)
        generation = await service.start(call)
        head = {
            "id": call.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.model_name,
        }
        choices = _Choices(body, service, generation.requests)
        counts_output = not body.is_echo_only
        if body.stream:
            events = events_of(
                generation,
                head,
                choices,
                body.stream_options,
                service.options,
                counts_output=counts_output,
            )
            return service.event_stream(generation, events)
        work = answer_of(generation, head, choices, service.options, counts_output=counts_output)
        answer = await unless_disconnected(http.receive, work)
        return Response(answer, media_type="application/json")


def call_of(body: CompletionRequest, service: Service, http: HTTPConnection) -> Call:
    """The Call for a request. Raises ApiError for what this engine cannot do."""
    check_max_tokens("max_tokens", body.max_tokens, service.max_model_len)
    check_n(body.n, body.num_prompts, service.options.max_n_sequences)
    truncate_to = body.truncated_to(service.max_model_len)
    params = body.sampling_params(
        service.defaults, max_tokens=max(1, body.max_tokens), logprobs=body.logprobs
    )
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        params.prompt_logprobs = params.logprobs

    def make_prompts() -> list[Prompt]:
        if body.suffix:
            prompts = [
                prompt_around(
                    service, params, text, body.suffix, add_special_tokens=body.add_special_tokens
                )
                for text in body.texts
            ]
        else:
            prompts = parse_prompts(body.prompt)
        for prompt in prompts:
            prompt.add_special_tokens = body.add_special_tokens
            body.complete(prompt, truncate_to)
            prompt.is_echoed = body.echo
        return prompts

    return Call.of(
        body,
        http,
        kind="completion",
        id_prefix="cmpl-",
        make_prompts=make_prompts,
        params=params,
        is_plain=body.num_prompts == 1 and not body.suffix,
    )


class _Choices:
    """The choices of one answer, whole or streamed."""

    def __init__(self, body: CompletionRequest, service: Service, requests: list[Request]) -> None:
        self._body = body
        self._shows_output = not body.is_echo_only
        self._is_plain = not (
            body.echo
            or body.return_token_ids
            or body.logprobs is not None
            or body.prompt_logprobs is not None
        )
        self._prompt_logprobs: list[PromptLogprobs | None] = [None] * len(requests)
        self._nulls = "" if body.stream else _NULLS
        num_choices = body.n * len(requests)
        self._begun = [False] * num_choices
        self._logprobs: list[CompletionLogprobs] | None = None
        if body.logprobs is not None:
            tokenizer = service.engine.tokenizer if service.engine.has_tokenizer else None
            names = TokenNames(tokenizer, as_token_ids=body.return_tokens_as_token_ids)
            self._logprobs = [CompletionLogprobs(names) for _ in range(num_choices)]

    def num_reasoning_tokens(self) -> int | None:
        """Completions are text: reasoning is not told apart."""
        return None

    def opening(self, num_choices: int) -> list[str]:
        """Nothing comes before the first token."""
        return []

    def news(self, index: int, part: CompletionOutput, output: RequestOutput) -> Sequence[str]:
        """The new part of a choice."""
        return (self.choice(index, part, output),)

    def choice(self, index: int, part: CompletionOutput, output: RequestOutput) -> str:
        """The choice, or its new part; the first piece includes the prompt's members."""
        if self._is_plain:
            end = _RUNNING
            if part.finish_reason is not None:
                end = f'{dumps(part.finish_reason)},"stop_reason":{dumps(part.stop_reason)}'
            return (
                f'{{"index":{index},"text":{dumps(part.text)},"logprobs":null,'
                f'"finish_reason":{end}{self._nulls}}}'
            )
        body = self._body
        is_first = not self._begun[index]
        self._begun[index] = True
        prompt_logprobs = self._prompt_logprobs_of(index // body.n, output)
        text = part.text if self._shows_output else ""
        if body.echo and is_first:
            text = (output.prompt or "") + text
        reason, stop_reason = part.finish_reason, part.stop_reason
        if reason is not None and not self._shows_output:
            reason, stop_reason = "length", None
        more = ""
        if body.return_token_ids:
            more = f',"token_ids":{dumps(part.token_ids if self._shows_output else [])}'
            if is_first:
                more += f',"prompt_token_ids":{dumps(output.prompt_token_ids)}'
        elif not body.stream:
            more = ',"token_ids":null,"prompt_token_ids":null'
        if is_first and (body.prompt_logprobs is not None or not body.stream):
            shown = prompt_logprobs if body.prompt_logprobs is not None else None
            more += f',"prompt_logprobs":{prompt_logprobs_json(shown)}'
        return (
            f'{{"index":{index},"text":{dumps(text)},'
            f'"logprobs":{self._logprobs_of(index, part, output, is_first=is_first)},'
            f'"finish_reason":{dumps(reason)},"stop_reason":{dumps(stop_reason)}{more}}}'
        )

    def _prompt_logprobs_of(
        self, prompt_index: int, output: RequestOutput
    ) -> PromptLogprobs | None:
        """The prompt's logprobs, from its first output only: a stream does not repeat them."""
        if self._prompt_logprobs[prompt_index] is None:
            self._prompt_logprobs[prompt_index] = output.prompt_logprobs
        return self._prompt_logprobs[prompt_index]

    def _logprobs_of(
        self, index: int, part: CompletionOutput, output: RequestOutput, *, is_first: bool
    ) -> str:
        if self._logprobs is None:
            return "null"
        writer = self._logprobs[index]
        token_ids = part.token_ids if self._shows_output else []
        if not (self._body.echo and is_first):
            return writer.piece(token_ids, part.logprobs, part.text_lengths)
        return writer.with_prompt(
            output.prompt or "",
            output.prompt_token_ids or [],
            self._prompt_logprobs[index // self._body.n],
            token_ids=token_ids,
            logprobs=part.logprobs,
            text_lengths=part.text_lengths,
        )
