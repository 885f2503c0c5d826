"""Tools in /v1/chat/completions: what requests may say, and calls in answers, whole and streamed.

scripted_model makes the model write a text.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from scripted_model import Says
from server_world import MODEL, World, serving
from specdec_native import Engine
from specdec_native.text import chat_template
from specdec_serve.http.protocol import body as body_module
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.templates import template_options
from specdec_serve.http.tools.call_formats import CALL_FORMATS
from specdec_serve.http.tools.request import read_tools

PATH = "/v1/chat/completions"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Bonn"]}, "days": {"enum": [1, 2]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
ALLOWED: dict[str, Any] = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "now"}],
}
NO_CALLS = {"tool_choice": "none"}
TWO_CALLS = (
    "Let me see. "
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call> '
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)


@pytest.fixture(scope="module")
def roomy(model: Path) -> Iterator[Engine]:
    with Engine(model, dtype="float32", max_model_len=256) as engine:
        yield engine


@pytest.fixture(scope="module")
def world(roomy: Engine) -> Iterator[World]:
    with serving(roomy, tool_call_parser="hermes") as world:
        yield world


def ask(world: World, **body: Any) -> list[dict[str, Any]]:
    """The choices, which are the same streamed, but for the ids of calls."""
    body = {"messages": MESSAGES, "tools": TOOLS, **body}
    choices: list[dict[str, Any]] = world.ask(PATH, **body)["choices"]
    streamed = together(world.events(PATH, **body), len(choices))
    for choice, other in zip(choices, streamed, strict=True):
        message = choice["message"]
        assert (message["content"] or "") == other["content"]
        assert [call["function"] for call in message.get("tool_calls", [])] == other["calls"]
        assert choice["finish_reason"] == other["finish_reason"]
    return choices


def together(events: list[dict[str, Any]], n: int = 1) -> list[dict[str, Any]]:
    """Puts the choices of a stream together, as OpenAI's clients do."""
    choices: list[dict[str, Any]] = [{"content": "", "calls": []} for _ in range(n)]
    for event in events:
        for part in event["choices"]:
            choice, delta = choices[part["index"]], part["delta"]
            assert "finish_reason" not in choice, "nothing follows a choice's end"
            choice["content"] += delta.get("content") or ""
            assert len(delta.get("tool_calls", [])) <= 1
            for call in delta.get("tool_calls", []):
                calls, function = choice["calls"], call["function"]
                if call["index"] == len(calls):
                    assert call["id"].startswith("chatcmpl-tool-") and call["type"] == "function"
                    assert list(function) == ["name", "arguments"] and not function["arguments"]
                    calls.append({"name": function["name"], "arguments": ""})
                else:
                    assert call.keys() == {"index", "function"} and call["index"] == len(calls) - 1
                    assert function.keys() == {"arguments"}
                    calls[call["index"]]["arguments"] += function["arguments"]
            if part["finish_reason"] is not None:
                choice["finish_reason"] = part["finish_reason"]
    return choices


def refusal(world: World, **body: Any) -> dict[str, Any]:
    return world.error(PATH, **{"messages": MESSAGES, "tools": TOOLS, **body})


