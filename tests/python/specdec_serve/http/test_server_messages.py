"""/v1/messages, read by Anthropic's client: whole, streamed, and what is refused."""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import jsonschema
import pytest
from anthropic.types import Message

from message_requests import HELLO, PATH, SAMPLING, ask, client_of, refusal, text_of
from paced_engine import Pace, paced_engine
from scripted_model import Says
from server_world import MODEL, World, serving
from specdec_native import Engine
from specdec_serve.http.anthropic import _events, _Message
from specdec_serve.http.errors import ApiError
from specdec_serve.http.protocol.anthropic import MessagesRequest
from specdec_serve.http.protocol.anthropic_messages import chat_messages
from structured_bodies import PERSON
from tiny_text_model import CHARS, FIRST_CHAR, add_byte_text, only, text_params

COUNT = f"{PATH}/count_tokens"
NO_SPACE = {str(token): -100 for token in (FIRST_CHAR, FIRST_CHAR + len(CHARS))}


def chat_text(engine: Engine, messages: list[dict[str, Any]], **params: Any) -> str:
    return only(engine.chat(messages, text_params(**params), use_tqdm=False)).text


# -- answers


def test_a_message_is_the_engines_answer(world: World, engine: Engine) -> None:
    message = ask(world, system="be brief", **SAMPLING, temperature=0.7, top_p=0.9, top_k=40)
    messages = [{"role": "system", "content": "be brief"}, HELLO]
    assert text_of(message) == chat_text(
        engine, messages, temperature=0.7, top_p=0.9, top_k=40, max_tokens=24
    )
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert message.model == MODEL


def test_usage_counts_what_the_cache_had_by_itself(world: World) -> None:
    length = len("user:" + "u" * 40 + ";assistant:")
    body = {"messages": [{"role": "user", "content": "u" * 40}], "max_tokens": 2, **SAMPLING}
    for num_cached in (0, 48):  # blocks of 16 tokens
        usage = Message.model_validate(world.ask(PATH, **body)).usage
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (
            length - num_cached,
            num_cached,
        )
        assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, 2)


