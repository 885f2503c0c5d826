"""Tokens drawn through the whole engine follow the exact distribution, for each parameter.

The distribution comes from transformers' logits and a float64 NumPy version of vLLM's processors.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_native import Engine, SamplingParams

Array = np.ndarray[Any, np.dtype[np.float64]]

NUM_DRAWS = 6000
PROMPT = [3, 5, 3, 9, 17, 5, 3, 40]
NEVER = -np.inf


def softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max())
    return np.asarray(shifted / shifted.sum())


def distribution(logits: Array, options: dict[str, Any], output: list[int]) -> Array:
    """vLLM's order: masks, bias, penalties, temperature, min_p, top_k, top_p."""
    logits = logits.astype(np.float64).copy()
    if options.get("allowed_token_ids"):
        masked = np.full_like(logits, NEVER)
        masked[options["allowed_token_ids"]] = logits[options["allowed_token_ids"]]
        logits = masked
    for token, bias in options.get("logit_bias", {}).items():
        logits[token] += bias
    repetition = options.get("repetition_penalty", 1.0)
    for token in set(PROMPT + output):
        logits[token] = (
            logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
        )
    for token in set(output):
        logits[token] -= options.get("frequency_penalty", 0.0) * output.count(token)
        logits[token] -= options.get("presence_penalty", 0.0)
    logits /= options.get("temperature", 1.0)
    probabilities = softmax(logits)
    logits[probabilities < options.get("min_p", 0.0) * probabilities.max()] = NEVER
    if options.get("top_k", 0) > 0:
        logits[logits < np.sort(logits)[-options["top_k"]]] = NEVER
    probabilities = softmax(logits)
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    logits[order[before >= options.get("top_p", 1.0)]] = NEVER
    return softmax(logits)


def chi_square_z(counts: Array, probabilities: Array) -> float:
    """Standardised chi-square over the cells with enough expected draws; the rest are pooled."""
    expected = probabilities * counts.sum()
    assert counts[probabilities == 0].sum() == 0, "drew a token of probability zero"
    big = expected >= 5
    cells = [(counts[big], expected[big])]
    if expected[~big].sum() > 0:
        cells.append((counts[~big].sum(keepdims=True), expected[~big].sum(keepdims=True)))
    statistic = sum(float((((c - e) ** 2) / np.maximum(e, 1e-9)).sum()) for c, e in cells)
    freedom = max(1, sum(len(c) for c, _ in cells) - 1)
    return float((statistic - freedom) / np.sqrt(2 * freedom))


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return Engine(model, dtype="float32", max_model_len=64, max_num_seqs=256)


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return loaded.eval()


def draws(engine: Engine, options: dict[str, Any], output: list[int]) -> Array:
    """Counts of the token after `output`, which logit_bias-free allowed tokens force one by one."""
    counts = np.zeros(engine.model_info().vocab_size)
    params = [
        SamplingParams(max_tokens=len(output) + 1, ignore_eos=True, seed=seed, **options)
        for seed in range(NUM_DRAWS)
    ]
    for result in engine.generate([PROMPT] * NUM_DRAWS, params):
        tokens = list(result.outputs[0].token_ids)
        if tokens[:-1] == output:
            counts[tokens[-1]] += 1
    return counts


def exact(reference: Any, options: dict[str, Any], output: list[int]) -> Array:
    with torch.no_grad():
        logits = reference(torch.tensor([PROMPT + output])).logits[0, -1].double().numpy()
    return distribution(logits, options, output)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.3},
    "repetition_penalty": {"repetition_penalty": 6.0},
    "logit_bias": {"logit_bias": {3: 2.0, 9: -3.0, 60: 4.0}},
    "allowed_token_ids": {"allowed_token_ids": [1, 3, 5, 8, 13, 21, 34, 55]},
    "everything": {
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {3: 1.5, 40: -1.0},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_first_token_follows_the_exact_distribution(
    engine: Engine, reference: Any, name: str
) -> None:
    counts = draws(engine, CASES[name], [])
    assert counts.sum() == NUM_DRAWS
    assert abs(chi_square_z(counts, exact(reference, CASES[name], []))) < 5


def test_penalties_see_the_tokens_of_the_output(engine: Engine, reference: Any) -> None:
    """A bias makes the first output token certain; the second is then penalised for it."""
    options: dict[str, Any] = {
        "logit_bias": {60: 40.0},
        "presence_penalty": 2.0,
        "frequency_penalty": 2.0,
        "repetition_penalty": 8.0,
    }
    counts = draws(engine, options, [60])
    assert counts.sum() > 0.99 * NUM_DRAWS
    assert abs(chi_square_z(counts, exact(reference, options, [60]))) < 5
    forgetful = distribution(
        reference(torch.tensor([[*PROMPT, 60]])).logits[0, -1].detach().double().numpy(),
        options,
        [],
    )
    assert chi_square_z(counts, np.maximum(forgetful, 1e-12)) > 5


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("temperature", {"temperature": 0.65}),
        ("top_k", {"top_k": 8}),
        ("top_p", {"top_p": 0.65}),
        ("repetition_penalty", {}),
        ("logit_bias", {"logit_bias": {3: 2.0, 9: -3.0, 60: 3.4}}),
    ],
)
def test_a_wrong_rule_is_noticed(
    engine: Engine, reference: Any, name: str, wrong: dict[str, Any]
) -> None:
    counts = draws(engine, CASES[name], [])
    probabilities = np.maximum(exact(reference, wrong, []), 1e-12)
    assert chi_square_z(counts, probabilities) > 5
