"""Structured output over HTTP: answers that keep to what was asked for."""

import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

from server_world import MODEL, World, serving
from specdec_native import Engine
from structured_bodies import PERSON, SCHEMA, TAGS
from test_server_tools import MESSAGES, PATH, TOOLS, ask, refusal, together
from tiny_text_model import CHARS, FIRST_CHAR, add_byte_text

COMPACT = {"json": PERSON, "disable_any_whitespace": True}
NEWLINE = FIRST_CHAR + len(CHARS)
# Else the tiny model may write spaces for ever.
NO_SPACE = {str(token): -100 for token in (FIRST_CHAR, NEWLINE)}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    return schema


# -- answers


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("structured") / "llama")


@pytest.fixture(scope="module")
def world(model: Path) -> Iterator[World]:
    importlib.import_module("llguidance")
    with (
        Engine(model, dtype="float32", max_model_len=256) as engine,
        serving(engine, tool_call_parser="hermes") as world,
    ):
        yield world


def contents(world: World, **body: Any) -> list[str]:
    """The texts of a chat, which are the same streamed."""
    choices = ask(world, tools=None, **body)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    return [choice["message"]["content"] for choice in choices]


def is_person(text: str) -> bool:
    return jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(text))


@pytest.mark.parametrize(
    ("body", "is_good"),
    [
        ({"structured_outputs": COMPACT}, is_person),
        (
            {"structured_outputs": {**COMPACT, "json": json.dumps(PERSON)}},
            is_person,
        ),
        (
            {"structured_outputs": {"regex": "[a-c]{4}x[0-9]{2}"}},
            re.compile("[a-c]{4}x[0-9]{2}").fullmatch,
        ),
        ({"structured_outputs": {"choice": ["left", "right"]}}, ["left", "right"].__contains__),
        (
            {"structured_outputs": {"json": nested(60), "disable_any_whitespace": True}},
            re.compile(r"\[{60}(true|false)\]{60}").fullmatch,
        ),
        (
            {"structured_outputs": {"grammar": 'start: item ("," item){2}\nitem: /[a-z]{2}/'}},
            re.compile("([a-z]{2},){2}[a-z]{2}").fullmatch,
        ),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_keep_to_the_grammar(
    world: World, body: dict[str, Any], is_good: Callable[[str], Any], temperature: float
) -> None:
    n = 3 if temperature else 1
    for text in contents(world, n=n, temperature=temperature, seed=7, **body):
        assert is_good(text), text
    body = {"prompt": ["ab", "cd"], "max_tokens": 200, "temperature": temperature, **body}
    whole = world.ask("/v1/completions", **body)["choices"]
    assert all(is_good(choice["text"]) for choice in whole)
    assert {choice["finish_reason"] for choice in whole} == {"stop"}


def test_a_schema_of_openais_form(world: World) -> None:
    (choice,) = world.ask(
        PATH, messages=MESSAGES, response_format=SCHEMA, logit_bias=NO_SPACE, temperature=0
    )["choices"]
    assert choice["finish_reason"] == "stop" and is_person(choice["message"]["content"])


def test_drafts_change_no_answer(world: World, model: Path) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4}
    body = {"structured_outputs": COMPACT, "seed": 3, "n": 2, "temperature": 0.9}
    with (
        Engine(model, dtype="float32", max_model_len=256, speculative_config=config) as engine,
        serving(engine) as drafting,
    ):
        assert contents(drafting, **body) == contents(world, **body)


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("structured_outputs", {"structured_outputs": {"regex": "["}}),
        ("structured_outputs", {"structured_outputs": {"grammar": "start: nothing"}}),
        ("structured_outputs", {"structured_outputs": {"json": "{"}}),
        ("structured_outputs", {"structured_outputs": {"json": {"type": "thing"}}}),
        ("structured_outputs", {"structured_outputs": {"structural_tag": "{}"}}),
        (
            "response_format",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "thing"}},
                }
            },
        ),
        (
            "response_format",
            {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
        ),
        (
            "structured_outputs",
            {
                "structured_outputs": {
                    "structural_tag": {
                        "structures": [{**TAGS["structures"][0], "schemas": {}}],
                        "triggers": ["<n>"],
                    }
                }
            },
        ),
        (
            "tools",
            {
                "tool_choice": "required",
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"type": "thing"}},
                    }
                ],
            },
        ),
    ],
)
def test_bad_grammars_name_the_field(world: World, field: str, body: dict[str, Any]) -> None:
    body = {"tools": None, **body}
    for stream in (False, True):
        error = refusal(world, stream=stream, **body)
        assert error["param"] == field and "non-verbose" not in error["message"]


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("structured_outputs", {"structured_outputs": {}}),
        ("structured_outputs", {"structured_outputs": {"json_object": False}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
        ("structured_outputs", {"structured_outputs": {"choice": []}}),
        ("structured_outputs", {"structured_outputs": {"choice": [""]}}),
        ("structured_outputs", {"structured_outputs": {"json": ""}}),
        ("structured_outputs", {"structured_outputs": {"structural_tag": ""}}),
        ("structured_outputs", {"structured_outputs": {"structural_tag": "no JSON"}}),
        ("structured_outputs", {"structured_outputs": {"grammar": ""}}),
        ("structured_outputs", {"structured_outputs": {"regex": 7}}),
        ("structured_outputs", {"structured_outputs": {"choice": "a"}}),
        ("structured_outputs", {"structured_outputs": "a"}),
        ("response_format", {"response_format": {}}),
        ("response_format", {"response_format": {"type": "xml"}}),
        ("response_format", {"response_format": "json"}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        (
            "response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        ),
        (
            "response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        ),
        ("response_format", {"response_format": {**SCHEMA, "type": "json_object"}}),
        ("response_format", {"response_format": {**SCHEMA, "type": "text"}}),
        ("response_format", {"response_format": {"type": "structural_tag"}}),
        ("structured_outputs", {"structured_outputs": {"json": nested(200)}}),
        (
            "response_format",
            {"response_format": {"type": "structural_tag", "format": nested(200)}},
        ),
        (
            "structured_outputs",
            {
                "response_format": {"type": "json_object"},
                "structured_outputs": {"json_object": True},
            },
        ),
    ],
)
def test_bad_fields_are_named(world: World, field: str, body: dict[str, Any]) -> None:
    errors = [
        refusal(world, tools=None, **body),
        world.error("/v1/completions", prompt="a", **body),
    ]
    for error in errors:
        assert error["param"] == field
        assert field.removeprefix("") in error["message"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (
            {"structured_outputs": {"regex": "name|true"}, "bad_words": ["am", "u"]},
            "structured_outputs",
            "structured_outputs: no token can come next, together with bad_words;",
        ),
        (
            {"response_format": SCHEMA, "allowed_token_ids": [FIRST_CHAR + 1]},
            "response_format",
            "response_format: no token can come next, together with allowed_token_ids;",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "x",
                        "schema": {
                            "type": "object",
                            "properties": {f"p{i}": {} for i in range(4000)},
                        },
                    },
                }
            },
            "response_format",
            "response_format: the grammar has too many parts",
        ),
        (
            {"structured_outputs": {"regex": "(a{1000}){1000}"}},
            "structured_outputs",
            "structured_outputs: the grammar takes too many steps",
        ),
    ],
)
def test_answers_that_cannot_go_on_end_with_the_field(
    world: World, body: dict[str, Any], field: str, words: str
) -> None:
    body = {"messages": MESSAGES, **body}
    streamed = world.events(PATH, **body)[-1]["error"]
    for error in (world.error(PATH, **body), streamed):
        assert error["param"] == field and error["message"].startswith(words)
        assert error["code"] == 400


