"""Structured output over HTTP: what fields ask for, and answers that keep to it."""

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
from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.errors import ApiError
from specdec_serve.http.protocol.chat import ChatCompletionRequest
from specdec_serve.http.protocol.completions import CompletionRequest
from specdec_serve.http.protocol.responses import ResponsesRequest
from test_server_tools import MESSAGES, PATH, TOOLS, ask, refusal, together
from tiny_text_model import CHARS, FIRST_CHAR, add_byte_text

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
COMPACT = {"json": PERSON, "disable_any_whitespace": True}
NEWLINE = FIRST_CHAR + len(CHARS)
# Else the tiny model may write spaces for ever.
NO_SPACE = {str(token): -100 for token in (FIRST_CHAR, NEWLINE)}
TAGS: dict[str, Any] = {
    "structures": [{"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}],
    "triggers": ["<n>"],
}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    return schema


# -- what fields ask for


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
        ({"response_format": SCHEMA}, StructuredOutputsParams(json=PERSON)),
        (
            {"response_format": {"type": "structural_tag", **TAGS}},
            StructuredOutputsParams(structural_tag={"type": "structural_tag", **TAGS}),
        ),
        ({"structured_outputs": {"json": PERSON}}, StructuredOutputsParams(json=PERSON)),
        (
            {"structured_outputs": {"json": json.dumps(PERSON), "regex": None}},
            StructuredOutputsParams(json=json.dumps(PERSON)),
        ),
        ({"structured_outputs": {"regex": "[ab]+"}}, StructuredOutputsParams(regex="[ab]+")),
        ({"structured_outputs": {"choice": ["a"]}}, StructuredOutputsParams(choice=["a"])),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            StructuredOutputsParams(grammar='start: "a"'),
        ),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            StructuredOutputsParams(json_object=True, disable_any_whitespace=True),
        ),
        (
            {"structured_outputs": {"structural_tag": json.dumps(TAGS), "unknown": 1}},
            StructuredOutputsParams(structural_tag=json.dumps(TAGS)),
        ),
        (
            {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}},
            StructuredOutputsParams(regex="a"),
        ),
        # vLLM's older fields are ignored, as vLLM itself does.
        ({"guided_json": PERSON, "guided_regex": "a", "guided_choice": ["a"]}, None),
        # Calls that are required go over a response_format.
        (
            {"tools": TOOLS, "tool_choice": "none", "response_format": SCHEMA},
            StructuredOutputsParams(json=PERSON),
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "function", "function": {"name": "weather"}},
                "response_format": SCHEMA,
            },
            StructuredOutputsParams(
                json=TOOLS[0]["function"]["parameters"], whitespace_pattern=" ?"
            ),
        ),
    ],
)
def test_fields_become_parameters(
    body: dict[str, Any], expected: StructuredOutputsParams | None
) -> None:
    bodies: list[Any] = [ChatCompletionRequest.model_validate({"messages": MESSAGES, **body})]
    if "tools" not in body:
        bodies.append(CompletionRequest.model_validate({"prompt": "a", **body}))
    for request in bodies:
        request.check()
        grammar = request.grammar()
        assert (None if grammar is None else grammar.params) == expected


@pytest.mark.parametrize("tool_choice", [None, "auto"])
@pytest.mark.parametrize("form", [SCHEMA, {"type": "json_object"}])
def test_json_and_calls_by_choice_exclude_each_other(
    tool_choice: str | None, form: dict[str, Any]
) -> None:
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": tool_choice}
    with pytest.raises(ApiError, match="response_format.*tool_choice") as refused:
        ChatCompletionRequest.model_validate({**body, "response_format": form}).check()
    assert (refused.value.status, refused.value.param) == (400, "response_format")
    text = ChatCompletionRequest.model_validate({**body, "response_format": {"type": "text"}})
    text.check()
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    response = {"input": "a", "tools": tools, "text": {"format": {"type": "json_object"}}}
    with pytest.raises(ApiError, match="text.format.*tool_choice"):
        ResponsesRequest.model_validate({**response, "tool_choice": tool_choice}).check()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutputsParams(json_object=True)),
        (
            {"type": "json_schema", "name": "x", "schema": PERSON, "strict": True},
            StructuredOutputsParams(json=PERSON),
        ),
    ],
)
def test_formats_of_responses(form: dict[str, Any], expected: Any) -> None:
    request = ResponsesRequest.model_validate({"input": "a", "text": {"format": form}})
    grammar = request.grammar()
    assert (None if grammar is None else grammar.params) == expected
    assert request.text_format() == form


