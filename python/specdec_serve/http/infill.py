"""POST /infill, in the form of llama.cpp's server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import fastapi
from starlette.responses import Response

from specdec_native.requests.inputs import Prompt
from specdec_native.requests.outputs import CompletionOutput, RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_serve.http.chunks import dumps, error_event
from specdec_serve.http.errors import ApiError
from specdec_serve.http.protocol.common import check_max_tokens
from specdec_serve.http.protocol.infill import InfillRequest
from specdec_serve.http.service import Call, Generation, Service
from specdec_serve.http.sse import unless_disconnected


def add_routes(app: fastapi.FastAPI, service: Service) -> None:
    """Adds the route."""

    @app.post("/infill")
    async def infill(body: InfillRequest, http: fastapi.Request) -> Response:
        service.check_model(body.model)
        body.check()
        generation = await service.start(_call_of(body, service, http))
        writer = _Writer(service.model_name, generation, shows_output=body.max_tokens != 0)
        if body.stream:
            return service.event_stream(generation, _events(generation, writer))
        answer = await unless_disconnected(http.receive, _answer(generation, writer))
        return Response(answer, media_type="application/json")


def _call_of(body: InfillRequest, service: Service, http: fastapi.Request) -> Call:
    check_max_tokens("n_predict", body.max_tokens, service.max_model_len)
    # Without a token to generate, the prompt only goes into the prefix cache.
    max_tokens = 1 if body.max_tokens == 0 else body.max_tokens
    params = body.sampling_params(service.defaults, max_tokens)

    def make_prompts() -> list[Prompt]:
        prefix = body.input_prefix + body.prompt
        files = [(file.filename, file.text) for file in body.input_extra]
        prompt = prompt_around(service, params, prefix, body.input_suffix, files)
        prompt.cache_salt = body.cache_salt
        return [prompt]

    return Call.of(
        body,
        http,
        kind="infill",
        id_prefix="infill-",
        make_prompts=make_prompts,
        params=params,
        is_plain=False,
    )


def prompt_around(
    service: Service,
    params: SamplingParams,
    prefix: str,
    suffix: str,
    files: Sequence[tuple[str, str]] = (),
    *,
    add_special_tokens: bool = True,
) -> Prompt:
    """The prompt for a middle. Adds the tokens that end the middle to `params`."""
    filled = service.engine.infill_prompt(
        prefix, suffix, files, add_special_tokens=add_special_tokens
    )
    ends = dict.fromkeys([*(params.stop_token_ids or ()), *filled.stop_token_ids])
    params.stop_token_ids = list(ends)
    return Prompt(None, filled.token_ids)


class _Writer:
    """Writes the outputs of one generation."""

    def __init__(self, model_name: str, generation: Generation, *, shows_output: bool) -> None:
        self._model_name = model_name
        self._num_prompt = len(generation.requests[0].prompt_token_ids)
        self._shows_output = shows_output
        self._num_predicted = 0
        self._has_new_line = False

    def write(self, part: CompletionOutput, output: RequestOutput) -> str:
        """An output as JSON: what is new, and at the end all that is known of the whole."""
        text = part.text if self._shows_output else ""
        if self._shows_output:
            self._num_predicted += len(part.token_ids)
            self._has_new_line |= "\n" in text
        members: dict[str, Any] = {
            "index": 0,
            "content": text,
            "stop": part.finish_reason is not None,
            "tokens_predicted": self._num_predicted,
            "tokens_evaluated": self._num_prompt,
        }
        if part.finish_reason is not None:
            members |= {
                "model": self._model_name,
                "has_new_line": self._has_new_line,
                "truncated": False,  # a prompt that is too long is refused
                **self._stop(part),
            }
            if output.metrics is not None:
                members["timings"] = self._timings(output)
        return dumps(members)

    def _stop(self, part: CompletionOutput) -> dict[str, str]:
        word = part.stop_reason if isinstance(part.stop_reason, str) else ""
        kind = {"stop": "word" if word else "eos", "length": "limit"}
        if not self._shows_output:
            return {"stop_type": "limit", "stopping_word": ""}
        return {"stop_type": kind.get(part.finish_reason or "", "none"), "stopping_word": word}

    def _timings(self, output: RequestOutput) -> dict[str, float]:
        metrics = output.metrics
        assert metrics is not None
        num_cached = output.num_cached_tokens or 0
        timings: dict[str, float] = {"cache_n": num_cached}
        for name, count, begin, end in (
            (
                "prompt",
                self._num_prompt - num_cached,
                metrics.first_scheduled_time,
                metrics.first_token_time,
            ),
            ("predicted", self._num_predicted, metrics.first_token_time, metrics.finished_time),
        ):
            milliseconds = max(0.0, end - begin) * 1000
            timings |= {
                f"{name}_n": count,
                f"{name}_ms": milliseconds,
                f"{name}_per_token_ms": milliseconds / count if count else 0.0,
                f"{name}_per_second": count / milliseconds * 1000 if milliseconds else 0.0,
            }
        if metrics.speculative_decoding is not None:
            drafts = metrics.speculative_decoding
            timings["draft_n"] = drafts.num_draft_tokens
            timings["draft_n_accepted"] = drafts.num_accepted_draft_tokens
        return timings


async def _events(generation: Generation, writer: _Writer) -> AsyncGenerator[bytes, None]:
    """Yields the events of a stream. Closes the generation."""
    try:
        async for outputs in generation:
            yield b"".join(
                f"data: {writer.write(part, output)}\n\n".encode()
                for _, output in outputs
                for part in output.outputs
            )
    except ApiError as error:
        yield error_event(error)
    finally:
        generation.close()


async def _answer(generation: Generation, writer: _Writer) -> str:
    (output,) = await generation.results()
    return writer.write(output.outputs[0], output)
