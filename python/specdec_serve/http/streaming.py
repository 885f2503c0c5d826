"""Turns a generation into one answer or a stream of events, for completions and for chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol

from specdec_native.requests.outputs import CompletionOutput, RequestOutput
from specdec_serve.http.answer_metrics import AnswerMetrics
from specdec_serve.http.chunks import DONE, ChunkWriter, dumps, error_event
from specdec_serve.http.errors import ApiError
from specdec_serve.http.protocol.common import StreamOptions
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.service import Generation
from specdec_serve.http.usage import UsageCounter


class ChoiceWriter(Protocol):
    """Writes the choices of a whole answer, as JSON."""

    def num_reasoning_tokens(self) -> int | None:
        """The tokens of all reasoning so far; None for a model that does not mark any."""

    def choice(self, index: int, part: CompletionOutput, output: RequestOutput) -> str:
        """The choice of this index.

        `part` is one of `output.outputs`.
        """


class StreamWriter(Protocol):
    """Writes the choices of a stream, as JSON."""

    def num_reasoning_tokens(self) -> int | None:
        """The tokens of all reasoning so far; None for a model that does not mark any."""

    def opening(self, num_choices: int) -> list[str]:
        """Choices that come before any token, one chunk each."""

    def news(self, index: int, part: CompletionOutput, output: RequestOutput) -> Sequence[str]:
        """The new parts of a choice, one chunk each; the last part ends the choice.

        Empty where all new text is held back. `part` is one of `output.outputs`.
        """


async def events_of(
    generation: Generation,
    head: Mapping[str, Any],
    choices: StreamWriter,
    stream_options: StreamOptions | None,
    options: ServerOptions,
    *,
    first_members: str = "",
    counts_output: bool = True,
) -> AsyncGenerator[bytes, None]:
    """Yields all events of the stream, a step's events together. Closes the generation.

    `first_members` go into the first chunk, such as ',"prompt_token_ids":[1]'. `counts_output` is
    False where generated tokens are not shown.
    """
    asked = stream_options or StreamOptions()
    include_usage = options.force_include_usage or asked.include_usage
    continuous = options.force_include_usage or (include_usage and asked.continuous_usage_stats)
    no_usage = ',"usage":null' if include_usage else ""
    fingerprint = ""
    if options.fingerprint is not None:
        fingerprint = f',"system_fingerprint":{dumps(options.fingerprint)}'
    writer = ChunkWriter(head)
    usage = UsageCounter(generation, options, counts_output=counts_output)
    metrics = AnswerMetrics(generation, options)
    n = generation.call.params.n

    def rest(index: int) -> str:
        return f',"usage":{usage.usage_of(index)}' if continuous else no_usage

    try:
        opening = choices.opening(n * len(generation.requests))
        if opening:
            chunks = []
            for index, choice in enumerate(opening):
                chunks.append(writer.chunk(choice, rest(index) + first_members))
                first_members = ""
            yield b"".join(chunks)
        async for outputs in generation:
            chunks = []
            for prompt_index, output in outputs:
                metrics.take(prompt_index, output)
                for part in output.outputs:
                    index = prompt_index * n + part.index
                    usage.count(index, part, output.num_cached_tokens)
                    news = choices.news(index, part, output)
                    for i, choice in enumerate(news):
                        members = rest(index) + first_members
                        first_members = ""
                        is_last = part.finish_reason is not None and i == len(news) - 1
                        if is_last and not include_usage:
                            members += fingerprint
                        chunks.append(writer.chunk(choice, members))
            if chunks:
                yield b"".join(chunks)
        if include_usage:
            told = usage.usage(choices.num_reasoning_tokens())
            members = f',"usage":{told}{fingerprint}{metrics.member(usage)}'
            yield writer.chunk("", members)
    except ApiError as error:
        yield error_event(error)
    finally:
        generation.close()
    yield DONE


def _no_members(_: Sequence[RequestOutput]) -> str:
    return ""


async def answer_of(
    generation: Generation,
    head: Mapping[str, Any],
    choices: ChoiceWriter,
    options: ServerOptions,
    *,
    members: Callable[[Sequence[RequestOutput]], str] = _no_members,
    counts_output: bool = True,
) -> bytes:
    """The whole answer, once everything is generated. Closes the generation.

    `members` writes further members of the answer, such as ',"prompt_logprobs":null'.
    """
    usage = UsageCounter(generation, options, counts_output=counts_output)
    metrics = AnswerMetrics(generation, options)
    n = generation.call.params.n
    written = []
    outputs = await generation.results()
    for prompt_index, output in enumerate(outputs):
        metrics.take(prompt_index, output)
        for part in output.outputs:
            index = prompt_index * n + part.index
            usage.count(index, part, output.num_cached_tokens)
            written.append(choices.choice(index, part, output))
    return (
        f'{dumps(dict(head))[:-1]},"choices":[{",".join(written)}],'
        f'"usage":{usage.usage(choices.num_reasoning_tokens())},"system_fingerprint":{dumps(options.fingerprint)}'
        f"{members(outputs)}{metrics.member(usage)}}}"
    ).encode()
