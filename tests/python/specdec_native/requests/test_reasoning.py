"""Reasoning before answers: budgets are exact, and a grammar holds from the end of the reasoning.

Random families of marks, schemas, budgets and draft lengths. Answers are read by string search, as
their users would; drafts never change one.
"""

import dataclasses
import functools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from grammar_requests import answers, make_engine, params
from random_schemas import random_schema
from specdec_native import Engine, RequestOutput, SamplingParams
from specdec_native.requests import reasoning_grammar
from specdec_native.text.reasoning import REASONING_FORMATS, ReasoningStart, reasoning_format_of
from test_speculation_law import speculative
from thinking import MARKS, add_thinking_text, format_of, mark_ids

NUM_CASES = 60  # per family and draft length
DRAFTS = (0, 1, 8, 32)


@pytest.fixture(scope="module")
def model_of(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("thinking")
    return functools.cache(
        lambda family: add_thinking_text(checkpoint("llama"), folder / family, family)
    )


@dataclasses.dataclass
class Case:
    """One request, and what its answer has to be."""

    prompt: str
    params: SamplingParams
    schema: dict[str, Any] | None
    budget: int | None
    is_begun: bool
    is_over: bool


def case_of(family: str, seed: int) -> Case:
    form = format_of(family)
    draw = random.Random(f"{family} {seed}")
    ending = draw.choice(["none", "begun", "over"]) if form.begin else "none"
    prompt = (
        f"say {seed}: "
        + {
            "none": "",
            "begun": f"{form.begin[-1].strip()}\n" if form.begin else "",
            "over": f"{form.end[0]}\n\n",
        }[ending]
    )
    budget = draw.choice([None, 0, 1, 5, 20]) if form.can_be_cut else None
    schema = random_schema(seed) if draw.random() < 0.7 else None
    bias = {id_: draw.choice([0.0, 8.0]) for id_ in mark_ids(family).values()}
    if form.is_certain:  # a mark of several tokens, which has to come about by chance
        bias = {mark_ids(family)[mark]: 12.0 for mark in ("<|channel|>", "final", "<|message|>")}
    sampling = params(
        seed,
        **({} if schema is None else {"json": schema, "disable_any_whitespace": True}),
        temperature=draw.choice([0, 1]),
        max_tokens=draw.choice([90, 150]),
        logprobs=1,
        thinking_token_budget=budget,
        logit_bias=bias or None,
        skip_special_tokens=False,
    )
    sampling.reasoning = form
    return Case(prompt, sampling, schema, budget, ending == "begun", ending == "over")


def check(family: str, case: Case, output: RequestOutput, ids_of: Callable[[str], int]) -> str:
    """What kind of answer it is. Raises AssertionError where a rule is broken."""
    form = format_of(family)
    completion = output.outputs[0]
    text = completion.text.removesuffix("</s>")
    is_thinking = case.is_begun or form.is_certain
    if not is_thinking and not case.is_over:
        begin = next((mark for mark in form.begin if text.lstrip().startswith(mark)), None)
        is_thinking = begin is not None
        text = text if begin is None else text.lstrip()[len(begin) :]
    answer: str | None = text
    if is_thinking:
        ends = [(at, mark) for mark in form.end if (at := text.find(mark)) >= 0]
        if ends:
            at, mark = min(ends)
            thought, answer = text[:at], text[at + len(mark) :]
        else:
            thought, answer = text, None
        if case.budget is not None:
            # Thoughts are spelled here by tokens of one character or more. A forced end that is cut
            # by max_tokens is a beginning of the mark.
            num_most = len(completion.token_ids)
            fewest = ids_of(thought)
            assert fewest <= case.budget + (len(form.end[0]) if answer is None else 0), num_most
    if completion.finish_reason != "stop":
        return "cut"
    if case.schema is None:
        return "free"
    assert answer is not None
    jsonschema.validate(json.loads(answer.removeprefix("\n\n")), case.schema)
    return "thought" if is_thinking else "answered"


@pytest.mark.parametrize("family", MARKS)
def test_answers_keep_to_budget_and_grammar_and_drafts_change_none(
    model_of: Callable[[str], Path], family: str
) -> None:
    cases = [case_of(family, seed) for seed in range(NUM_CASES)]
    expected: list[Any] | None = None
    for num_drafts in DRAFTS:
        config = speculative("ngram", model_of(family), num_drafts, 1) if num_drafts else None
        options: dict[str, Any] = {"max_model_len": 256, "speculative_config": config}
        with make_engine(model_of(family), **options) as engine:
            outputs = engine.generate([c.prompt for c in cases], [c.params for c in cases])
            if expected is None:
                expected = answers(outputs)
                kinds = count_kinds(family, cases, outputs, engine)
                assert kinds.count("thought") + kinds.count("answered") >= NUM_CASES // 10, kinds
            assert answers(outputs) == expected


def count_kinds(
    family: str, cases: Sequence[Case], outputs: Sequence[RequestOutput], engine: Engine
) -> list[str]:
    def num_tokens(text: str) -> int:
        return len(engine.tokenizer.encode(text, add_special_tokens=False))

    return [check(family, c, o, num_tokens) for c, o in zip(cases, outputs, strict=True)]


@pytest.mark.parametrize("budget", [0, 3, 9])
@pytest.mark.parametrize("num_drafts", DRAFTS)
def test_a_budget_is_exact(model_of: Callable[[str], Path], budget: int, num_drafts: int) -> None:
    """The model never ends its reasoning by itself; what follows the forced end is free."""
    model, end = model_of("qwen3"), mark_ids("qwen3")["</think>"]
    config = speculative("ngram", model, num_drafts, 1) if num_drafts else None
    with make_engine(model, speculative_config=config) as engine:
        sampling = params(
            temperature=0,
            max_tokens=24,
            ignore_eos=True,
            thinking_token_budget=budget,
            logit_bias={end: -100.0},
        )
        (output,) = engine.generate("aaaaaa<think>\n", sampling)
        ids = list(output.outputs[0].token_ids)
        assert ids.index(end) == budget and ids.count(end) == 1 and len(ids) == 24
        (output,) = engine.generate(output.prompt_token_ids or [], sampling)
        assert list(output.outputs[0].token_ids) == ids  # a prompt without text is read, too


def test_the_checks_see_a_grammar_that_begins_too_early(
    model_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And reasoning without a budget."""
    monkeypatch.setattr(
        reasoning_grammar.ReasoningGrammars, "before", lambda self, answer, params: answer
    )
    cases = [case_of("qwen3", seed) for seed in range(20)]
    with make_engine(model_of("qwen3"), max_model_len=256) as engine:
        outputs = engine.generate([c.prompt for c in cases], [c.params for c in cases])
        with pytest.raises((AssertionError, ValueError)):
            count_kinds("qwen3", cases, outputs, engine)


def test_what_a_model_cannot_do_is_refused(
    model_of: Callable[[str], Path], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with (
        make_engine(model_of("openai_gptoss")) as engine,
        pytest.raises(ValueError, match="thinking_token_budget: .* reasoning_effort"),
    ):
        engine.generate("a", params(thinking_token_budget=4))
    with pytest.raises(ValueError, match="thinking_token_budget must be"):
        params(thinking_token_budget=-2)
    assert params(thinking_token_budget=-1).thinking_token_budget is None
    model = add_thinking_text(checkpoint("llama"), tmp_path / "model", "qwen3")
    (model / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with (
        make_engine(model) as engine,
        pytest.raises(ValueError, match="thinking_token_budget needs a model whose chat template"),
    ):
        engine.generate("a", params(thinking_token_budget=4))


@pytest.mark.parametrize(
    ("prompt", "is_continued", "start"),
    [
        ("hi:", False, ReasoningStart.OPTIONAL),
        ("hi:<think>\n", False, ReasoningStart.BEGUN),
        ("hi:<think>\n\n</think>\n\n", False, ReasoningStart.OVER),
        ("what is <think>? assistant:", False, ReasoningStart.OPTIONAL),
        ("hi:<think>\nso far", True, ReasoningStart.BEGUN),
        ("hi:<think>\nso</think> I", True, ReasoningStart.OVER),
        ("hi: I", True, ReasoningStart.OVER),
    ],
)
def test_where_an_answer_begins(prompt: str, is_continued: bool, start: ReasoningStart) -> None:
    assert format_of("qwen3").start_after(prompt, is_continued=is_continued) is start
    certain = format_of("deepseek_r1").start_after(prompt, is_continued=is_continued)
    assert certain is (ReasoningStart.BEGUN if start is ReasoningStart.OPTIONAL else start)


@pytest.mark.parametrize("form", [form for form in REASONING_FORMATS if form.template_marks])
def test_a_template_shows_its_format(form: Any) -> None:
    for mark in form.template_marks:
        assert reasoning_format_of(f"{{% x %}}{mark}{{{{ y }}}}") is form
    assert reasoning_format_of("{{ messages }}") is reasoning_format_of(None) is None
