"""Structured output: every complete answer obeys its grammar, and bad grammars are refused."""

import importlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_text_model
from grammar_requests import END, PROMPT, SCHEMA, VOCAB_SIZE, allowed, id_of, make_engine, params
from random_schemas import random_schema
from specdec_native import (
    Engine,
    GuidedDecodingParams,
    RequestError,
    SamplingParams,
    StructuredOutputsParams,
    _core,
)
from specdec_native.requests.grammar_compiler import GrammarCompiler
from specdec_native.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model.add_byte_text(
        checkpoint("llama"), tmp_path_factory.mktemp("structured") / "llama"
    )


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return make_engine(model)


@pytest.fixture(scope="module")
def compiler(model: Path) -> GrammarCompiler:
    return GrammarCompiler(Tokenizer.from_directory(model), VOCAB_SIZE, [END])


def text_of(engine: Engine, sampling: SamplingParams) -> str:
    completion = tiny_text_model.only(engine.generate(PROMPT, sampling))
    assert completion.finish_reason == "stop", completion.text
    return completion.text


# ---- what each kind means


def test_choices_may_be_many(engine: Engine) -> None:
    many = [f"choice {i}/(a|b)*.[x]" for i in range(5000)]
    assert text_of(engine, params(choice=many)) in many


def test_too_many_optional_properties_are_refused_in_plain_words(engine: Engine) -> None:
    properties = {f"p{i}": {"type": "integer"} for i in range(4000)}
    with pytest.raises(RequestError, match="structured_outputs.*optional properties"):
        engine.generate(PROMPT, params(json={"type": "object", "properties": properties}))


def test_texts_of_special_tokens_are_texts(engine: Engine) -> None:
    for text in ("a<pad>b", "no</s>more", "<s>"):
        assert text_of(engine, params(choice=[text])) == text


def test_choices_with_bad_words_are_left_out(engine: Engine) -> None:
    choices = ["true name", "in", "falsing"]
    found = {
        text_of(engine, params(seed, choice=choices, bad_words=["fals", " true"]))
        for seed in range(4)
    }
    assert found == {"in"}
    with pytest.raises(ValueError, match="bad_words: each of the texts"):
        engine.generate(PROMPT, params(choice=choices, bad_words=["a", "n"]))


@pytest.mark.parametrize("temperature", [0, 1])
def test_choice(engine: Engine, temperature: float) -> None:
    choices = ['say "no"', "perhaps", "yes\n"]
    found = {
        text_of(engine, params(seed, choice=choices, temperature=temperature)) for seed in range(12)
    }
    assert found <= set(choices)
    assert temperature == 0 or len(found) > 1


@pytest.mark.parametrize("regex", ["[a-c]{2,4}-[0-9]{3}", "(yes|no), (true|false)!", "x"])
def test_regex(engine: Engine, regex: str) -> None:
    for seed in range(6):
        assert re.fullmatch(regex, text_of(engine, params(seed, regex=regex)))


@pytest.mark.parametrize(
    "grammar",
    ['start: "in" NUMBER ("," NUMBER)?\nNUMBER: /[0-9]{1,2}/', 'root ::= "in" [0-9] [0-9]?'],
    ids=["lark", "gbnf"],
)
def test_grammar(engine: Engine, grammar: str) -> None:
    for seed in range(4):
        assert re.fullmatch(r"in\d{1,2}(,\d{1,2})?", text_of(engine, params(seed, grammar=grammar)))


def test_json_object(engine: Engine) -> None:
    sampling = params(3, json_object=True, logit_bias={tiny_text_model.FIRST_CHAR + 93: 8.0})
    assert isinstance(json.loads(text_of(engine, sampling)), dict)


def test_flags_of_an_engine_hold_for_all_its_requests(model: Path) -> None:
    flags = {"disable_any_whitespace": True, "disable_additional_properties": True}
    schema = {"type": "object", "properties": {"name": {"enum": ["main"]}}, "required": ["name"]}
    with make_engine(model, structured_outputs_config=flags) as engine:
        for seed in range(4):
            assert text_of(engine, params(seed, json=schema)) == '{"name":"main"}'


def test_whitespace_is_free_unless_it_is_disabled(compiler: GrammarCompiler) -> None:
    free = compiler.compile(StructuredOutputsParams(json=SCHEMA)).make_matcher()
    brace = id_of("{")
    space = id_of(" ")
    free.advance(brace)
    assert space in allowed(free.mask())
    by_schema = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
    for compact in (
        StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
        StructuredOutputsParams(json=by_schema),
    ):
        tight = compiler.compile(compact).make_matcher()
        tight.advance(brace)
        assert space not in allowed(tight.mask())
        with pytest.raises(RuntimeError, match="grammar"):
            tight.advance(space)