def test_stop_sequences_are_named(world: World, engine: Engine) -> None:
    text = chat_text(engine, [HELLO])
    stop = text[5:7]
    message = ask(world, stop_sequences=["~~~~", stop], **SAMPLING)
    assert text_of(message) == text[: text.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


def test_an_answer_ends_by_itself(world: World, says: Says) -> None:
    says("Hi!")
    message = ask(world)
    assert (text_of(message), message.stop_reason) == ("Hi!", "end_turn")


@pytest.mark.parametrize("text", ["", "  "])
def test_a_silent_answer_has_an_empty_text(world: World, says: Says, text: str) -> None:
    """Clients read content[0]."""
    says(text)
    assert text_of(ask(world)) == text


def test_more_tokens_than_fit_are_those_that_fit(world: World) -> None:
    """Coding agents ask for 32,000, whatever the model."""
    message = ask(world, max_tokens=32_000, **SAMPLING)
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.output_tokens == 96 - len("user:hello;assistant:")


def test_a_last_message_of_the_assistant_is_continued(world: World, engine: Engine) -> None:
    messages = [HELLO, {"role": "assistant", "content": "So "}]
    (output,) = engine.chat(
        messages,
        text_params(),
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert text_of(ask(world, messages=messages, **SAMPLING)) == output.outputs[0].text


def test_the_asynchronous_client_reads_both(world: World, engine: Engine) -> None:
    async def read() -> list[str]:
        body: Any = {"model": MODEL, "messages": [HELLO], "max_tokens": 24, "extra_body": SAMPLING}
        async with anthropic.AsyncAnthropic(base_url=world.url, api_key="EMPTY") as client:
            whole = await client.messages.create(**body)
            async with client.messages.stream(**body) as stream:
                return [text_of(whole), "".join([text async for text in stream.text_stream])]

    assert asyncio.run(read()) == [chat_text(engine, [HELLO])] * 2


def test_tokens_are_counted_without_an_answer(world: World) -> None:
    with client_of(world) as client:
        counted = client.messages.count_tokens(model=MODEL, messages=[HELLO], system="s")  # type: ignore[list-item]
    assert counted.input_tokens == len("system:s;user:hello;assistant:")
    long = [{"role": "user", "content": "a" * 300}]  # is counted, though it does not fit
    assert world.ask(COUNT, messages=long) == {"input_tokens": 300 + len("user:;assistant:")}


def test_the_models_are_those_of_openais_list(world: World) -> None:
    with client_of(world) as client:
        assert [model.id for model in client.models.list()] == [MODEL]


@pytest.fixture(scope="module")
def byte_world(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """With a tokenizer that grammars can be compiled for."""
    model = add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("bytes") / "llama")
    longer = {"max_position_embeddings": 512}
    with (
        Engine(model, dtype="float32", max_model_len=512, hf_overrides=longer) as engine,
        serving(engine) as world,
    ):
        yield world


@pytest.mark.parametrize("older", [False, True])
def test_an_output_format_is_kept_to(byte_world: World, older: bool) -> None:
    importlib.import_module("llguidance")
    form = {"type": "json_schema", "schema": PERSON}
    asked = {"output_format": form} if older else {"output_config": {"format": form}}
    message = ask(byte_world, **asked, max_tokens=300, temperature=0, logit_bias=NO_SPACE)
    assert message.stop_reason == "end_turn"
    jsonschema.validate(json.loads(text_of(message)), PERSON)


# -- the conversation


@pytest.mark.parametrize(
    ("system", "messages", "expected"),
    [
        (
            [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, "b"],
            [{"role": "user", "content": "c"}],
            [{"role": "system", "content": "a\nb"}, {"role": "user", "content": "c"}],
        ),
        (  # a coding agent's line for the bill
            [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}],
            [{"role": "user", "content": "c"}],
            [{"role": "user", "content": "c"}],
        ),
        (  # messages of one role are one turn
            None,
            [
                {"role": "user", "content": "a"},
                {"role": "user", "content": [{"type": "text", "text": "b"}]},
            ],
            [{"role": "user", "content": "a\nb"}],
        ),
        (
            None,
            [
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
                        {"type": "tool_use", "id": "2", "name": "g", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "1", "content": "one"},
                        {
                            "type": "tool_result",
                            "tool_use_id": "2",
                            "is_error": True,
                            "content": [{"type": "text", "text": "no"}],
                        },
                        {"type": "tool_result", "tool_use_id": "3"},
                        {"type": "text", "text": "Go on."},
                    ],
                },
            ],
            [
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "reasoning": "Hm.",
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "f", "arguments": {"x": 1}},
                        },
                        {
                            "id": "2",
                            "type": "function",
                            "function": {"name": "g", "arguments": {}},
                        },
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "one"},
                {"role": "tool", "tool_call_id": "2", "content": "Error: no"},
                {"role": "tool", "tool_call_id": "3", "content": ""},
                {"role": "user", "content": "Go on."},
            ],
        ),
    ],
)
def test_a_conversation_in_the_form_that_templates_know(
    system: Any, messages: list[Any], expected: list[Any]
) -> None:
    chat = chat_messages(system, messages)
    assert chat.messages == expected
    assert len(chat.paths) == len(expected)


def test_a_reminder_may_come_later(world: World) -> None:
    """Where a template takes no later system message, the user says what it says."""
    messages = [HELLO, {"role": "system", "content": "s"}]
    count = world.ask(COUNT, messages=messages, system="x")["input_tokens"]
    assert count == len("system:x;user:hello;system:s;assistant:")
    template = (
        "{% for m in messages %}"
        "{% if m.role == 'system' and not loop.first %}{{ raise_exception('first!') }}{% endif %}"
        "{{ m.role }}:{{ m.content }};{% endfor %}"
    )
    patch = pytest.MonkeyPatch()
    patch.setitem(world.engine.tokenizer._chat_templates, "default", template)
    with patch.context():
        count = world.ask(COUNT, messages=messages, system="x")["input_tokens"]
    patch.undo()
    assert count == len("system:x;user:hello\ns;")


# -- refusals