def test_what_is_missing_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, *args: Any) -> Any:
        if name.startswith("llguidance"):
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", without)
    error = refusal(world, tools=None, response_format=SCHEMA)
    assert "pip install" in error["message"] and "[structured]" in error["message"]
    assert error["param"] == "response_format"


# -- calls that are required


def test_required_calls(world: World) -> None:
    for choice in ask(
        world,
        tool_choice="required",
        parallel_tool_calls=False,
        n=3,
        temperature=1,
        seed=2,
        max_tokens=180,
    ):
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == ""
        (call,) = choice["message"]["tool_calls"]
        check_call(call)


@pytest.mark.parametrize("tool_choice", ["required", "weather"])
@pytest.mark.parametrize("max_tokens", [1, 38])
def test_a_required_call_that_is_cut(world: World, tool_choice: str, max_tokens: int) -> None:
    """Whole and streamed there is what was written of it behind the name, and no text."""
    choice: Any = tool_choice
    if tool_choice != "required":
        choice = {"type": "function", "function": {"name": tool_choice}}
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "seed": 2}
    body["max_tokens"] = max_tokens
    (answer,) = world.ask(PATH, **body)["choices"]
    assert answer["finish_reason"] == "length" and answer["message"]["content"] == ""
    (streamed,) = together(world.events(PATH, **body))
    calls = [call["function"] for call in answer["message"].get("tool_calls", [])]
    assert calls == streamed["calls"] and bool(calls) == (max_tokens > 1)
    assert streamed["content"] == "" and streamed["finish_reason"] == "length"


