"""Grammars of calls in the model's own syntax: forced, beside JSON, and strict ones in text."""

import functools
import importlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tokenizers

from byte_tokenizer import END, FIRST_MARK, VOCAB_SIZE, byte_tokenizer
from call_writers import WRITERS, dumps
from parameter_schemas import random_parameters, random_value
from server_world import World, serving
from specdec_native import Engine, StructuredOutputsParams
from specdec_native.requests.grammar_compiler import GrammarCompiler
from specdec_native.text.tokenizer import Tokenizer
from specdec_serve.http.tools.call_formats import CALL_FORMATS, CallFormat
from specdec_serve.http.tools.call_grammar import CallGrammar
from specdec_serve.http.tools.events import AnswerParser, Arguments, CallBegins, CallFails, Content
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.schema_parts import CannotHoldError
from specdec_serve.http.tools.value_types import ParameterTypes
from specdec_serve.http.tools.xml_reader import XmlCalls
from structured_bodies import PERSON
from test_server_tools import ask, refusal
from tiny_text_model import add_byte_text

WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Bonn"]}},
}
FUNCTIONS = [Function("weather", WEATHER, is_strict=True), Function("now", None)]
ROME = ("weather", {"city": "Rome", "days": 2})
OSLO = ("weather", {"city": "Oslo"})
NOW = ("now", {"any": [1]})  # good where the function is not strict
ANSWER = StructuredOutputsParams(json={"type": "object", "properties": {"x": {"type": "integer"}}})


@functools.cache
def tokenizer_of(name: str, marks: str) -> Tokenizer:
    """A tokenizer of bytes, with a format's marks as text, tokens or special tokens."""
    importlib.import_module("llguidance")
    tags = CALL_FORMATS[name].tags
    return byte_tokenizer(
        special=tags if marks == "special" else (), plain=tags if marks == "plain" else ()
    )


@functools.cache
def compiler_of(name: str, marks: str) -> GrammarCompiler:
    return GrammarCompiler(tokenizer_of(name, marks), VOCAB_SIZE, [END])


def grammar_of(
    name: str, marks: str, functions: Sequence[Function], **options: bool
) -> CallGrammar:
    token_id = tokenizer_of(name, marks).convert_tokens_to_ids
    return CallGrammar(CALL_FORMATS[name], functions, token_id, **options)


