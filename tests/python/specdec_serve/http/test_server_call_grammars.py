"""Grammars of calls beside text and beside JSON, in the model's own syntax."""

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tokenizers

from server_world import World, serving
from specdec_native import Engine, StructuredOutputsParams
from specdec_native.requests.grammar_compiler import GrammarCompiler
from specdec_native.text.tokenizer import Tokenizer
from specdec_serve.http.tools.call_formats import CALL_FORMATS
from specdec_serve.http.tools.call_grammar import calls_in_text, calls_or_answer, describes_calls
from specdec_serve.http.tools.function import Function
from structured_bodies import PERSON
from test_server_tools import ask, refusal
from tiny_text_model import add_byte_text

VOCAB_SIZE = 160
END = 2
WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Bonn"]}},
}
FUNCTIONS = [Function("weather", WEATHER, is_strict=True), Function("now", None)]
ROME = '{"city": "Rome"}'
OSLO = '{"city": "Oslo"}'
ANSWER = StructuredOutputsParams(json={"type": "object", "properties": {"x": {"type": "integer"}}})


def an_object(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def tagged(begin: str, end: str) -> Callable[[str, str], str]:
    return lambda name, arguments: f"{begin}\n{an_object(name, arguments)}\n{end}".rstrip()


# A call by its function and arguments, in some formats, and the marks that may be tokens.
CALLS: dict[str, tuple[Callable[[str, str], str], list[str]]] = {
    "hermes": (tagged("<tool_call>", "</tool_call>"), ["<tool_call>", "</tool_call>"]),
    "llama3_json": (tagged("<|python_tag|>", ""), ["<|python_tag|>"]),
    "mistral": (lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{arguments}", []),
    "granite": (lambda *call: f"<|tool_call|>[{an_object(*call)}]", ["<|tool_call|>"]),
    "jamba": (tagged("<tool_calls>", "</tool_calls>"), []),
}


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("calls") / "llama")


@pytest.fixture(params=[(name, marks) for name in CALLS for marks in ("none", "plain", "special")])
def syntax(request: pytest.FixtureRequest, model: Path) -> Any:
    """A format and a tokenizer whose marks are text, tokens or special tokens."""
    importlib.import_module("llguidance")
    name, kind = request.param
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    marks = CALLS[name][1] or ["[TOOL_CALLS]", "[ARGS]"]
    if kind == "special":
        tokenizer.add_special_tokens(marks)
    elif kind == "plain":
        tokenizer.add_tokens(marks)
    return name, Tokenizer.wrap(tokenizer)


def accepts(tokenizer: Tokenizer, params: StructuredOutputsParams, text: str) -> bool:
    """Whether the grammar allows each token of the text, and its end."""
    matcher = GrammarCompiler(tokenizer, VOCAB_SIZE, [END]).compile(params).make_matcher()
    for token in [*tokenizer.encode(text, False), END]:
        if not matcher.mask()[token // 32] >> (token % 32) & 1:
            return False
        matcher.advance(token)
    return True


def call_of(name: str, tokenizer: Tokenizer, function: str, arguments: str) -> str:
    text = CALLS[name][0](function, arguments)
    return text if tokenizer.convert_tokens_to_ids("[ARGS]") else text.replace("[ARGS]", "")


def test_calls_beside_json(syntax: Any) -> None:
    name, tokenizer = syntax
    params = calls_or_answer(
        CALL_FORMATS[name], FUNCTIONS, ANSWER, tokenizer.convert_tokens_to_ids, is_parallel=True
    )
    good, now = call_of(name, tokenizer, "weather", ROME), call_of(name, tokenizer, "now", "{}")
    for text in ('{"x": 1}', good, now, f"{good}\n{now}"):
        assert accepts(tokenizer, params, text), text
    bad = call_of(name, tokenizer, "weather", OSLO), call_of(name, tokenizer, "other", "{}")
    for text in ("hello", f"I look. {good}", '{"x": "a"}', *bad, f"{good} bye"):
        assert not accepts(tokenizer, params, text), text
    one = calls_or_answer(
        CALL_FORMATS[name], FUNCTIONS, ANSWER, tokenizer.convert_tokens_to_ids, is_parallel=False
    )
    assert accepts(tokenizer, one, good) and not accepts(tokenizer, one, f"{good}\n{now}")


def test_strict_calls_in_text(syntax: Any) -> None:
    name, tokenizer = syntax
    params = calls_in_text(CALL_FORMATS[name], FUNCTIONS, tokenizer.convert_tokens_to_ids)
    good, now = (
        call_of(name, tokenizer, "weather", ROME),
        call_of(name, tokenizer, "now", '{"any": [1]}'),  # not strict
    )
    for text in ("", "hello {", good, f"I look. {good}", f"{now}\n{good}"):
        assert accepts(tokenizer, params, text), text
    bad = call_of(name, tokenizer, "weather", OSLO), call_of(name, tokenizer, "other", "{}")
    for text in (*bad, f"{good} and {bad[0]}"):
        assert not accepts(tokenizer, params, text), text


def test_formats_without_json_have_no_grammar() -> None:
    described = {form.names[0] for form in CALL_FORMATS.values() if describes_calls(form)}
    assert {*CALLS} <= described
    assert not described & {"qwen3_coder", "pythonic", "gemma4", "glm45", "olmo3", "kimi_k2"}


# -- over HTTP

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}
]
SCHEMA = {**PERSON, "x-guidance": {"whitespace_flexible": False}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def world(model: Path) -> Iterator[World]:
    longer = {"max_position_embeddings": 1024}
    with (
        Engine(model, dtype="float32", max_model_len=512, hf_overrides=longer) as engine,
        serving(engine, tool_call_parser="hermes") as world,
    ):
        yield world


def test_an_answer_is_json_or_calls(world: World) -> None:
    kinds = set()
    for seed in range(12):
        body = {"tools": TOOLS, "response_format": FORMAT, "parallel_tool_calls": False}
        (choice,) = ask(world, **body, seed=seed, temperature=2.0, max_tokens=400)
        assert choice["finish_reason"] in ("stop", "tool_calls")
        message = choice["message"]
        calls = message.get("tool_calls", [])
        kinds.add(bool(calls))
        for call in calls:
            jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
        if not calls:
            jsonschema.validate(json.loads(message["content"]), PERSON)
    assert kinds == {True, False}


def test_a_syntax_without_a_grammar_is_refused_beside_json(world: World) -> None:
    functions = [{"type": "function", **TOOLS[0]["function"]}]
    text = {"format": {"type": "json_object"}}
    with serving(world.engine, tool_call_parser="qwen3_coder") as other:
        for form in (FORMAT, {"type": "json_object"}):
            error = refusal(other, tools=TOOLS, response_format=form)
            assert error["param"] == "response_format" and "no grammar beside" in error["message"]
        error = other.error("/v1/responses", input="a", tools=functions, text=text)
        assert error["param"] == "text" and "text.format" in error["message"]
        ask(other, tools=TOOLS, response_format={"type": "text"}, temperature=0, max_tokens=8)
