"""Grammars of harmony's calls: forced, beside JSON, and strict ones."""

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import scripted_model
from byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer
from server_world import World, serving
from specdec_native import Engine, StructuredOutputsParams
from specdec_native.requests.grammar_compiler import GrammarCompiler
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.harmony import TAGS
from specdec_serve.http.tools.harmony_grammar import HarmonyGrammar
from specdec_serve.http.tools.schema_parts import CannotHoldError
from structured_bodies import PERSON
from test_server_harmony import ask
from thinking import add_thinking_text, mark_ids

COUNT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "count", "parameters": COUNT, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMA = {**PERSON, "x-guidance": {"whitespace_flexible": False}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}

THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
SAID = "<|channel|>commentary<|message|>So.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.count <|constrain|>json<|message|>{"x": 1}'
OTHER_CALL = ' to=functions.count<|channel|>commentary json<|message|>{"x": 1}'
PLAIN_CALL = '<|channel|>commentary to=functions.count<|message|>{"x": 1}'
BAD_CALL = CALL.replace("1", '"a"')
FINAL = "<|channel|>final<|message|>"


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    importlib.import_module("llguidance")
    target = tmp_path_factory.mktemp("harmony") / "llama"
    return add_thinking_text(checkpoint("llama"), target, "openai_gptoss")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    drafts = {"method": "ngram", "num_speculative_tokens": 32, "prompt_lookup_min": 1}
    longer = {"max_position_embeddings": 1024}
    with Engine(
        model, dtype="float32", max_model_len=512, hf_overrides=longer, speculative_config=drafts
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    with serving(engine) as world:
        yield world


# -- which messages the grammars allow


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            "alone",
            [CALL, OTHER_CALL, PLAIN_CALL, THOUGHT + CALL, THOUGHT * 2 + OTHER_CALL],
            ["", "a", THOUGHT, f"{FINAL}a", SAID + CALL, BAD_CALL, f"{CALL} a"],
        ),
        (
            "text",
            ["", "rest", CALL, THOUGHT + CALL, SAID + OTHER_CALL, f"{THOUGHT}{SAID}{FINAL}a"],
            [BAD_CALL, THOUGHT + BAD_CALL, f"{FINAL}a<|end|><|start|>assistant{CALL}"],
        ),
        (
            "json",
            [
                CALL,
                THOUGHT + CALL,
                f"{FINAL}5",
                f"{THOUGHT}<|channel|>final <|constrain|>json<|message|>5",
            ],
            ["5", f"{FINAL}a", BAD_CALL, SAID + CALL],
        ),
    ],
)
def test_messages_of_a_grammar(kind: str, good: list[str], bad: list[str]) -> None:
    importlib.import_module("llguidance")
    tokenizer = byte_tokenizer(special=TAGS)
    compiler = GrammarCompiler(tokenizer, VOCAB_SIZE, [END])
    functions = [Function("count", COUNT, is_strict=True), Function("now", None)]
    grammar = HarmonyGrammar(functions, tokenizer.convert_tokens_to_ids, is_forced=kind == "alone")
    match kind:
        case "alone":
            params = grammar.calls_alone()
        case "text":
            params = grammar.calls_in_text()
        case _:
            params = grammar.calls_or_answer(StructuredOutputsParams(json={"type": "integer"}))

    def accepts(text: str) -> bool:
        matcher = compiler.compile(params).make_matcher()
        for token in [*tokenizer.encode(text, False), END]:
            if not matcher.mask()[token // 32] >> (token % 32) & 1:
                return False
            matcher.advance(token)
        return True

    for text in good:
        assert accepts(text), text
    for text in bad:
        assert not accepts(text), text


def test_what_headers_cannot_hold() -> None:
    with pytest.raises(CannotHoldError, match="its name"):
        HarmonyGrammar([Function("a b", None)], lambda text: 7)
    with pytest.raises(CannotHoldError, match="is not a token"):
        HarmonyGrammar([Function("f", None)], lambda text: None)


# -- over HTTP


@pytest.mark.parametrize("choice", ["required", "count", "auto"])
@pytest.mark.parametrize("is_json", [False, True])
def test_calls_obey_their_schemas(world: World, choice: str, is_json: bool) -> None:
    """Whatever the model writes, whole, streamed, and with drafts of any length."""
    named = {"type": "function", "function": {"name": choice}}
    body: dict[str, Any] = {
        "tools": TOOLS,
        "tool_choice": named if choice == "count" else choice,
        "response_format": FORMAT if is_json else None,
        "temperature": 1.5,
        "max_tokens": 200,
        "logit_bias": {str(END): 6, str(mark_ids("openai_gptoss")["<|end|>"]): 6},
    }
    num_ended = 0
    for seed in range(4):
        answers = [ask(world, **body, seed=seed, num_speculative_tokens=k) for k in (0, 1, 8, 32)]
        assert all(answer == answers[0] for answer in answers)
        _, content, calls, reason = answers[0]
        if reason == "length":
            continue
        num_ended += 1
        assert (reason == "stop") == (choice == "count" or not calls)
        assert calls or choice == "auto"
        assert not content or choice == "auto"
        for call in calls:
            schema = COUNT if call["name"] == "count" else {"type": "object"}
            jsonschema.validate(json.loads(call["arguments"]), schema)
        if is_json and not calls:
            jsonschema.validate(json.loads(content or ""), PERSON)
    assert num_ended


def test_thoughts_come_before_a_forced_call(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script has a token of each character, and the grammar that of each piece."""
    ids = mark_ids("openai_gptoss")
    says = scripted_model.says(
        monkeypatch, ids, encode=lambda text: world.engine.tokenizer.encode(text, False)
    )
    says(THOUGHT + CALL)
    call = {"name": "count", "arguments": '{"x": 1}'}
    for choice, reason in (("required", "tool_calls"), (TOOLS[0], "stop"), ("auto", "tool_calls")):
        reasoning, content, calls, finish = ask(world, tools=TOOLS, tool_choice=choice)
        assert (reasoning, content or None, calls, finish) == ("Hm.", None, [call], reason)