def required_schema(tools: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    request = ChatCompletionRequest.model_validate(
        {"messages": MESSAGES, "tools": tools, "tool_choice": "required", **body}
    )
    grammar = request.grammar()
    assert grammar is not None and isinstance(grammar.params.json, dict)
    return grammar.params.json


ROME = {"name": "weather", "parameters": {"city": "Rome"}}
NOW: dict[str, Any] = {"name": "now", "parameters": {}}


@pytest.mark.parametrize(
    ("calls", "is_valid"),
    [
        ([ROME], True),
        ([ROME, NOW, {"name": "weather", "parameters": {"city": "Bonn", "days": 2}}], True),
        ([NOW], True),
        (None, False),
        ([], False),
        ({}, False),
        ([{}], False),
        (ROME, False),
        ([{"name": "weather"}], False),
        ([{"name": "weather", "parameters": {}}], False),
        ([{"name": "weather", "parameters": None}], False),
        ([{"name": "weather", "parameters": {"city": "Rome", "extra": 1}}], False),
        ([{"name": "now", "parameters": {"extra": 1}}], False),
        ([{"name": "other", "parameters": {"city": "Rome"}}], False),
        ([{"name": "now", "parameters": {}, "extra": 1}], False),
        ([ROME, {}], False),
    ],
)
def test_the_schema_of_required_calls(calls: Any, is_valid: bool) -> None:
    """vLLM's cases of test_tool_choice_required."""
    validator = jsonschema.Draft202012Validator(required_schema(TOOLS))
    assert validator.is_valid(calls) == is_valid


def test_required_calls_go_over_a_format_and_exclude_a_grammar() -> None:
    assert required_schema(TOOLS, response_format=SCHEMA) == required_schema(TOOLS)
    with pytest.raises(ApiError, match="structured_outputs and a tool_choice that requires"):
        required_schema(TOOLS, structured_outputs={"regex": "a"})


def test_the_schema_of_one_call() -> None:
    one = jsonschema.Draft202012Validator(required_schema(TOOLS, parallel_tool_calls=False))
    assert one.is_valid([ROME]) and not one.is_valid([ROME, ROME])


def test_definitions_of_functions_are_found() -> None:
    parameters = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/X"}, "y": {"$ref": "#/definitions/Y"}},
        "required": ["x"],
        "$defs": {"X": {"enum": [1]}},
        "definitions": {"Y": {"enum": [2]}},
    }
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name in ("f", "g")
    ]
    validator = jsonschema.Draft202012Validator(required_schema(tools))
    assert validator.is_valid([{"name": "g", "parameters": {"x": 1, "y": 2}}])
    assert not validator.is_valid([{"name": "g", "parameters": {"x": 1, "y": 1}}])
    assert "$defs" in parameters, "the request is as it was"


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
def test_a_required_call_that_is_cut(world: World, tool_choice: str) -> None:
    """Whole and streamed there is what was written of it, and no text."""
    choice: Any = tool_choice
    if tool_choice != "required":
        choice = {"type": "function", "function": {"name": tool_choice}}
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": 1, "seed": 2}
    (answer,) = world.ask(PATH, **body)["choices"]
    assert answer["finish_reason"] == "length" and answer["message"]["content"] == ""
    (streamed,) = together(world.events(PATH, **body))
    calls = [call["function"] for call in answer["message"].get("tool_calls", [])]
    assert calls == streamed["calls"] and bool(calls) == (tool_choice == "weather")
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
