"""What lm-eval's local-completions asks for and computes, beside transformers."""

import importlib.util
import subprocess
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT
from logprobs import Array, random_tokens, reference_logprobs
from server_world import MODEL, World
from specdec_native import Engine

CLIENT = ROOT / "tests" / "clients" / "lm_eval_local_completions.py"
# (tokens before, tokens whose likelihood is asked for)
LENGTHS = [(3, 1), (20, 12), (1, 40), (60, 30)]


def loglikelihoods(answer: dict[str, Any], context_lengths: list[int]) -> list[tuple[float, bool]]:
    """As lm-eval reads an answer: the last token is the generated one."""
    read = []
    choices = sorted(answer["choices"], key=itemgetter("index"))
    for choice, length in zip(choices, context_lengths, strict=True):
        tokens = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        is_greedy = all(token == max(top.values()) for token, top in zip(tokens, tops, strict=True))
        read.append((sum(tokens), is_greedy))
    return read


def ask(world: World, prompts: list[list[int]]) -> dict[str, Any]:
    return world.ask(
        "/v1/completions",
        model=MODEL,
        prompt=prompts,
        max_tokens=1,
        logprobs=1,
        echo=True,
        temperature=0,
        seed=1234,
    )


def reference(rows: Array, tokens: list[int], begin: int) -> tuple[float, bool]:
    """Logprobs of the tokens from `begin` on; `rows` are for the token after each position."""
    positions = range(begin, len(tokens))
    total = sum(rows[position - 1, tokens[position]] for position in positions)
    return float(total), all(
        int(rows[position - 1].argmax()) == tokens[position] for position in positions
    )


def test_loglikelihoods_are_those_of_transformers(world: World, model: Path) -> None:
    prompts, lengths, expected = [], [], []
    for seed, (before, after) in enumerate(LENGTHS):
        tokens = random_tokens(before + after, seed)
        rows = reference_logprobs(model, tokens, token_by_token=False)
        # The likeliest token at the last place, so that a short continuation is greedy.
        tokens[-1] = int(rows[-2].argmax())
        prompts.append(tokens)
        lengths.append(before)
        expected.append(reference(rows, tokens, before))
    read = loglikelihoods(ask(world, prompts), lengths)
    assert [greedy for _, greedy in read] == [greedy for _, greedy in expected]
    assert [greedy for _, greedy in expected] == [True, False, False, False]
    np.testing.assert_allclose(
        [total for total, _ in read], [total for total, _ in expected], rtol=0, atol=1e-3
    )


def test_what_the_model_itself_says_is_greedy(world: World, model: Path, engine: Engine) -> None:
    before = random_tokens(8, seed=9)
    body = {"prompt": before, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    answer = world.ask("/v1/completions", **body, return_token_ids=True)
    tokens = before + answer["choices"][0]["token_ids"]
    assert len(tokens) == 32
    rows = reference_logprobs(model, tokens, token_by_token=False)
    total, is_greedy = reference(rows, tokens, len(before))
    ((read, read_greedy),) = loglikelihoods(ask(world, [tokens]), [len(before)])
    assert is_greedy and read_greedy
    assert read == pytest.approx(total, abs=1e-3)


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs lm-eval[api]")
def test_lm_eval_finds_what_it_finds_in_transformers(world: World, model: Path) -> None:
    command = [sys.executable, str(CLIENT), world.url, str(model), "--model-name", MODEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
