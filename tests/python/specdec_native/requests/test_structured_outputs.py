"""Structured output: every complete answer obeys its grammar, and drafts never change one."""

import importlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import tiny_text_model
from random_schemas import random_schema
from specdec_native import (
    Engine,
    GuidedDecodingParams,
    RequestError,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
    _core,
)
from specdec_native.requests.grammar_compiler import GrammarCompiler
from specdec_native.text.tokenizer import Tokenizer
from test_sampling_distribution import chi_square_z, softmax
from test_speculation_law import speculative

END = tiny_text_model.END
VOCAB_SIZE = 160
PROMPT = "say it as JSON:"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["main", "alpha"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model.add_byte_text(
        checkpoint("llama"), tmp_path_factory.mktemp("structured") / "llama"
    )


def make_engine(model: Path, **options: Any) -> Engine:
    defaults: dict[str, Any] = {"dtype": "float32", "max_model_len": 192, "max_num_seqs": 64}
    return Engine(model, **(defaults | options))


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return make_engine(model)


@pytest.fixture(scope="module")
def compiler(model: Path) -> GrammarCompiler:
    return GrammarCompiler(Tokenizer.from_directory(model), VOCAB_SIZE, [END])


def params(seed: int = 0, **options: Any) -> SamplingParams:
    fields: dict[str, Any] = {"max_tokens": 120, "seed": seed, "temperature": 1.0}
    structured = {k: options.pop(k) for k in list(options) if k in GRAMMAR_FIELDS}
    if structured:
        fields["structured_outputs"] = StructuredOutputsParams(**structured)
    return SamplingParams(**(fields | options))


GRAMMAR_FIELDS = {
    *("json", "regex", "choice", "grammar", "json_object", "structural_tag"),
    *("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"),
}


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


# ---- 200 schemas


def answers(outputs: list[RequestOutput]) -> list[Any]:
    found = []
    for output in outputs:
        completion = output.outputs[0]
        assert completion.logprobs is not None
        logprobs = [{t: e.logprob for t, e in p.items()} for p in completion.logprobs]
        found.append((list(completion.token_ids), logprobs, completion.finish_reason))
    return found


@pytest.mark.parametrize("temperature", [0, 1], ids=["greedy", "sampled"])
def test_answers_validate_and_drafts_never_change_one(model: Path, temperature: float) -> None:
    schemas = [random_schema(seed) for seed in range(200)]
    sampling = [
        params(
            seed,
            json=schema,
            disable_any_whitespace=seed % 4 != 0,
            temperature=temperature,
            logprobs=1,
        )
        for seed, schema in enumerate(schemas)
    ]
    prompts = [f"{PROMPT} {seed}" for seed in range(200)]
    with make_engine(model) as plain:
        outputs = plain.generate(prompts, sampling)
    ended = 0
    for output, schema in zip(outputs, schemas, strict=True):
        completion = output.outputs[0]
        if completion.finish_reason == "stop":
            ended += 1
            jsonschema.validate(json.loads(completion.text), schema)
    assert ended >= 150
    config = speculative("ngram", model, 6, 1, "auto" if temperature else "fixed")
    with make_engine(model, speculative_config=config) as drafting:
        assert answers(drafting.generate(prompts, sampling)) == answers(outputs)
        (forced,) = [d for d in drafting.stats().drafters if d.name == "grammar"]
    # Lengths that adapt go by what rows cost here, which is much beside so small a model's steps.
    assert forced.num_accepted_tokens == forced.num_draft_tokens > (0 if temperature else 1000)


# ---- the law, with a grammar

METHODS = ["ngram", "suffix", "draft_model", "composite", "merged", "custom"]


@pytest.fixture(scope="module")
def law(model: Path) -> Callable[[dict[str, Any] | None], list[Any]]:
    sampling = [
        params(
            seed,
            json=SCHEMA if seed % 3 else None,
            **({} if seed % 3 else {"regex": "[a-z ]{20,30}[0-9]"}),
            temperature=[0, 1, 0.8][seed % 3],
            repetition_penalty=[1.0, 1.2][seed % 2],
            logprobs=2,
        )
        for seed in range(16)
    ]
    prompts = [f"{PROMPT} " + "true name " * (seed % 5) for seed in range(16)]

    def run(config: dict[str, Any] | None) -> list[Any]:
        with make_engine(model, speculative_config=config) as engine:
            return answers(engine.generate(prompts, sampling))

    return run


@pytest.fixture(scope="module")
def expected(law: Callable[[dict[str, Any] | None], list[Any]]) -> list[Any]:
    return law(None)


@pytest.mark.parametrize("policy", ["fixed", "auto"])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_no_method_changes_an_answer(
    law: Callable[[dict[str, Any] | None], list[Any]],
    expected: list[Any],
    checkpoint: Callable[[str], Path],
    method: str,
    width: int,
    policy: str,
) -> None:
    assert law(speculative(method, checkpoint("llama"), 5, width, policy)) == expected


def test_nor_does_a_device(model: Path) -> None:
    """The emulated device: its steps with masks, and those of the host's executor."""
    options = {"device": "emulated", "dtype": "bfloat16", "max_model_len": 64}
    sampling = [params(seed, json=SCHEMA, logprobs=1, max_tokens=16) for seed in range(3)]
    try:
        plain = make_engine(model, **options)
    except RuntimeError as error:
        pytest.skip(f"{error}")
    with plain:
        without = answers(plain.generate([PROMPT] * 3, sampling))
        assert plain.stats().num_device_steps > 0
    for method, width in (("draft_model", 1), ("ngram", 3)):
        config = speculative(method, model, 3, width)
        with make_engine(model, **options, speculative_config=config) as drafting:
            assert answers(drafting.generate([PROMPT] * 3, sampling)) == without
            assert (drafting.stats().num_device_steps > 0) == (method == "ngram")


# ---- distributions


def distribution_under(engine: Engine, allowed_ids: set[int]) -> Any:
    """The exact one of the first token: the unconstrained logits, renormalised."""
    free = params(temperature=0, max_tokens=1, logprobs=-1)
    (completion,) = engine.generate(PROMPT, free)[0].outputs
    assert completion.logprobs is not None
    logits = np.full(VOCAB_SIZE, -np.inf)
    for token, entry in completion.logprobs[0].items():
        if token in allowed_ids:
            logits[token] = entry.logprob
    return softmax(logits)


REGEX = "[a-f0-9,;]+x"
ALLOWED = "abcdef0123456789,;"


@pytest.mark.parametrize("verification", ["exact", "standard", "block"])
def test_draws_follow_the_renormalised_distribution(model: Path, verification: str) -> None:
    config = speculative("draft_model", model, 3, 1)
    if verification != "exact":
        config["rejection_sample_method"] = verification
    with make_engine(model, speculative_config=config, max_num_seqs=128, max_logprobs=-1) as engine:
        sampling = [params(seed, regex=REGEX, max_tokens=2) for seed in range(4000)]
        outputs = engine.generate([PROMPT] * 4000, sampling)
        counts = np.bincount([o.outputs[0].token_ids[0] for o in outputs], minlength=VOCAB_SIZE)
        right = {id_of(char) for char in ALLOWED}
        z = chi_square_z(counts.astype(float), distribution_under(engine, right))
        assert z < 4
        # A rule that takes the neighbours of the allowed tokens is seen.
        wrong = distribution_under(engine, {token for token in right if token % 5 != 0})
        with pytest.raises(AssertionError):
            assert chi_square_z(counts.astype(float), wrong) < 4


# ---- the matcher


def id_of(char: str) -> int:
    if char == "\n":
        return tiny_text_model.FIRST_CHAR + len(tiny_text_model.CHARS)
    return tiny_text_model.FIRST_CHAR + tiny_text_model.CHARS.index(char)


def allowed(mask: Any) -> set[int]:
    return {t for t in range(VOCAB_SIZE) if mask[t // 32] >> (t % 32) & 1}


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


def test_draft_trees(model: Path) -> None:
    config = speculative("ngram", model, 4, 1)
    with make_engine(model, speculative_config=config) as engine:
        sampling = params(
            1, json=SCHEMA, disable_any_whitespace=True, record_draft_trees=True, temperature=0
        )
        (completion,) = engine.generate(PROMPT, sampling)[0].outputs
    assert completion.draft_trees
    for tree in completion.draft_trees:
        kept = [token.token_id for token in tree.tokens if token.is_accepted]
        assert list(completion.token_ids[tree.num_tokens :][: len(kept)]) == kept
        assert {token.drafter for token in tree.tokens} <= {"grammar", "ngram"}