@pytest.mark.parametrize(
    ("named", "body"),
    [
        ("messages[0].content[1] is of the type 'image'", {"content": ["a", {"type": "image"}]}),
        (
            "messages[0].content[0].content[0] is of the type 'document'",
            {
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "document"}]}
                ]
            },
        ),
        ("messages[0].content[0] is of the type 'tool_use'", {"content": [{"type": "tool_use"}]}),
        ("messages[0].content[0] must be", {"content": [7]}),
        ("messages[0].content must be", {"content": None}),
        ('messages[0].content[0] needs the "tool_use_id"', {"content": [{"type": "tool_result"}]}),
        ('messages[0] needs a "role"', {"messages": [{"role": "tool", "content": "a"}]}),
        ("messages is empty", {"messages": []}),
        ("messages: Field required", {"messages": None}),
        (
            "messages[1].content[0].input must be",
            {
                "messages": [
                    HELLO,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "", "name": "f"}]},
                ]
            },
        ),
        (
            "messages[1] uses tools",
            {
                "messages": [
                    HELLO,
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
                    },
                ]
            },
        ),
        (
            "messages[1] is the beginning",
            {"messages": [HELLO, {"role": "assistant", "content": ""}]},
        ),
        ("system[0] is of the type 'image'", {"system": [{"type": "image"}]}),
        (
            "tools[0] is of the type 'web_search_20250305'",
            {"tools": [{"type": "web_search_20250305"}]},
        ),
        ("tools[0].input_schema must be", {"tools": [{"name": "f"}]}),
        ('tools[0] needs a "name"', {"tools": [{"input_schema": {}}]}),
        ("tool_choice.name is missing", {"tool_choice": {"type": "tool"}}),
        ("tool_choice.type", {"tool_choice": {"type": "required"}}),
        ("tool_choice: tools have no", {"tool_choice": {"type": "tool", "name": "g"}, "tools": 1}),
        ("tool_choice needs tools", {"tool_choice": {"type": "any"}}),
        ("thinking.type", {"thinking": {"type": "deep"}}),
        ("output_config.effort", {"output_config": {"effort": "none"}}),
    ],
)
def test_what_is_wrong_is_named(world: World, named: str, body: dict[str, Any]) -> None:
    if "content" in body:
        body = {"messages": [{"role": "user", **body}]}
    if body.get("tools") == 1:
        body = {**body, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    assert refusal(world, **body).startswith(named)
    assert refusal(world, path=COUNT, **body).startswith(named)


@pytest.mark.parametrize(
    ("named", "body"),
    [
        ("max_tokens: Field required", {"max_tokens": None}),
        ("max_tokens: Input should be greater", {"max_tokens": 0}),
        ("stop_sequences[0]: Input", {"stop_sequences": [1]}),
        ("stop_sequences", {"stop_sequences": [""]}),
        ("stop: the name of this field is stop_sequences", {"stop": "a"}),
        ("response_format: the name", {"response_format": {"type": "json_object"}}),
        ("n must be 1", {"n": 2, "temperature": 1}),
        ("mcp_servers: ", {"mcp_servers": [{"type": "url", "url": "http://x"}]}),
        ("container: ", {"container": "c"}),
        ("output_config.format", {"output_config": {"format": {"type": "json_schema"}}}),
        ("temperature", {"temperature": 3}),
        ("top_k", {"top_k": -5}),
        ("thinking.budget_tokens is missing", {"thinking": {"type": "enabled"}}),
        ("thinking.budget_tokens: ", {"thinking": {"type": "enabled", "budget_tokens": 0}}),
        (
            "output_format is the older name",
            {
                "output_format": {"type": "json_schema", "schema": {}},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
        ),
        (
            "output_config and structured_outputs both",
            {
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "structured_outputs": {"regex": "a"},
            },
        ),
        (
            "messages: the prompt",
            {"messages": [{"role": "user", "content": "a" * 200}]},
        ),
    ],
)
def test_what_an_answer_cannot_have_is_named(
    world: World, named: str, body: dict[str, Any]
) -> None:
    assert refusal(world, **body).startswith(named)


@pytest.mark.parametrize("path", [PATH, COUNT])
def test_what_can_never_fit_is_not_tokenized(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.delattr(type(world.engine.tokenizer), "encode_batch")
    long = [{"role": "user", "content": "a" * 100_000}]
    assert "96" in refusal(world, path=path, messages=long)


def test_what_concerns_anthropics_own_service_changes_nothing(world: World) -> None:
    ignored = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "cache_control": {"type": "ephemeral"},
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27"}
    plain = {"messages": [HELLO], "max_tokens": 8, **SAMPLING}
    response = world.client.post(f"{PATH}?beta=true", json={**plain, **ignored}, headers=headers)
    assert response.json()["content"] == world.ask(PATH, **plain)["content"]


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (anthropic.NotFoundError, {"model": "other"}),
        (anthropic.BadRequestError, {"max_tokens": 0}),
    ],
)
def test_the_client_knows_the_errors(world: World, kind: Any, call: dict[str, Any]) -> None:
    body: Any = {"model": MODEL, "messages": [HELLO], "max_tokens": 8, **call}
    with client_of(world) as client, pytest.raises(kind) as caught:
        client.messages.create(**body)
    assert caught.value.request_id == caught.value.body["request_id"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", PATH, 405, "invalid_request_error"),
        ("POST", f"{PATH}/batches", 404, "not_found_error"),
        ("POST", PATH, 400, "invalid_request_error"),
    ],
)
def test_errors_of_these_paths_have_anthropics_form(
    world: World, method: str, path: str, status: int, kind: str
) -> None:
    response = world.client.request(method, path, content=b"{")
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert set(world.client.request(method, "/v1/else").json()["error"]) >= {"param", "code"}