def test_other_properties_may_be_closed(engine: Engine) -> None:
    open_schema = {"type": "object", "properties": {"in": {"const": 1}}, "required": ["in"]}
    closed = params(
        1, json=open_schema, disable_additional_properties=True, disable_any_whitespace=True
    )
    assert text_of(engine, closed) == '{"in":1}'


def test_a_pydantic_model_is_a_schema(engine: Engine) -> None:
    class Model:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {"const": "main"}

    assert json.loads(text_of(engine, params(json=Model))) == "main"


def test_structural_tags_bind_what_follows_a_trigger(compiler: GrammarCompiler) -> None:
    tag = {
        "structures": [{"begin": "<f>", "schema": {"const": "main"}, "end": "</f>"}],
        "triggers": ["<f"],
    }
    grammar = compiler.compile(StructuredOutputsParams(structural_tag=json.dumps(tag)))
    matcher = grammar.make_matcher()
    for char in "free <f":
        assert len(allowed(matcher.mask())) > 50 or char in "<f"
        matcher.advance(id_of(char))
    assert allowed(matcher.mask()) == {id_of(">")}


def test_the_older_name(engine: Engine) -> None:
    older = SamplingParams(
        guided_decoding=GuidedDecodingParams(choice=["yes"], backend="xgrammar"), max_tokens=9
    )
    assert older.structured_outputs == StructuredOutputsParams(choice=["yes"])
    assert text_of(engine, older) == "yes"
    assert text_of(engine, SamplingParams(structured_outputs={"choice": ["no"]})) == "no"


# ---- the matcher


@pytest.mark.parametrize("seed", range(12))
def test_masks_depend_on_the_text_alone(compiler: GrammarCompiler, seed: int) -> None:
    """However a matcher got there: as a copy, beside copies, with masks asked for or not."""
    draw = random.Random(seed)
    structured = StructuredOutputsParams(
        json=random_schema(seed), disable_any_whitespace=bool(seed % 2)
    )
    grammar = compiler.compile(structured)
    walker = grammar.make_matcher()
    text: list[int] = []
    while len(text) < 40 and (not text or text[-1] != END):
        for _ in range(draw.randint(0, 3)):
            drafted = walker.clone()
            for _ in range(draw.randint(1, 5)):
                drafted.advance(draw.choice(sorted(allowed(drafted.mask()))))
                if draw.random() < 0.3:
                    drafted.forced_tokens()
                if draw.random() < 0.3:
                    drafted = drafted.clone()
        fresh = grammar.make_matcher()
        for token in text:
            fresh.advance(token)
        choices = allowed(fresh.mask())
        assert allowed(walker.mask()) == choices
        assert walker.forced_tokens() == fresh.forced_tokens()
        text.append(draw.choice(sorted(choices)))
        walker.advance(text[-1])


def test_a_tokenizer_that_fails_once_fails_one_matcher(model: Path) -> None:
    tokenizer = Tokenizer.from_directory(model)
    fails = False

    def tokenize(text: str) -> list[int]:
        if fails:
            raise RuntimeError("out of order")
        return tokenizer.encode(text, add_special_tokens=False)

    library = str(importlib.import_module("llguidance._lib").__file__)
    native = _core.LlGuidance(
        library=library,
        vocab_size=VOCAB_SIZE,
        tokenizer_json=tokenizer.to_json() or "",
        end_token_ids=[END],
        tokenize=tokenize,
    )
    grammar = native.compile("regex", "[ab](main|name)? alpha")
    good, bad = grammar.make_matcher(), grammar.make_matcher()
    for char in "a ":
        good.advance(id_of(char))
        bad.advance(id_of(char))
    fails = True
    with pytest.raises(RuntimeError, match="out of order"):
        bad.mask()
    fails = False
    assert allowed(good.mask()) and good.forced_tokens()
    assert native.compile("regex", "alpha").make_matcher().forced_tokens()
    for later in (bad, bad.clone()):
        with pytest.raises(RuntimeError, match="out of order"):
            later.mask()


