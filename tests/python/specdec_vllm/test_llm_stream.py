"""LLM.stream and LLM.stream_chat take what generate and chat take, and come to the same."""

import asyncio
import dataclasses
from typing import Any

import pytest

from specdec_native import LLM, RequestOutput, RequestOutputKind
from tiny_text_model import PARAMS, is_idle, texts

CONVERSATION = [{"role": "user", "content": "hi"}]


def ends_of(stream: Any) -> list[RequestOutput]:
    """The last output of each request, in the order of the prompts."""
    last = {output.request_id: output for output in stream}
    return [last[request_id] for request_id in stream.request_ids]


def test_a_stream_ends_with_the_answers_of_generate(llm: LLM) -> None:
    forms: list[Any] = ["abc", ["abc", "xyz", "hello"], [5, 6, 7], {"prompt": "abc"}]
    for prompts in forms:
        expected = llm.generate(prompts, PARAMS)
        ends = ends_of(llm.stream(prompts, PARAMS))
        assert texts(ends) == texts(expected)
        assert [end.prompt for end in ends] == [output.prompt for output in expected]
    assert is_idle(llm.engine)


def test_deltas_add_up_to_the_answers(llm: LLM) -> None:
    prompts = ["abc", "xyz"]
    stream = llm.stream(prompts, dataclasses.replace(PARAMS, output_kind=RequestOutputKind.DELTA))
    pieces = dict.fromkeys(stream.request_ids, "")
    for output in stream:
        pieces[output.request_id] += output.outputs[0].text
    assert list(pieces.values()) == texts(llm.generate(prompts, PARAMS))


def test_a_streamed_chat_ends_with_the_answers_of_chat(llm: LLM) -> None:
    forms: list[Any] = [CONVERSATION, [CONVERSATION, CONVERSATION * 2]]
    several: list[dict[str, Any]] = [{}, {"add_generation_prompt": False, "tools": []}]
    for messages in forms:
        for options in several:
            expected = llm.chat(messages, PARAMS, **options)
            ends = ends_of(llm.stream_chat(messages, PARAMS, **options))
            assert texts(ends) == texts(expected)
            assert [end.prompt for end in ends] == [output.prompt for output in expected]


def test_options_of_the_tokenizer_hold_for_streams(llm: LLM) -> None:
    options = {"truncate_prompt_tokens": 2}
    expected = llm.generate(["abcd", "wxyz"], PARAMS, tokenization_kwargs=options)
    for prompts in ("abcd", ["abcd", "wxyz"]):
        ends = ends_of(llm.stream(prompts, PARAMS, tokenization_kwargs=options))
        assert texts(ends) == texts(expected)[: len(ends)]
        assert ends[0].prompt_token_ids == llm.get_tokenizer().encode("cd")


def test_priorities_of_streams_are_ignored_with_a_warning(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    expected = texts(llm.generate(["abc", "xyz"], PARAMS))
    llm.llm_engine._has_warned = False
    assert texts(ends_of(llm.stream(["abc", "xyz"], PARAMS, priority=[2, 1]))) == expected
    assert ends_of(llm.stream_chat(CONVERSATION, PARAMS, priority=3))
    assert caplog.text.count("priority is ignored") == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lora_request": object()}, ValueError, "lora_request.*merge"),
        ({"mm_processor_kwargs": {"a": 1}}, ValueError, "mm_processor_kwargs.*only text"),
        ({"use_tqdm": False}, TypeError, "unexpected argument 'use_tqdm'"),
        ({"priority": [1, 2, 3]}, ValueError, "priority has 3 entries for 2 prompts"),
    ],
)
def test_what_cannot_be_streamed_is_refused_at_once(
    llm: LLM, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = llm.engine.stats()
    with pytest.raises(error, match=message):
        llm.stream(["abc", "xyz"], PARAMS, **options)
    with pytest.raises(error, match=message):
        llm.stream_chat([CONVERSATION] * 2, PARAMS, **options)
    assert llm.engine.stats() == before


def test_other_formats_of_content_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="chat_template_content_format must be"):
        llm.stream_chat(CONVERSATION, PARAMS, chat_template_content_format="openai")


def test_a_stream_is_read_by_a_coroutine(llm: LLM) -> None:
    async def read() -> list[RequestOutput]:
        async with llm.stream(["abc", "xyz"], PARAMS) as stream:
            last = {output.request_id: output async for output in stream}
        return [last[request_id] for request_id in stream.request_ids]

    assert texts(asyncio.run(read())) == texts(llm.generate(["abc", "xyz"], PARAMS))


def test_leaving_a_stream_aborts_its_requests(llm: LLM) -> None:
    with llm.stream(["abc", "xyz"], dataclasses.replace(PARAMS, max_tokens=80)) as stream:
        next(stream)
    assert stream.finished and is_idle(llm.engine)
