"""Drafts, methods and devices never change an answer that obeys a grammar."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import tiny_text_model
from grammar_requests import PROMPT, SCHEMA, VOCAB_SIZE, answers, id_of, make_engine, params
from random_schemas import random_schema
from specdec_native import Engine
from test_sampling_distribution import chi_square_z, softmax
from test_speculation_law import speculative


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model.add_byte_text(
        checkpoint("llama"), tmp_path_factory.mktemp("structured") / "llama"
    )


# ---- 200 schemas


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
    for policy in ("fixed", "auto") if temperature else ("fixed",):
        config = speculative("ngram", model, 6, 1, policy)
        with make_engine(model, speculative_config=config) as drafting:
            assert answers(drafting.generate(prompts, sampling)) == answers(outputs)
            forced = [d for d in drafting.stats().drafters if d.name == "grammar"]
        assert all(d.num_accepted_tokens == d.num_draft_tokens for d in forced)
        # Lengths that adapt go by what rows cost here, which may be so much that none is drafted.
        assert policy == "auto" or sum(d.num_draft_tokens for d in forced) > 1000


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