def accepts(name: str, marks: str, params: StructuredOutputsParams, text: str) -> bool:
    """Whether the grammar allows each token of the text, and its end."""
    matcher = compiler_of(name, marks).compile(params).make_matcher()
    for token in [*tokenizer_of(name, marks).encode(text, False), END]:
        if not matcher.mask()[token // 32] >> (token % 32) & 1:
            return False
        matcher.advance(token)
    return True


def written(name: str, marks: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """Calls as the family's template writes them, or as its models do where that differs."""
    text = WRITERS[name](calls).strip()
    as_list = dumps([{"name": n, "arguments": a} for n, a in calls])
    form = CALL_FORMATS[name]
    if name == "mistral" and marks == "none":  # a tokenizer of the time before [ARGS]
        return f"[TOOL_CALLS]{as_list}"
    if name == "pythonic":
        return text.removeprefix("<|python_start|>").removesuffix("<|python_end|>")
    if name in ("granite", "jamba", "nemotron_json", "phi4_mini_json", "xlam"):
        return as_list if form.is_bare else as_list.join(form.frame.marks[0])
    if name == "seed_oss":  # values stand on the lines of their tags
        text = re.sub(r"(<parameter=[^>]*>)\n", r"\1", text)
        return text.replace("\n</parameter>", "</parameter>")
    if name in ("llama3_json", "internlm"):
        return text.replace('"arguments"', '"parameters"').rstrip("; ")
    return text


@pytest.fixture(
    params=[(name, marks) for name in WRITERS for marks in ("none", "plain", "special")]
)
def syntax(request: pytest.FixtureRequest) -> tuple[str, str]:
    name, marks = request.param
    return name, marks


def test_forced_calls_are_calls_alone(syntax: tuple[str, str]) -> None:
    forced = grammar_of(*syntax, FUNCTIONS, is_forced=True).calls_alone()
    one = grammar_of(*syntax, FUNCTIONS, is_forced=True, is_parallel=False).calls_alone()
    rome, two = written(*syntax, ROME), written(*syntax, ROME, ("now", {}))
    assert accepts(*syntax, forced, rome) and accepts(*syntax, one, rome)
    assert accepts(*syntax, forced, two) and not accepts(*syntax, one, two)
    for bad in ("", "a", f"I look. {rome}", f"{rome} bye", written(*syntax, OSLO)):
        assert not accepts(*syntax, forced, bad), bad
    assert not accepts(*syntax, forced, written(*syntax, NOW))  # strict or not


def test_calls_beside_json(syntax: tuple[str, str]) -> None:
    """They have marks, which tell them from JSON."""
    form = CALL_FORMATS[syntax[0]]
    params = grammar_of(*syntax, FUNCTIONS).calls_or_answer(ANSWER)
    rome, now, oslo = (
        written(*syntax, call).join(form.frame.marks[0] if form.is_bare else ("", ""))
        for call in (ROME, NOW, OSLO)
    )
    for text in ('{"x": 1}', rome, now):
        assert accepts(*syntax, params, text), text
    for text in ("hello", f"I look. {rome}", '{"x": "a"}', oslo, f"{rome} bye"):
        assert not accepts(*syntax, params, text), text


def test_strict_calls_in_text(syntax: tuple[str, str]) -> None:
    params = grammar_of(*syntax, FUNCTIONS).calls_in_text()
    rome, now, oslo = (written(*syntax, call) for call in (ROME, NOW, OSLO))
    for text in ("", "hello {", "a [1] < b", rome, now, f"{rome} bye"):
        assert accepts(*syntax, params, text), text
    assert not accepts(*syntax, params, oslo)
    assert not accepts(*syntax, params, written(*syntax, ("other", {})))
    if not CALL_FORMATS[syntax[0]].frame.bare_at_start:  # no call there, so any text
        for text in (f"I look. {rome}", f"{now}\n{rome}"):
            assert accepts(*syntax, params, text), text
        assert not accepts(*syntax, params, f"{rome} and {oslo}")
        assert not accepts(*syntax, params, f"I look. {oslo}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # Other beginnings that the readers take for a call.
        ("qwen3_coder", "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"),
        ("granite", '<tool_call>[{"name": "weather", "arguments": {}}]'),
        ("llama3_json", '<|python_tag|>{"name": "weather", "parameters": {}}'),
        ("llama3_json", 'So {"name": "weather", "parameters": {}}'),
        ("llama3_json", '{"type": "function", "name": "weather", "parameters": {}}'),
        ("pythonic", " [ weather (city='Oslo')]"),
        ("pythonic", "So <|python_start|>[weather()]"),
        ("xlam", 'So ```json\n[{"name": "weather", "arguments": {}}]```'),
        ("phi4_mini_json", 'functools[{"name": "weather", "arguments": {}}]'),
        ("gigachat3", 'function call<|role_sep|>\n{"name": "weather", "arguments": {}}'),
    ],
)
def test_no_other_beginning_evades_a_schema(name: str, text: str) -> None:
    parser = CALL_FORMATS[name].parser(FUNCTIONS)
    assert calls_of(parser, text), "the reader takes it for a call"
    for marks in ("none", "plain", "special"):
        assert not accepts(name, marks, grammar_of(name, marks, FUNCTIONS).calls_in_text(), text)


def calls_of(parser: AnswerParser, text: str) -> list[tuple[str, str]]:
    """Names and arguments of the calls in a text, all of which are well-formed."""
    calls: list[tuple[str, str]] = []
    for event in parser.feed(text) + parser.finish():
        match event:
            case CallBegins():
                calls.append((event.name, ""))
            case Arguments():
                calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
            case CallFails():
                raise AssertionError(f"a call fails: {text!r}")
    return calls


# -- random schemas

NUM_SCHEMAS = 6  # for each format and kind of marks


def held_or_none(
    syntax: tuple[str, str], functions: Sequence[Function], *, is_forced: bool = False
) -> CallGrammar | None:
    """None where the syntax cannot hold one of the schemas."""
    try:
        return grammar_of(*syntax, functions, is_forced=is_forced)
    except CannotHoldError:
        return None


def test_whatever_a_random_grammar_allows_is_valid(syntax: tuple[str, str]) -> None:
    """A walk over the tokens that may come next, which prefers those that end something."""
    name, marks = syntax
    tokenizer, num_calls, num_held = tokenizer_of(*syntax), 0, 0
    closing = {*tokenizer.encode("\"',)]}>\n", False), *range(FIRST_MARK, VOCAB_SIZE)}
    for seed in range(NUM_SCHEMAS):
        noise = random.Random(f"{name}{marks}{seed}")
        functions = [Function(f, random_parameters(noise), is_strict=True) for f in ("f", "fg")]
        kind = ("calls_alone", "calls_in_text", "calls_or_answer")[seed % 3]
        grammar = held_or_none(syntax, functions)
        if grammar is None:
            continue
        num_held += 1
        params = getattr(grammar, kind)(*([ANSWER] if kind == "calls_or_answer" else []))
        text = walk(noise, compiler_of(*syntax).compile(params).make_matcher(), tokenizer, closing)
        if text is None:
            continue  # it was cut
        calls = calls_of(CALL_FORMATS[name].parser(functions), text)
        assert calls or kind != "calls_alone", text
        schemas = {function.name: function.parameters or {} for function in functions}
        for function, arguments in calls:
            jsonschema.validate(json.loads(arguments), schemas[function])
        num_calls += len(calls)
    assert num_held > NUM_SCHEMAS // 2 and num_calls


def walk(
    noise: random.Random, matcher: Any, tokenizer: Tokenizer, closing: set[int], limit: int = 500
) -> str | None:
    ids: list[int] = []
    while len(ids) < limit:
        mask = matcher.mask()
        allowed = [i for i in range(VOCAB_SIZE) if mask[i // 32] >> (i % 32) & 1]
        if END in allowed and (len(allowed) == 1 or noise.random() < 0.5):
            return tokenizer.decode(ids, skip_special_tokens=False)
        good = [i for i in allowed if i in closing]
        hurry = 0.35 if len(ids) < limit // 3 else 0.8
        token = noise.choice(good if good and noise.random() < hurry else allowed)
        if token != END:
            ids.append(token)
            matcher.advance(token)
    return None


def test_random_calls_are_allowed_exactly_if_they_are_valid(syntax: tuple[str, str]) -> None:
    name, marks = syntax
    num_good = num_bad = 0
    for seed in range(NUM_SCHEMAS):
        noise = random.Random(f"{name}{marks}{seed}")
        schema = random_parameters(noise)
        grammar = held_or_none(syntax, [Function("f", schema)], is_forced=True)
        if grammar is None:
            continue
        params = grammar.calls_alone()
        form, function = CALL_FORMATS[name], Function("f", schema)
        types = ParameterTypes([function])
        for _ in range(3):
            arguments = random_value(noise, schema)
            text = written(*syntax, ("f", arguments))
            # XML has text in quotes where it may also be of another type.
            is_plain = not isinstance(form.calls, XmlCalls) or all(
                types.of("f", key) <= {"string", "null"} and types.of("f", key)
                for key, value in arguments.items()
                if isinstance(value, str)
            )
            if is_plain and read_as(form, function, text) == arguments:
                assert accepts(*syntax, params, text), (text, schema)
                num_good += 1
            others = [
                arguments | {key: noise.choice([[{}], -0.125, "no such text"])}
                for key in [*arguments, "further"]
            ]
            others += [
                {k: v for k, v in arguments.items() if k != key} for key in schema["required"]
            ]
            for wrong in others:
                text = written(*syntax, ("f", wrong))
                if not is_valid(read_as(form, function, text), schema):
                    assert not accepts(*syntax, params, text), (text, schema)
                    num_bad += 1
    assert num_good and num_bad


def read_as(form: CallFormat, function: Function, text: str) -> Any:
    """The arguments of the only call in a text; None where they are none."""
    try:
        ((_, arguments),) = calls_of(form.parser([function]), text)
        return json.loads(arguments)
    except (AssertionError, ValueError):
        return None


def is_valid(value: Any, schema: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_the_text_null_is_no_string_where_null_is_a_type(name: str = "glm45") -> None:
    """Nor is it null where an enum leaves that out."""
    kinds = {"type": ["string", "null"]}
    for schema, good in (({}, True), ({"enum": ["null", "a"]}, False), ({"enum": [None]}, True)):
        parameters = {"type": "object", "properties": {"x": {**kinds, **schema}}}
        grammar = grammar_of(name, "plain", [Function("f", parameters)], is_forced=True)
        text = written(name, "plain", ("f", {"x": None}))
        assert accepts(name, "plain", grammar.calls_alone(), text) == good


# -- what a syntax cannot hold


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("qwen3_coder", {"a<b": {}}, "parameters.a<b: a tag cannot hold this name"),
        ("qwen3_coder", {"a": {"type": "string", "format": "regex"}}, "parameters.a: the format"),
        ("qwen3_coder", {"a": {"type": "string", "pattern": "^a|b$"}}, "put brackets around"),
        ("qwen3_coder", {"a": {"not": {}}}, "parameters.a: the keyword 'not'"),
        ("pythonic", {"a b": {}}, "parameters.a b: an argument cannot have this name"),
        ("pythonic", {"a": {"patternProperties": {}}}, "parameters.a: the keyword"),
        ("pythonic", {"a": {"items": {"uniqueItems": True}}}, "parameters.a[]: the keyword"),
        ("pythonic", {"a": {"$ref": "#/$defs/none"}}, "leads nowhere"),
        ("pythonic", {"a": {"$ref": "#/properties/a"}}, "references lead to themselves"),
        ("pythonic", {"a": {"items": {}, "minItems": True}}, "must be whole numbers"),
        ("pythonic", {"a": {"items": {}, "minItems": 2, "maxItems": 1}}, "so long and so short"),
        ("pythonic", {"a": {"type": "decimal"}}, "the type 'decimal' is not known"),
        ("pythonic", {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "write anyOf"),
        ("pythonic", {"a": {"anyOf": [{}], "minimum": 1}}, "minimum beside anyOf"),
        ("gemma4", {"a": {"const": '<|"|>'}}, "ends a string, so none can hold it"),
        ("gemma4", {"a": {"contains": {}}}, "parameters.a: the keyword 'contains'"),
    ],
)
def test_what_a_syntax_cannot_hold_is_named(name: str, schema: Any, message: str) -> None:
    function = Function("f", {"type": "object", "properties": schema}, is_strict=True)
    with pytest.raises(CannotHoldError) as caught:
        grammar_of(name, "plain", [function])
    assert message in str(caught.value) and str(caught.value).startswith("function 'f': ")
    grammar_of(name, "plain", [Function("f", function.parameters)])  # nothing to hold


def test_names_that_a_syntax_cannot_hold(name: str = "qwen3_coder") -> None:
    for form in ("pythonic", "gemma4", name, "kimi_k2"):
        with pytest.raises(CannotHoldError, match="its name"):
            grammar_of(form, "plain", [Function("a b", None)])
    grammar_of("hermes", "plain", [Function("a b", None)])


# -- over HTTP, with a model

SERVED = ("qwen3_coder", "glm45", "minimax_m2", "pythonic", "olmo3", "gemma4", "hermes", "jamba")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMA = {**PERSON, "x-guidance": {"whitespace_flexible": False}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}
SCHEMAS = {"weather": WEATHER, "now": {}}


@pytest.fixture(scope="module")
def engine(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """Marks of several formats are tokens, for drafts of which n-grams of calls are found."""
    importlib.import_module("llguidance")
    model = add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("calls") / "llama")
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    marks = [
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ]
    marks += ["<function_calls>", "</function_calls>", "<tool_calls>", "</tool_calls>"]
    tokenizer.add_tokens(marks)
    tokenizer.add_special_tokens(["<|tool_call>", "<tool_call|>", '<|"|>'])
    tokenizer.save(str(model / "tokenizer.json"))
    longer = {"max_position_embeddings": 1024}
    drafts = {"method": "ngram", "num_speculative_tokens": 32, "prompt_lookup_min": 1}
    with Engine(
        model, dtype="float32", max_model_len=512, hf_overrides=longer, speculative_config=drafts
    ) as engine:
        yield engine


@pytest.fixture(scope="module", params=SERVED)
def world(request: pytest.FixtureRequest, engine: Engine) -> Iterator[World]:
    with serving(engine, tool_call_parser=request.param) as world:
        yield world


@pytest.mark.parametrize(
    ("choice", "is_json"),
    [("auto", False), ("auto", True), ("required", False), ("weather", False)],
)
def test_drafts_change_no_call_and_all_are_valid(world: World, choice: str, is_json: bool) -> None:
    """Whole, streamed, and with up to 0, 1, 8 and 32 drafts a step."""
    named = {"type": "function", "function": {"name": choice}}
    body: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": named if choice == "weather" else choice,
        "response_format": FORMAT if is_json else None,
        "parallel_tool_calls": choice == "auto",
        "max_tokens": 200,
        "temperature": 2.0,
        "logit_bias": {str(END): 5},
        "messages": [{"role": "user", "content": 'Rome Bonn 1 2 "city" "days"'}],
    }
    num_ended = 0
    for seed in range(2):
        answers = [
            ask(world, **body, seed=seed, num_speculative_tokens=drafts)[0]
            for drafts in (0, 1, 8, 32)
        ]
        calls = [
            [call["function"] for call in answer["message"].get("tool_calls", [])]
            for answer in answers
        ]
        assert calls == calls[:1] * 4
        assert len({answer["message"]["content"] for answer in answers}) == 1
        if answers[0]["finish_reason"] == "length":
            continue
        num_ended += 1
        for call in calls[0]:
            jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
        assert calls[0] or choice == "auto"
        if is_json and not calls[0]:
            jsonschema.validate(json.loads(answers[0]["message"]["content"]), PERSON)
    assert num_ended


def test_a_strict_function_that_cannot_be_held_is_refused(engine: Engine) -> None:
    properties = {"a": {"patternProperties": {"^a": {"type": "integer"}}}}
    parameters = {"type": "object", "properties": properties}
    function = {"name": "f", "parameters": parameters, "strict": True}
    tools = [{"type": "function", "function": function}]
    with serving(engine, tool_call_parser="qwen3_coder") as world:
        error = refusal(world, tools=tools)
        assert error["param"] == "tools" and "parameters.a: the keyword" in error["message"]
        # What is forced is a list in JSON instead, which holds any schema.
        for choice in ask(world, tools=tools, tool_choice="required", max_tokens=60, seed=1):
            assert choice["message"]["content"] == ""


def test_content_of_a_format_is_no_part_of_a_call() -> None:
    parser = CALL_FORMATS["llama3_json"].parser(FUNCTIONS)
    assert parser.feed('{"x": 1}') + parser.finish() == [Content('{"x": 1}')]