def test_what_neither_server_nor_template_reads_is_warned_of_once(
    world: World, says: Says, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    says("a")
    for module in (body_module, chat_template):
        monkeypatch.setattr(module, "_warned", set())
    part = {"type": "text", "text": "a", "txt": "b", "annotations": []}
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    body = {
        "messages": [
            {"role": "user", "content": [part]},
            {"role": "assistant", "content": "b", "tool_calls": [call]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parms": {}}}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    for _ in range(2):
        world.ask(PATH, **body)
    items = [{"role": "user", "content": "a", "status": "completed", "tone": "b"}]
    tools = [{"type": "function", "name": "f", "schema": {}}]
    world.ask("/v1/responses", input=items, tools=tools)
    warned = [re.findall("'(.*)'", record.getMessage()) for record in caplog.records]
    names = ["enable_thinking", "parms", "schema", "tone", "tool_calls", "tools", "txt"]
    assert sorted(warned) == [[name] for name in names]


# -- calls that the model decides to make


def test_calls_come_with_the_content_before_them(world: World, says: Says) -> None:
    says(TWO_CALLS)
    for body in ({}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}):
        (choice,) = ask(world, **body)
        message = choice["message"]
        assert message["content"] == "Let me see. "
        ids = [call.pop("id") for call in message["tool_calls"]]
        assert len(set(ids)) == 2 and all(i.startswith("chatcmpl-tool-") for i in ids)
        assert message["tool_calls"] == [
            {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}},
            {"type": "function", "function": {"name": "now", "arguments": "{}"}},
        ]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("tool_calls", None)


def test_a_call_alone_has_no_content(world: World, says: Says) -> None:
    says('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    for choice in ask(world, n=2, temperature=1):
        assert choice["message"]["content"] is None
        assert len(choice["message"]["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("text", "content"),
    [("  CALL", None), ("  CALL more", "  more"), ("  CALL CALL", None), ("   ", "   ")],
)
def test_space_before_calls_is_content_where_more_follows(
    world: World, says: Says, text: str, content: str | None
) -> None:
    says(text.replace("CALL", '<tool_call>{"name": "now", "arguments": {}}</tool_call>'))
    (choice,) = ask(world)
    assert choice["message"]["content"] == content


def test_calls_that_are_not_to_be_parallel_are_one(world: World, says: Says) -> None:
    says(TWO_CALLS)
    (choice,) = ask(world, parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    assert choice["finish_reason"] == "tool_calls"


def test_an_answer_without_calls_has_none(world: World, says: Says) -> None:
    says("Good day. <b>x</b> <")
    (choice,) = ask(world)
    assert choice["message"]["content"] == "Good day. <b>x</b> <"
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "text", ["<tool_call>{}</tool_call>", '<tool_call>{"name": "f", oops}</tool_call>']
)
def test_what_is_no_call_is_content(world: World, says: Says, text: str) -> None:
    says(f"A. {text}")
    (choice,) = ask(world)
    assert choice["message"]["content"] == f"A. {text}"
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("ending", ["oops}}</tool_call>", "1}"])
def test_a_call_that_turns_out_malformed(world: World, says: Says, ending: str) -> None:
    """A stream has told its beginning already, so a whole answer tells it, too."""
    text = f'<tool_call>{{"name": "now", "arguments": {{"x": {ending}'
    says(text)
    (choice,) = ask(world)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "now" and choice["finish_reason"] == "stop"
    rest = choice["message"]["content"] or ""
    assert text.endswith(call["function"]["arguments"] + rest)


def test_a_call_that_is_cut_ends_with_length(world: World, says: Says) -> None:
    says(TWO_CALLS)
    (choice,) = ask(world, max_tokens=TWO_CALLS.index("Rome"))
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "'}
    assert choice["message"]["content"] == "Let me see. "
    assert choice["finish_reason"] == "length"


def test_calls_of_llama(roomy: Engine, says: Says) -> None:
    says('{"name": "weather", "parameters": {"city": "Bonn"}}; {"name": "now", "parameters": {}}')
    with serving(roomy, tool_call_parser="llama3_json") as world:
        (choice,) = ask(world)
    assert choice["message"]["content"] is None
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [
        '{"city": "Bonn"}',
        "{}",
    ]


def test_every_token_is_told_of_though_its_text_waits(world: World, says: Says) -> None:
    says(TWO_CALLS)
    body = {"messages": MESSAGES, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
    whole = world.ask(PATH, **body)["choices"][0]
    ids, logprobs = [], []
    for event in world.events(PATH, **body):
        for part in event["choices"]:
            ids += part.get("token_ids", [])
            logprobs += (part["logprobs"] or {"content": []})["content"]
    assert ids == whole["token_ids"] and len(ids) == len(TWO_CALLS) + 1
    assert logprobs == whole["logprobs"]["content"]


def test_usage_is_that_of_all_tokens(world: World, says: Says) -> None:
    says(TWO_CALLS)
    body = {"messages": MESSAGES, "tools": TOOLS}
    usage = world.ask(PATH, **body)["usage"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = world.events(PATH, **body, stream_options=options)
    assert events[-1]["usage"] == usage and usage["completion_tokens"] == len(TWO_CALLS) + 1


def test_special_tokens_are_left_out_but_for_tags(
    world: World, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    says("a<s>b")
    contents = [ask(world, **choice)[0]["message"]["content"] for choice in ({}, NO_CALLS)]
    monkeypatch.setitem(vars(CALL_FORMATS["hermes"]), "tags", frozenset(["<s>"]))
    contents += [ask(world, **choice)[0]["message"]["content"] for choice in ({}, NO_CALLS)]
    assert contents == ["ab", "ab", "a<s>b", "ab"]


# -- what requests say


def test_tools_are_shown_to_the_model_and_not_called(roomy: Engine, says: Says) -> None:
    says(TWO_CALLS)
    template = "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}"
    for excluded, shown in ((False, "weather,now,"), (True, "")):
        with serving(roomy, request_chat_template=True, exclude_unused_tools=excluded) as world:
            body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "none"}
            (choice,) = ask(world, **body)
            assert choice["message"]["content"] == TWO_CALLS and choice["finish_reason"] == "stop"
            answer = world.ask(
                PATH, **body, chat_template=template + "x", return_token_ids=True, max_tokens=1
            )
            assert roomy.tokenizer.decode(answer["prompt_token_ids"]) == shown + "x"


def test_a_model_decides_only_where_the_server_reads_its_calls(roomy: Engine) -> None:
    with serving(roomy) as world:
        for body in ({}, {"tool_choice": "auto"}):
            error = refusal(world, **body)
            assert error["param"] == "tool_choice"
            assert "--tool-call-parser" in error["message"]


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("tools", {"tools": []}),
        ("tools", {"tools": [{}]}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("tools", {"tools": [{"type": "web_search"}]}),
        ("tools", {"tools": [{"type": "function", "function": {}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": 7}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": ""}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": 7}}]}),
        ("tools", {"tools": [{}], "tool_choice": "none"}),
        ("tools", {"tools": "weather"}),
        ("tools", {"tools": [{**TOOLS[0], "x": json.loads("[" * 300 + "]" * 300)}]}),
        ("tool_choice", {"tool_choice": "bogus"}),
        ("tool_choice", {"tool_choice": {}}),
        ("tool_choice", {"tool_choice": {"type": "function"}}),
        ("tool_choice", {"tool_choice": {"type": "allowed_tools"}}),
        ("tool_choice", {"tool_choice": {**ALLOWED, "mode": "none"}}),
        ("tool_choice", {"tool_choice": {**ALLOWED, "tools": []}}),
        ("tool_choice", {"tool_choice": {**ALLOWED, "tools": [{"type": "function", "name": "x"}]}}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": "weather"}}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": ""}}}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "other"}}}),
        ("tool_choice", {"tools": None, "tool_choice": "auto"}),
        ("tool_choice", {"tools": None, "tool_choice": "required"}),
        ("tool_choice", {"tool_choice": 7}),
        ("parallel_tool_calls", {"parallel_tool_calls": "yes, please"}),
        (
            "structured_outputs",
            {
                "tool_choice": {"type": "function", "function": {"name": "now"}},
                "structured_outputs": {"json": {"type": "object"}},
            },
        ),
    ],
)
def test_bad_tools_are_named(world: World, param: str, body: dict[str, Any]) -> None:
    error = refusal(world, **body)
    assert (error["param"], error["type"]) == (param, "BadRequestError")
    assert param in error["message"]
    assert error == refusal(world, **body, stream=True)


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("is_nested", [True, False])
def test_allowed_tools_are_the_only_ones(is_nested: bool, mode: str) -> None:
    """In the forms of chats and of responses. Neither templates nor grammars see the others."""
    chosen = {**ALLOWED, "mode": mode}
    choice = {"type": "allowed_tools", "allowed_tools": chosen} if is_nested else chosen
    use = read_tools(TOOLS, choice)
    assert use is not None and use.choice == mode
    assert [function.name for function in use.functions] == ["now"]
    service: Any = SimpleNamespace(options=ServerOptions(model_names=(MODEL,)))
    options = template_options(
        service, tools=TOOLS, tool_use=use, chat_template=None, chat_template_kwargs=None
    )
    assert [tool["function"]["name"] for tool in options["tools"]] == ["now"]
    grammar = use.grammar(None)
    assert (grammar is not None) == (mode == "required")
    assert grammar is None or "weather" not in str(grammar.params.json)


def test_definitions_of_two_functions_must_not_differ(world: World) -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        parameters = {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/X"}},
            "$defs": {"X": {"type": kind}},
        }
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    tools = [tool("f", "string"), tool("g", "integer")]
    error = refusal(world, tools=tools, tool_choice="required")
    assert error["param"] == "tools" and "define 'X' in $defs" in error["message"]


# -- the openai client


def test_the_openai_client_puts_calls_together(world: World, says: Says) -> None:
    says(TWO_CALLS)
    body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS}
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY", max_retries=0) as client:
        whole = client.chat.completions.create(**body).choices[0]
        with client.chat.completions.stream(**body) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
            final = stream.get_final_completion().choices[0]
    assert whole.finish_reason == final.finish_reason == "tool_calls"
    assert [event.name for event in done] == ["weather", "now"]
    for message in (whole.message, final.message):
        assert message.content == "Let me see. " and message.tool_calls is not None
        functions = [call.function for call in message.tool_calls if call.type == "function"]
        assert [(f.name, json.loads(f.arguments)) for f in functions] == [
            ("weather", {"city": "Rome"}),
            ("now", {}),
        ]
