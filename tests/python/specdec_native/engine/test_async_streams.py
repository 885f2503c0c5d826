"""Streams that coroutines read, cancelled or not, give the answers of generate()."""

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_native import (
    AsyncEngineArgs,
    AsyncLLM,
    Engine,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    TokensPrompt,
)

NUM_STREAMS = 64
LONG = SamplingParams(max_tokens=100, seed=1, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Path]) -> Engine:
    return Engine(
        checkpoint("llama"),
        num_threads=1,
        skip_tokenizer_init=True,
        speculative_config={"method": "ngram", "prompt_lookup_max": 3},
    )


def prompt_of(i: int) -> list[int]:
    return [(i * 7 + j) % 150 + 3 for j in range(3 + i % 20)]


def params_of(i: int, **options: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=60, seed=i, ignore_eos=True, logprobs=1, temperature=0.5 * (i % 3), **options
    )


def answer_of(output: Any) -> tuple[list[int], list[Any]]:
    return output.outputs[0].token_ids, output.outputs[0].logprobs


async def streamed(
    engine: Engine, i: int, params: SamplingParams
) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of request i: of Engine.stream(), of AsyncLLM every other time."""
    if i % 2:
        generator = AsyncLLM(engine).generate(prompt_of(i), params)
        try:
            async for output in generator:
                yield output
        finally:
            await generator.aclose()
    else:
        async with engine.stream(prompt_of(i), params) as stream:
            async for output in stream:
                yield output


async def read(engine: Engine, i: int, stop_after: int | None) -> list[int]:
    """The tokens of a stream, which is left after some outputs."""
    tokens: list[int] = []
    params = params_of(i, output_kind=RequestOutputKind.DELTA)
    num_outputs = 0
    async with contextlib.aclosing(streamed(engine, i, params)) as outputs:
        async for output in outputs:
            for completion in output.outputs:
                tokens += completion.token_ids
            num_outputs += 1
            if num_outputs == stop_after:
                break
    return tokens


async def run_streams(engine: Engine, expected: list[list[int]]) -> list[int]:
    """Reads all streams at once; cancels some tasks, leaves others. Returns what was wrong."""
    draw = random.Random(3)
    kinds = [draw.choice(("read", "leave", "cancel")) for _ in range(NUM_STREAMS)]
    tasks = []
    for i, kind in enumerate(kinds):
        stop_after = draw.randint(1, 10) if kind == "leave" else None
        tasks.append(asyncio.create_task(read(engine, i, stop_after)))
        if kind == "cancel":
            asyncio.get_running_loop().call_later(draw.uniform(0, 0.05), tasks[-1].cancel)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = []
    for i, (kind, result) in enumerate(zip(kinds, results, strict=True)):
        if isinstance(result, BaseException):
            is_right = kind == "cancel" and isinstance(result, asyncio.CancelledError)
        else:
            length = len(result) if kind == "leave" else len(expected[i])
            is_right = len(result) > 0 and result == expected[i][:length]
        if not is_right:
            wrong.append(i)
    return wrong


def test_many_streams_give_the_answers_of_generate(engine: Engine) -> None:
    prompts = [prompt_of(i) for i in range(NUM_STREAMS)]
    params = [params_of(i) for i in range(NUM_STREAMS)]
    expected = [list(output.outputs[0].token_ids) for output in engine.generate(prompts, params)]
    wrong = asyncio.run(run_streams(engine, expected))
    assert wrong == []
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_streams_have_logprobs_and_ids(engine: Engine) -> None:
    expected = answer_of(engine.generate(prompt_of(5), params_of(5))[0])

    async def run() -> Any:
        stream = engine.stream(prompt_of(5), params_of(5), request_id="mine")
        return [output async for output in stream][-1]

    output = asyncio.run(run())
    assert output.request_id == "mine" and output.finished
    assert answer_of(output) == expected


def test_several_event_loops_share_an_engine(engine: Engine) -> None:
    expected = [answer_of(engine.generate(prompt_of(i), params_of(i))[0]) for i in range(4)]
    results: list[Any] = [None] * 4

    async def run(i: int) -> Any:
        return [output async for output in engine.stream(prompt_of(i), params_of(i))][-1]

    def work(i: int) -> None:
        results[i] = answer_of(asyncio.run(run(i)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == expected


def test_a_request_is_aborted_by_its_id(engine: Engine) -> None:
    async def run() -> Any:
        asynchronous = AsyncLLM(engine)
        outputs = [asynchronous.generate(prompt_of(i), LONG, f"{i}") for i in range(8)]
        first = [await anext(stream) for stream in outputs]
        assert len(first) == 8
        assert not await asynchronous.abort("unknown")
        aborted = await asynchronous.abort("7")
        last = [output async for output in outputs[7]]
        for stream in outputs[:7]:
            await stream.aclose()
        return aborted, last

    aborted, last = asyncio.run(run())
    assert not aborted or last[-1].outputs[0].finish_reason == "abort"


def test_scripts_for_vllm_run(checkpoint: Callable[[str], Path], engine: Engine) -> None:
    expected = answer_of(engine.generate(prompt_of(2), params_of(2))[0])
    arguments = AsyncEngineArgs(
        model=str(checkpoint("llama")), skip_tokenizer_init=True, disable_log_stats=True
    )
    asynchronous = AsyncLLM.from_engine_args(arguments)

    async def run() -> Any:
        prompt = TokensPrompt(prompt_token_ids=prompt_of(2))
        last = None
        async for output in asynchronous.generate(prompt, params_of(2), request_id="one"):
            last = output
        with pytest.raises(ValueError, match="lora_request"):
            asynchronous.generate(prompt, params_of(2), "two", lora_request=object())
        assert not await asynchronous.abort(["one", "two"])
        return last

    assert answer_of(asyncio.run(run())) == expected
    asynchronous.shutdown()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(run())


def test_bad_requests_are_refused(engine: Engine) -> None:
    async def run() -> None:
        async for _ in AsyncLLM(engine).generate([], params_of(1)):
            raise AssertionError("there is nothing to say")

    with pytest.raises(ValueError, match="prompt"):
        asyncio.run(run())


def test_a_coroutine_reads_several_requests(engine: Engine) -> None:
    which = range(6)
    prompts, params = [prompt_of(i) for i in which], [params_of(i) for i in which]
    params[0].max_tokens = 2  # the others are read to their end after it
    expected = [answer_of(output) for output in engine.generate(prompts, params)]

    async def run() -> tuple[list[str], dict[str, RequestOutput]]:
        last: dict[str, RequestOutput] = {}
        async with engine.stream(prompts, params) as stream:
            async for output in stream:
                assert output.request_id not in last or not last[output.request_id].finished
                last[output.request_id] = output
        return stream.request_ids, last

    ids, last = asyncio.run(run())
    assert [answer_of(last[request_id]) for request_id in ids] == expected
    assert set(last) == set(ids) and all(output.finished for output in last.values())