def test_one_function_is_called(world: World) -> None:
    for name in ("weather", "now"):
        (choice,) = ask(
            world,
            tool_choice={"type": "function", "function": {"name": name}},
            temperature=0,
        )
        assert choice["finish_reason"] == "stop" and choice["message"]["content"] == ""
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == name
        check_call(call)


def check_call(call: dict[str, Any]) -> None:
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "now":
        assert arguments == {}
    else:
        jsonschema.validate(arguments, TOOLS[0]["function"]["parameters"])


def test_a_function_of_a_response(world: World) -> None:
    functions = [{"type": "function", **tool["function"]} for tool in TOOLS]
    answer = world.ask(
        "/v1/responses",
        input="a",
        tools=functions,
        tool_choice={"type": "function", "name": "now"},
    )
    (item,) = answer["output"]
    assert (item["type"], item["name"]) == ("function_call", "now")
    assert json.loads(item["arguments"]) == {}


# -- the openai client with pydantic models


class Step(pydantic.BaseModel):
    kind: Literal["a", "b"]
    done: bool


class Plan(pydantic.BaseModel):
    steps: list[Step] = pydantic.Field(max_length=2)
    level: Literal[1, 2, 3]


def test_the_openai_client_parses_models(world: World) -> None:
    messages: Any = MESSAGES
    body: dict[str, Any] = {
        "model": MODEL,
        "temperature": 0,
        "extra_body": {"logit_bias": NO_SPACE},
    }
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY", max_retries=0) as client:
        chat = client.chat.completions.parse(messages=messages, response_format=Plan, **body)
        parsed = chat.choices[0].message.parsed
        assert isinstance(parsed, Plan)
        with client.chat.completions.stream(
            messages=messages, response_format=Plan, **body
        ) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.parsed == parsed
        response = client.responses.parse(input=messages, text_format=Plan, **body)
        assert response.output_parsed == parsed


def test_the_openai_client_parses_arguments(world: World) -> None:
    messages: Any = MESSAGES
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY", max_retries=0) as client:
        chat = client.chat.completions.parse(
            model=MODEL,
            messages=messages,
            tools=[openai.pydantic_function_tool(Step)],
            tool_choice={"type": "function", "function": {"name": "Step"}},
            temperature=0,
            extra_body={"logit_bias": NO_SPACE},
        )
    calls = chat.choices[0].message.tool_calls
    assert calls is not None
    assert isinstance(calls[0].function.parsed_arguments, Step)
