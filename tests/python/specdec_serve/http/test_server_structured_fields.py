"""What fields for structured output and required calls ask for, without a server."""

import json
from typing import Any

import jsonschema
import pytest

from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.errors import ApiError
from specdec_serve.http.protocol.chat import ChatCompletionRequest
from specdec_serve.http.protocol.completions import CompletionRequest
from specdec_serve.http.protocol.responses import ResponsesRequest
from structured_bodies import PERSON, SCHEMA, TAGS
from test_server_tools import MESSAGES, TOOLS


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
