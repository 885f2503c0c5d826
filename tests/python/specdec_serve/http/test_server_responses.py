"""/v1/responses, read by the openai client: whole, streamed, and what is refused."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types import responses as types

from server_world import MODEL, World, serving
from specdec_native import Engine
from tiny_text_model import END, TEXT_TOKEN_IDS, only, text_params

MESSAGES = [{"role": "user", "content": "hello"}]
# The Responses API has no fields for these; extra fields of a body are vLLM's.
SAMPLING: dict[str, Any] = {"seed": 5, "allowed_token_ids": TEXT_TOKEN_IDS, "ignore_eos": True}
EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def chat_text(engine: Engine, messages: list[dict[str, Any]], **params: Any) -> str:
    return only(engine.chat(messages, text_params(**params), use_tqdm=False)).text


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("input", {"input": []}),
        ("previous_input_messages", {"previous_input_messages": [{"role": "user"}]}),
        ("enable_response_messages", {"enable_response_messages": True}),
        ("include", {"include": ["something.else"]}),
    ],
)
def test_nothing_that_changes_an_answer_is_ignored(
    world: World, param: str, body: dict[str, Any]
) -> None:
    assert world.error("/v1/responses", **{"input": "a", **body})["param"] == param


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("instructions", {"instructions": "x", "input": "a"}),
        (
            "input",
            {"input": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
        ),
    ],
)
def test_messages_that_the_template_leaves_out_are_named_as_sent(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, param: str, body: dict[str, Any]
) -> None:
    template = "{% for m in messages if m.role != 'system' %}{{ m.content }};{% endfor %}"
    monkeypatch.setitem(engine.tokenizer._chat_templates, "default", template)
    with serving(engine) as world:
        error = world.error("/v1/responses", **body)
    assert error["param"] == param
    location = "instructions" if param == "instructions" else "input[1]"
    assert error["message"].startswith(f"{location}: the chat template")


@pytest.mark.parametrize("metadata", ['{"a": NaN}', '{"a": {"b": "c"}}', '{"a": 1}', '["a"]'])
@pytest.mark.parametrize("stream", ["true", "false"])
def test_metadata_are_texts(world: World, metadata: str, stream: str) -> None:
    body = f'{{"input": "hello", "metadata": {metadata}, "stream": {stream}}}'
    response = world.client.post(
        "/v1/responses", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "metadata"


def test_a_response_is_the_engines_answer(client: openai.OpenAI, engine: Engine) -> None:
    response = client.responses.create(
        model=MODEL,
        input="hello",
        instructions="be brief",
        max_output_tokens=24,
        temperature=0.7,
        top_p=0.9,
        metadata={"a": "b"},
        extra_body=SAMPLING,
    )
    messages = [{"role": "system", "content": "be brief"}, *MESSAGES]
    expected = chat_text(engine, messages, temperature=0.7, top_p=0.9)
    assert response.output_text == expected
    assert (response.status, response.incomplete_details.reason) == (  # type: ignore[union-attr]
        "incomplete",
        "max_output_tokens",
    )
    assert response.id.startswith("resp_") and response.model == MODEL
    assert (response.temperature, response.top_p) == (0.7, 0.9)
    assert (response.metadata, response.instructions) == ({"a": "b"}, "be brief")
    usage = response.usage
    assert usage is not None
    prompt = len("system:be brief;user:hello;assistant:")
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (
        prompt,
        24,
        prompt + 24,
    )
    assert (usage.output_tokens_details.reasoning_tokens, response.error) == (0, None)


def test_a_response_that_stops_is_completed(client: openai.OpenAI, engine: Engine) -> None:
    text = chat_text(engine, MESSAGES)
    stop = text[5:7]
    response = client.responses.create(
        model=MODEL, input="hello", max_output_tokens=24, extra_body={**SAMPLING, "stop": [stop]}
    )
    assert response.output_text == text[: text.index(stop)]
    assert (response.status, response.incomplete_details) == ("completed", None)
    # The end-of-sequence token alone is an answer without text.
    silent = {"allowed_token_ids": [END]}
    for stream in (False, True):
        answer: Any = client.responses.create(
            model=MODEL, input="hello", extra_body=silent, stream=stream
        )
        if stream:
            *_, last = answer
            answer = last.response
        assert (answer.output_text, answer.status) == ("", "completed")
        assert answer.usage.output_tokens == 1


@pytest.mark.parametrize("ends", ["length", "stop"])
def test_the_events_come_in_openais_order(client: openai.OpenAI, engine: Engine, ends: str) -> None:
    text = chat_text(engine, MESSAGES)
    stop = {"stop": text[9:11]} if ends == "stop" else {}
    if stop:
        text = text[: text.index(text[9:11])]
    events: list[Any] = list(
        client.responses.create(
            model=MODEL,
            input=MESSAGES,  # type: ignore[arg-type]
            max_output_tokens=24,
            extra_body={**SAMPLING, **stop},
            stream=True,
        )
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    last = "response.completed" if ends == "stop" else "response.incomplete"
    assert list(dict.fromkeys(kinds)) == [*EVENTS, last]  # deltas stand together
    assert kinds == sorted(kinds, key=[*EVENTS, last].index)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text
    first, final = events[0], events[-1]
    assert isinstance(first, types.ResponseCreatedEvent)
    assert (first.response.status, first.response.output) == ("in_progress", [])
    assert isinstance(final, types.ResponseCompletedEvent | types.ResponseIncompleteEvent)
    assert final.response.output_text == text and final.response.id == first.response.id
    item_ids = {event.item_id for event in events if hasattr(event, "item_id")}
    assert item_ids == {final.response.output[0].id}


def test_the_openai_clients_helper_reads_the_stream(client: openai.OpenAI, engine: Engine) -> None:
    text = chat_text(engine, MESSAGES)
    stop = text[5:7]
    body = {**SAMPLING, "stop": stop}
    with client.responses.stream(
        model=MODEL, input="hello", max_output_tokens=24, extra_body=body
    ) as stream:
        assert stream.get_final_response().output_text == text[: text.index(stop)]


def test_the_asynchronous_client_reads_both(world: World, engine: Engine) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="EMPTY") as client:
            body: dict[str, Any] = {"model": MODEL, "input": "hello", "max_output_tokens": 24}
            whole = await client.responses.create(**body, extra_body=SAMPLING)
            stream = await client.responses.create(**body, extra_body=SAMPLING, stream=True)
            deltas = [
                event.delta async for event in stream if event.type == "response.output_text.delta"
            ]
            return [whole.output_text, "".join(deltas)]

    assert asyncio.run(ask()) == [chat_text(engine, MESSAGES)] * 2


def test_an_earlier_answer_is_part_of_the_next_input(client: openai.OpenAI, engine: Engine) -> None:
    body: dict[str, Any] = {"model": MODEL, "max_output_tokens": 8, "extra_body": SAMPLING}
    first = client.responses.create(input="a", **body)
    items: list[Any] = [{"role": "user", "content": "a"}]
    items += [item.model_dump() for item in first.output]
    items += [{"role": "user", "content": [{"type": "input_text", "text": "b"}]}]
    second = client.responses.create(input=items, **body)
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "b"},
    ]
    assert second.output_text == chat_text(engine, messages, max_tokens=8)


def test_calls_of_tools_in_the_input_are_messages(world: World) -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
    ]
    usage = world.ask("/v1/responses", input=items, max_output_tokens=1)["usage"]
    assert usage["input_tokens"] == len("user:a;assistant:;tool:x;assistant:")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_come_on_wish(client: openai.OpenAI, engine: Engine, stream: bool) -> None:
    params = text_params(max_tokens=6, logprobs=2)
    expected = only(engine.chat(MESSAGES, params, use_tqdm=False))
    answer: Any = client.responses.create(
        model=MODEL,
        input="hello",
        max_output_tokens=6,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        extra_body=SAMPLING,
        stream=stream,
    )
    if stream:
        events = list(answer)
        answer = events[-1].response
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        pieces = [entry.logprob for event in deltas for entry in event.logprobs]
        assert pieces == [entry.logprob for entry in answer.output[0].content[0].logprobs]
    entries = answer.output[0].content[0].logprobs
    assert sum(entry.logprob for entry in entries) == pytest.approx(expected.cumulative_logprob)
    assert "".join(entry.token for entry in entries) == expected.text
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_tokens_can_be_named_by_their_ids(world: World, engine: Engine) -> None:
    """A count of null is no wish for likelier tokens."""
    expected = only(engine.chat(MESSAGES, text_params(max_tokens=6), use_tqdm=False))
    answer = world.ask(
        "/v1/responses",
        input="hello",
        max_output_tokens=6,
        include=["message.output_text.logprobs"],
        top_logprobs=None,
        return_tokens_as_token_ids=True,
        **SAMPLING,
    )
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == [f"token_id:{t}" for t in expected.token_ids]
    assert all(entry["top_logprobs"] == [] for entry in entries)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.5, "top_k": 9, "min_p": 0.01, "repetition_penalty": 1.3},
        {"presence_penalty": 1.5, "frequency_penalty": 1, "bad_words": ["a", "b"]},
        {"logit_bias": {"40": 100, "41": 7}, "spaces_between_special_tokens": False},
        {"stop": "e", "stop_token_ids": TEXT_TOKEN_IDS[60:70], "min_tokens": 4},
    ],
    ids="+".join,
)
def test_sampling_is_the_engines(world: World, engine: Engine, params: dict[str, Any]) -> None:
    body = {"input": "hello", "max_output_tokens": 24, **SAMPLING, **params}
    (item,) = world.ask("/v1/responses", **body)["output"]
    assert item["content"][0]["text"] == chat_text(engine, MESSAGES, **params)


def test_what_is_too_long_is_cut_on_wish(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 96 tokens"):
        client.responses.create(model=MODEL, input="x" * 200)
    response = client.responses.create(model=MODEL, input="x" * 200, truncation="auto")
    assert response.usage is not None and response.usage.input_tokens == 95
    body = {"truncate_prompt_tokens": 40, "truncation_side": "right"}
    response = client.responses.create(
        model=MODEL, input="x" * 200, max_output_tokens=1, extra_body=body
    )
    assert response.usage is not None and response.usage.input_tokens == 40


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("tool_choice", {"tools": [{"type": "function", "name": "f"}]}),
        ("tools", {"tools": [{"type": "web_search"}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("background", {"background": True}),
        ("text", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
        ("text", {"text": {"format": {"type": "xml"}}}),
        (
            "structured_outputs",
            {
                "text": {"format": {"type": "json_object"}},
                "structured_outputs": {"regex": "a"},
            },
        ),
        ("n", {"n": 2, "temperature": 1}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("tool_choice", {"tool_choice": "required"}),
        ("temperature", {"temperature": 3}),
        ("input", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        ("input", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input", {"input": [{"type": "function_call_output", "output": 7}]}),
        ("input", {"input": None}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("seed", {"seed": 2**63}),
        ("tools", {"tools": [None]}),
        ("cache_salt", {"cache_salt": "/"}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}),
    ],
)
def test_what_is_missing_is_named(world: World, field: str, body: dict[str, Any]) -> None:
    for stream in (False, True):
        error = world.error("/v1/responses", **{"input": "a", "stream": stream, **body})
        assert error["param"] == field
        assert field.removeprefix("") in error["message"]


def test_empty_fields_are_no_wish(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=MODEL, input="a", max_output_tokens=1, tools=[], tool_choice="auto", store=True
    )
    assert (response.tools, response.to_dict()["store"]) == ([], False)


def test_nothing_is_stored(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="a", max_output_tokens=1)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="stores none"):
            call(response.id)
