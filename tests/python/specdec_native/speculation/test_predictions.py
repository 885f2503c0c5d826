"""Predictions of answers (SamplingParams.prediction): they change speed and no answer."""

import dataclasses
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_native import Engine, SamplingParams
from specdec_native.requests import request_builder
from test_speculation_law import METHODS, POLICIES, Answer, Setting, answer, metrics_of, speculative
from tiny_text_model import OPTIONS, TEXT_TOKEN_IDS, only

VOCAB_SIZE = 160


@pytest.fixture(scope="module")
def tiny(checkpoint: Callable[[str], Path]) -> Setting:
    return Setting(checkpoint("llama"), VOCAB_SIZE, "float32", 40, num_requests=12)


def predictions(answers: list[Answer]) -> list[list[int] | None]:
    """By turns an answer with edits, the answer to another prompt, and none."""
    draw = random.Random(4)

    def edited(tokens: list[int]) -> list[int]:
        kept = [token for token in tokens if draw.random() > 0.1]
        return [draw.randrange(VOCAB_SIZE) if draw.random() < 0.1 else token for token in kept]

    return [
        (edited(tokens), answers[i - 1][0], None)[i % 3] for i, (tokens, _) in enumerate(answers)
    ]


def params_with(setting: Setting, sampling: str) -> list[SamplingParams]:
    predicted = predictions(setting.plain(sampling))
    pairs = zip(setting.params(sampling), predicted, strict=True)
    return [dataclasses.replace(params, prediction=prediction) for params, prediction in pairs]


@pytest.mark.parametrize("sampling", ["greedy", "everything"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_without_predictions(
    tiny: Setting, method: str, policy: str, sampling: str
) -> None:
    config = speculative(method, tiny.model, 5, 2, policy)
    with tiny.engine(speculative_config=config) as engine:
        for _ in range(2):
            outputs = engine.generate(tiny.prompts, params_with(tiny, sampling))
            assert [answer(output) for output in outputs] == tiny.plain(sampling)
        metrics = metrics_of(engine)
        drafters = {each.name for each in engine.stats().drafters}
    if policy == "fixed":  # else other drafters' text may be worth more, by the clock
        assert metrics.num_accepted_prediction_tokens > 0
        assert "prediction" in drafters


def test_a_right_prediction_is_accepted_whole(tiny: Setting) -> None:
    """K tokens of it and one more come in every step, counted by hand."""
    config = speculative("ngram", tiny.model, 4, 1)
    with tiny.engine(speculative_config=config) as engine:
        for prompt, params, (tokens, _) in zip(
            tiny.prompts, tiny.params("t1"), tiny.plain("t1"), strict=True
        ):
            right = dataclasses.replace(params, prediction=tokens)
            output = only(engine.generate([prompt], right))
            metrics = output.speculative_decoding
            assert metrics is not None and list(output.token_ids) == tokens
            # The first token comes with the prompt. A last token alone needs no draft.
            rest = len(tokens) - 1
            assert metrics.num_prediction_tokens == metrics.num_accepted_prediction_tokens
            assert metrics.num_accepted_prediction_tokens >= rest - -(-rest // 5)
            assert metrics.num_spec_steps <= -(-rest // 5)


def test_text_is_tokenized_as_an_answer_is(model: Path) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4, "draft_length_policy": "fixed"}
    with Engine(model, **OPTIONS, speculative_config=config) as engine:
        params = SamplingParams(
            temperature=0, max_tokens=24, ignore_eos=True, allowed_token_ids=TEXT_TOKEN_IDS
        )
        plain = only(engine.generate(["abab"], params))
        for prediction in (plain.text, list(plain.token_ids)):
            again = dataclasses.replace(params, prediction=prediction)
            output = only(engine.generate(["abab"], again))
            assert output.token_ids == plain.token_ids
            metrics = output.speculative_decoding
            assert metrics is not None and metrics.num_accepted_prediction_tokens >= 16


def test_without_speculation_it_is_ignored_with_one_warning(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request_builder._warn_of_ignored_predictions.cache_clear()
    params = SamplingParams(temperature=0, max_tokens=4)
    predicting = dataclasses.replace(params, prediction="abc")
    with Engine(model, **OPTIONS) as engine, caplog.at_level(logging.WARNING):
        plain = only(engine.generate(["ab"], params))
        for _ in range(2):
            assert only(engine.generate(["ab"], predicting)).token_ids == plain.token_ids
    warnings = [r.message for r in caplog.records if "prediction is ignored" in r.message]
    assert len(warnings) == 1


@pytest.mark.parametrize("bad", [7, ["a"], [-1], [1.5], "\ud800"])
def test_bad_predictions_are_refused_by_name(bad: object) -> None:
    with pytest.raises(ValueError, match="prediction"):
        SamplingParams(prediction=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [[10**6], [5] * 10**5, "ab" * 10**5])
def test_predictions_that_no_answer_can_be_are_refused(model: Path, bad: list[int] | str) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4}
    with (
        Engine(model, **OPTIONS, speculative_config=config) as engine,
        pytest.raises(ValueError, match="prediction"),
    ):
        engine.generate(["ab"], SamplingParams(prediction=bad))
