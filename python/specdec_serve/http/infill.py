"""POST /infill, in the form of llama.cpp's server."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import fastapi
from starlette.responses import Response

from specdec_native.requests.inputs import Prompt
from specdec_native.requests.outputs import CompletionOutput, RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_serve.http.chunks import dumps, error_event
from specdec_serve.http.errors import ApiError
from specdec_serve.http.logprobs import TokenNames, token_logprobs
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
        writer = _Writer(body, generation, service)
        if body.stream:
            return service.event_stream(generation, _events(writer))
        answer = await unless_disconnected(http.receive, _answer(writer))
        return Response(answer, media_type="application/json")


def _call_of(body: InfillRequest, service: Service, http: fastapi.Request) -> Call:
    check_max_tokens("n_predict", body.max_tokens, service.max_model_len)
    # Without a token to generate, the prompt only goes into the prefix cache.
    max_tokens = 1 if body.max_tokens == 0 else body.max_tokens
    params = body.sampling_params(service.defaults, max_tokens, logprobs=body.n_probs or None)

    def make_prompts() -> list[Prompt]:
        prefix = body.input_prefix + body.prompt
        files = [(file.filename, file.text) for file in body.input_extra]
        prompt = prompt_around(service, params, prefix, body.input_suffix, files)
        body.complete(prompt)
        return [prompt]

    call = Call.of(
        body,
        http,
        kind="infill",
        id_prefix="infill-",
        make_prompts=make_prompts,
        params=params,
        is_plain=False,
    )
    call.stream |= body.t_max_predict_ms > 0  # to see the lines as they come
    return call


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

    def __init__(self, body: InfillRequest, generation: Generation, service: Service) -> None:
        self.generation = generation
        self._body = body
        self._model_name = service.model_name
        self._names = TokenNames(service.engine.tokenizer)
        self._num_prompt = len(generation.requests[0].prompt_token_ids)
        self._shows_output = body.max_tokens != 0
        self._num_predicted = 0
        self._has_new_line = False
        self._first_time: float | None = None

    async def pieces(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the members of each output, until the end or the first line after the time limit.

        Closes the generation. Raises ApiError where the engine fails.
        """
        try:
            async for outputs in self.generation:
                for _, output in outputs:
                    for part in output.outputs:
                        piece = self._piece(part, output)
                        yield piece
                        if piece["stop"]:
                            return
        finally:
            self.generation.close()

    def chosen(self, members: dict[str, Any]) -> dict[str, Any]:
        """The members that the request has asked for. `a/b` is member b of a."""
        if not self._body.response_fields:
            return members
        found = {}
        for path in self._body.response_fields:
            value: Any = members
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                found[path] = value
        return found

    def _piece(self, part: CompletionOutput, output: RequestOutput) -> dict[str, Any]:
        """What is new, and at the end all that is known of the whole."""
        text = part.text if self._shows_output else ""
        is_late = self._is_late() and "\n" in text and part.finish_reason is None
        if is_late:
            text = text[: text.index("\n") + 1]
        if self._shows_output:
            self._num_predicted += len(part.token_ids)
            self._has_new_line |= "\n" in text
        members: dict[str, Any] = {
            "index": 0,
            "content": text,
            "stop": is_late or part.finish_reason is not None,
            "tokens_predicted": self._num_predicted,
            "tokens_evaluated": self._num_prompt,
        }
        if self._body.n_probs and self._shows_output:
            members["completion_probabilities"] = self._probabilities(part, len(text))
        if members["stop"]:
            members |= {
                "model": self._model_name,
                "has_new_line": self._has_new_line,
                "truncated": False,  # a prompt that is too long is refused
                **self._stop(part, is_late=is_late),
            }
            if output.metrics is not None:
                members["timings"] = self._timings(output)
        return members

    def _is_late(self) -> bool:
        """Whether the time for tokens behind the first one is over."""
        now = time.monotonic()
        if self._first_time is None:
            self._first_time = now
        return 0 < self._body.t_max_predict_ms < (now - self._first_time) * 1000

    def _probabilities(self, part: CompletionOutput, num_chars: int) -> list[dict[str, Any]]:
        """The tokens of the first `num_chars` characters, with the likeliest."""
        lengths = part.text_lengths
        tokens = token_logprobs(
            self._names, part.logprobs, self._body.n_probs, lengths, has_ids=True
        )
        if lengths is not None and num_chars < len(part.text):
            places = itertools.accumulate(lengths, initial=0)
            tokens = [token for token, at in zip(tokens, places, strict=False) if at < num_chars]
        return [json.loads(token) for token in tokens]

    def _stop(self, part: CompletionOutput, *, is_late: bool) -> dict[str, str]:
        word = part.stop_reason if isinstance(part.stop_reason, str) else ""
        kind = {"stop": "word" if word else "eos", "length": "limit"}
        if is_late or not self._shows_output:
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
            (
                "predicted",
                self._num_predicted,
                metrics.first_token_time,
                metrics.finished_time or time.time(),
            ),
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


async def _events(writer: _Writer) -> AsyncGenerator[bytes, None]:
    """Yields the events of a stream. Closes the generation."""
    try:
        async for piece in writer.pieces():
            members = writer.chosen(piece) if piece["stop"] else piece
            yield f"data: {dumps(members)}\n\n".encode()
    except ApiError as error:
        yield error_event(error)
    finally:
        writer.generation.close()


async def _answer(writer: _Writer) -> str:
    pieces = [piece async for piece in writer.pieces()]
    whole = pieces[-1]
    whole["content"] = "".join(piece["content"] for piece in pieces)
    if "completion_probabilities" in whole:
        of_pieces = (piece["completion_probabilities"] for piece in pieces)
        whole["completion_probabilities"] = [*itertools.chain.from_iterable(of_pieces)]
    return dumps(writer.chosen(whole))