def test_a_daemon_thread_that_loads_ends_with_the_interpreter(model: Path) -> None:
    script = f"""
import importlib, threading, time
from pathlib import Path
from specdec_native import _core
from specdec_native.text.tokenizer import Tokenizer
tokenizer = Tokenizer.from_directory(Path({str(model)!r}))
started = threading.Event()
def run():
    while True:
        _core.LlGuidance(
            library=importlib.import_module("llguidance._lib").__file__,
            vocab_size={VOCAB_SIZE},
            tokenizer_json=tokenizer.to_json(),
            end_token_ids=[{END}],
            tokenize=lambda text: tokenizer.encode(text, add_special_tokens=False),
        )
        started.set()
threading.Thread(target=run, daemon=True).start()
started.wait()
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_forced_tokens_are_the_tokenizers_own(compiler: GrammarCompiler, model: Path) -> None:
    structured = StructuredOutputsParams(
        json={"const": {"name": True}}, disable_any_whitespace=True
    )
    forced = compiler.compile(structured).make_matcher().forced_tokens()
    whole = Tokenizer.from_directory(model).encode('{"name":true}', add_special_tokens=False)
    assert len(forced) >= 3 and whole[: len(forced)] == forced


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": '{"type": '}, "structured_outputs.json"),
        ({"json": {"type": "nothing"}}, "structured_outputs"),
        ({"json": {"$ref": "http://elsewhere/x"}}, "structured_outputs"),
        ({"regex": "a(b"}, "structured_outputs"),
        ({"regex": r"(?=a)b"}, "structured_outputs"),
        ({"grammar": "start: undefined_rule"}, "structured_outputs"),
        ({"grammar": "root ::= ("}, "structured_outputs"),
        ({"structural_tag": "{}"}, "structured_outputs.structural_tag"),
        ({"structural_tag": "["}, "structured_outputs.structural_tag"),
        ({"regex": "a" * (1 << 21)}, "1048576"),
        (
            {
                "json": {
                    "allOf": [
                        {"patternProperties": {f"^{i}a{j}$": {} for j in range(99)}}
                        for i in range(3)
                    ]
                }
            },
            "structured_outputs.json: the schema has 297 patternProperties",
        ),
        ({"json": {"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}}, "write anyOf"),
        ({"json": {"type": "string", "minLength": 9, "maxLength": 3}}, "structured_outputs"),
    ],
)
def test_bad_grammars_are_refused_before_anything_runs(
    engine: Engine, fields: dict[str, Any], message: str
) -> None:
    before = engine.stats().num_steps
    with pytest.raises(ValueError, match=re.escape(message)):
        engine.generate(PROMPT, params(**fields))
    assert engine.stats().num_steps == before
    assert text_of(engine, params(choice=["yes"])) == "yes"


def test_a_grammar_that_becomes_too_costly_ends_its_request_alone(engine: Engine) -> None:
    huge = params(regex="(((a{900}){900}){900}){900}")
    with pytest.raises(RequestError) as failed:
        engine.generate([PROMPT, PROMPT], [huge, params(choice=["yes"])])
    assert list(failed.value.errors) == [0] and "structured_outputs" in str(failed.value)
    assert failed.value.outputs[1].outputs[0].text == "yes"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one"),
        ({"regex": "a", "json": "{}"}, "regex and json|json and regex"),
        ({"choice": []}, "choice"),
        ({"choice": "abc"}, "choice"),
        ({"choice": ["a", 1]}, "choice"),
        ({"regex": 3}, "regex"),
        ({"regex": "a", "disable_any_whitespace": "x"}, "disable_any_whitespace"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StructuredOutputsParams(**fields)


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="guided_decoding"):
        SamplingParams(structured_outputs={"regex": "a"}, guided_decoding={"regex": "b"})


def test_without_llguidance_the_error_says_what_to_install(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"specdec-native\[structured\]"):
        engine.generate(PROMPT, params(choice=["yes"]))


def test_a_tokenizer_that_llguidance_cannot_use_is_named(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tiny_text_model.add_text(checkpoint("llama"), tmp_path / "llama")
    with make_engine(model) as engine, pytest.raises(ValueError, match="structured_outputs"):
        engine.generate(PROMPT, params(choice=["yes"]))


def test_a_text_that_no_token_spells_ends_its_request(engine: Engine) -> None:
    with pytest.raises(RequestError, match="structured_outputs") as failed:
        engine.generate([PROMPT, PROMPT], [params(choice=["\u00e9"]), params(choice=["yes"])])
    assert isinstance(failed.value.errors[0], ValueError)
    assert failed.value.outputs[1].outputs[0].text == "yes"
