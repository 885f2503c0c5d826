"""Functions in /v1/responses: calls are items of the output, whole and streamed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from scripted_model import Says
from server_world import MODEL, World, serving
from specdec_native import Engine

FUNCTIONS: list[dict[str, Any]] = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False},
    {"type": "function", "name": "now", "description": "The time."},
]
CALLS = (
    "Let me see. "
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call> '
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)


@pytest.fixture(scope="module")
def world(model: Path) -> Iterator[World]:
    with (
        Engine(model, dtype="float32", max_model_len=256) as engine,
        serving(engine, tool_call_parser="hermes", request_chat_template=True) as world,
    ):
        yield world


def test_calls_are_items_after_the_message(client: openai.OpenAI, says: Says) -> None:
    says(CALLS)
    body: Any = {"model": MODEL, "input": "hello", "tools": FUNCTIONS}
    response = client.responses.create(**body)
    assert response.status == "completed" and response.output_text == "Let me see. "
    message, *calls = response.output
    assert message.type == "message" and message.status == "completed"
    assert [
        (call.name, call.arguments, call.status) for call in calls if call.type == "function_call"
    ] == [("weather", '{"city": "Rome"}', "completed"), ("now", "{}", "completed")]
    assert len({call.call_id for call in calls if call.type == "function_call"}) == 2
    assert [tool.type for tool in response.tools] == ["function", "function"]
    with client.responses.stream(**body) as stream:
        done = [e for e in stream if e.type == "response.function_call_arguments.done"]
        final = stream.get_final_response()
    assert [event.arguments for event in done] == ['{"city": "Rome"}', "{}"]
    assert [item.type for item in final.output] == [item.type for item in response.output]
    events = list(client.responses.create(**body, stream=True))
    assert events[-1].type == "response.completed"
    assert without_ids(events[-1].response) == without_ids(response)


def without_ids(response: Any) -> list[dict[str, Any]]:
    items = [item.to_dict() for item in response.output]
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def test_the_events_of_items_come_in_openais_order(world: World, says: Says) -> None:
    says(CALLS)
    with world.client.stream(
        "POST", "/v1/responses", json={"input": "hello", "tools": FUNCTIONS, "stream": True}
    ) as response:
        lines = [line for line in response.iter_lines() if line.startswith("event: ")]
    kinds = [line.removeprefix("event: response.") for line in lines]
    merged = [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before]
    call = [
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
    ]
    assert merged == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *call,
        *call,
        "completed",
    ]


def test_a_call_that_is_malformed(world: World, says: Says) -> None:
    text = '<tool_call>{"name": "now", "arguments": {"x": oops}}</tool_call>'
    says(text)
    body: Any = {"model": MODEL, "input": "a", "tools": FUNCTIONS}
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY") as client:
        whole = client.responses.create(**body)
        events = list(client.responses.create(**body, stream=True))
    assert events[-1].type == "response.completed"
    assert without_ids(events[-1].response) == without_ids(whole)
    call, message = events[-1].response.output
    assert (call.type, call.status) == ("function_call", "incomplete")
    assert text.endswith(call.arguments + message.content[0].text)


@pytest.mark.parametrize("text", ["a < b <to c <tool d", CALLS + " and more", CALLS[:-60]])
def test_logprobs_are_those_of_messages_whole_and_streamed(
    world: World, says: Says, text: str
) -> None:
    says(text)
    body: dict[str, Any] = {"input": "a", "tools": FUNCTIONS}
    body |= {"include": ["message.output_text.logprobs"], "max_output_tokens": len(text)}
    whole = world.ask("/v1/responses", **body)["output"]
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY") as client:
        events: Any = list(client.responses.create(**{**body, "model": MODEL}, stream=True))
    streamed = [item.to_dict() for item in events[-1].response.output]
    contents = [
        [item["content"][0] for item in items if item["type"] == "message"]
        for items in (whole, streamed)
    ]
    assert contents[0] == contents[1] and contents[0]
    for content in contents[0]:
        assert "".join(entry["token"] for entry in content["logprobs"]) == content["text"]


def test_one_call_only_where_calls_are_not_parallel(client: openai.OpenAI, says: Says) -> None:
    says(CALLS)
    tools: Any = FUNCTIONS
    response = client.responses.create(
        model=MODEL, input="a", tools=tools, parallel_tool_calls=False
    )
    assert [item.type for item in response.output] == ["message", "function_call"]
    assert response.parallel_tool_calls is False


def test_a_call_and_its_output_go_on(client: openai.OpenAI, says: Says) -> None:
    """What a response calls can be sent back with its output."""
    says(CALLS)
    tools: Any = FUNCTIONS
    first = client.responses.create(model=MODEL, input="a", tools=tools)
    says("It rains.")
    items: Any = [{"role": "user", "content": "a"}, *(i.to_dict() for i in first.output)]
    for item in first.output:
        if item.type == "function_call":
            items.append({"type": "function_call_output", "call_id": item.call_id, "output": "x"})
    second = client.responses.create(model=MODEL, input=items, tools=tools)
    assert second.output_text == "It rains."


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("tools", {"tools": [{"type": "function", "name": ""}]}),
        ("tools", {"tools": [{"type": "function", "name": "f", "parameters": []}]}),
        ("tool_choice", {"tool_choice": {"type": "function", "name": "other"}}),
        ("tool_choice", {"tool_choice": {"type": "allowed_tools", "mode": "auto"}}),
        ("tool_choice", {"tool_choice": "some"}),
        ("tool_choice", {"tools": [], "tool_choice": "required"}),
        (
            "structured_outputs",
            {
                "tool_choice": {"type": "function", "name": FUNCTIONS[0]["name"]},
                "structured_outputs": {"regex": "a"},
            },
        ),
    ],
)
def test_bad_functions_are_named(world: World, field: str, body: dict[str, Any]) -> None:
    error = world.error("/v1/responses", **{"input": "a", "tools": FUNCTIONS, **body})
    assert error["param"] == field and field in error["message"]