def test_a_key_comes_in_either_header(engine: Engine) -> None:
    body: Any = {"model": MODEL, "messages": [HELLO], "max_tokens": 1}
    with serving(engine, api_keys=("secret",)) as world:
        for key, status in (("secret", 200), ("other", 401)):
            for headers in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
                assert world.client.post(PATH, json=body, headers=headers).status_code == status
        with client_of(world, api_key="secret") as client:
            assert client.messages.create(**body).type == "message"
        with client_of(world) as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**body)


def test_a_full_queue_is_an_overloaded_server(engine: Engine) -> None:
    with serving(engine, max_queued_requests=0) as world:
        assert "queue is full" in refusal(world, 503)
        response = world.post(PATH, messages=[HELLO], max_tokens=1)
        assert response.json()["error"]["type"] == "overloaded_error"


def test_ids_of_requests_are_the_callers(world: World) -> None:
    body = {"messages": [HELLO], "max_tokens": 1}
    response = world.client.post(PATH, json=body, headers={"x-request-id": "mine"})
    assert (response.headers["request-id"], response.json()["id"]) == ("mine", "msg_mine")
    assert "x-request-id" not in response.headers
    odd = world.post(PATH, **body, request_id="a\r\nx-odd: 1")
    assert odd.headers["request-id"].isalnum() and "x-odd" not in odd.headers


# -- streams that wait or fail


def test_a_stream_that_waits_has_pings(model: Path, pace: Pace) -> None:
    with (
        paced_engine(model, pace) as engine,
        serving(engine, sse_keep_alive_seconds=0.05) as world,
    ):
        pace.gate.clear()
        try:
            body = {"messages": [HELLO], "max_tokens": 8, "stream": True, **SAMPLING}
            with world.client.stream("POST", PATH, json=body) as response:
                lines = response.iter_lines()
                read = [next(lines)]
                while read.count("event: ping") < 3:  # one comes at once
                    read.append(next(lines))
                pace.gate.set()
                read += lines
        finally:
            pace.gate.set()
    assert all(line.startswith(("event: ", "data: ")) for line in read if line)
    assert read[0] == "event: message_start" and "event: message_stop" in read


class Failing:
    """A generation that ends with an error, or whose only output says that it was aborted."""

    def __init__(self, error: ApiError | None) -> None:
        self.call = SimpleNamespace(request_id="msg_1")
        self.requests = [
            SimpleNamespace(
                prompt_token_ids=[1, 2],
                params=SimpleNamespace(reasoning_start=None, structured_outputs=None),
            )
        ]
        self.is_closed = False
        self._error = error

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        if self._error is not None:
            raise self._error
        part = SimpleNamespace(token_ids=[3], text="a", finish_reason="abort", stop_reason=None)
        yield [(0, SimpleNamespace(outputs=[part], num_cached_tokens=0))]

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("error", "kind"), [(ApiError(500, "It broke."), "api_error"), (None, "overloaded_error")]
)
def test_an_error_ends_a_stream(world: World, error: ApiError | None, kind: str) -> None:
    generation: Any = Failing(error)
    body = MessagesRequest.model_validate({"messages": [HELLO], "max_tokens": 4})
    message = _Message(body, None, generation, world.service)

    async def read() -> bytes:
        return b"".join([piece async for piece in _events(message, generation)])

    *_, last = asyncio.run(read()).decode().strip().split("\n\n")
    name, data = last.split("\n")
    assert name == "event: error" and generation.is_closed
    told = json.loads(data.removeprefix("data: "))
    assert (told["type"], told["error"]["type"], told["request_id"]) == ("error", kind, "1")
