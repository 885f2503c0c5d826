"""Rejection and block verification draw from the target's exact distribution, through the engine.

Four permitted tokens and three generated ones make 64 outcomes, whose probabilities come from
transformers and NumPy. The first token comes from the prompt; the other two are verified drafts.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from conftest import HeadMaker
from make_heads import HEADS
from specdec_native import Engine, SamplingParams
from test_sampling_distribution import PROMPT, Array, chi_square_z, distribution
from test_speculation_law import metrics_of

NUM_DRAWS = 8000
TOKENS = [3, 9, 17, 40]
OUTCOMES = list(itertools.product(TOKENS, repeat=3))

PLAIN: dict[str, Any] = {"allowed_token_ids": TOKENS}
SHAPED: dict[str, Any] = {
    **PLAIN,
    "temperature": 0.8,
    "min_p": 0.02,
    "repetition_penalty": 1.4,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.4,
    "logit_bias": {9: 0.7},
}


@pytest.fixture(scope="module")
def target(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="module")
def draft(checkpoint: Callable[[str], Path]) -> Path:
    """Another model of the same vocabulary."""
    return checkpoint("qwen2")


@pytest.fixture(scope="module")
def exact(target: Path) -> Callable[[dict[str, Any]], Array]:
    """The probability of every outcome under the given parameters."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    model = loaded.eval()

    def probabilities(options: dict[str, Any]) -> Array:
        result = np.ones(len(OUTCOMES))
        for depth in range(3):
            for prefix in set(outcome[:depth] for outcome in OUTCOMES):
                with torch.no_grad():
                    logits = model(torch.tensor([PROMPT + list(prefix)])).logits[0, -1]
                after = distribution(logits.double().numpy(), options, list(prefix))
                for i, outcome in enumerate(OUTCOMES):
                    if outcome[:depth] == prefix:
                        result[i] *= after[outcome[depth]]
        return result

    return probabilities


def outcomes(target: Path, config: dict[str, Any], options: dict[str, Any]) -> tuple[Array, Engine]:
    engine = Engine(
        target, dtype="float32", max_model_len=64, max_num_seqs=128, speculative_config=config
    )
    params = [
        SamplingParams(max_tokens=8, ignore_eos=True, seed=seed, **options)
        for seed in range(NUM_DRAWS)
    ]
    counts = dict.fromkeys(OUTCOMES, 0)
    for output in engine.generate([PROMPT] * NUM_DRAWS, params):
        counts[tuple(output.outputs[0].token_ids[:3])] += 1
    return np.array([float(counts[outcome]) for outcome in OUTCOMES]), engine


def config_of(draft: Path, drafter: str, verification: str, width: int) -> dict[str, Any]:
    """`draft` is the directory of a model, or of the head that `drafter` names."""
    config: dict[str, Any] = {
        "num_speculative_tokens": 3,
        "tree_width": width,
        "rejection_sample_method": verification,
    }
    if drafter == "ngram":
        return {**config, "method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    if drafter in HEADS:
        return {**config, "method": HEADS[drafter].method, "model": str(draft)}
    return {
        **config,
        "method": "draft_model",
        "model": str(draft),
        "draft_sample_method": "probabilistic" if drafter == "sampled" else "greedy",
    }


CASES = [
    ("sampled", "standard", 1, PLAIN),
    ("sampled", "standard", 1, SHAPED),
    ("sampled", "standard", 3, PLAIN),
    ("sampled", "standard", 3, SHAPED),
    ("greedy", "standard", 1, SHAPED),
    ("greedy", "standard", 2, SHAPED),
    ("ngram", "standard", 2, SHAPED),
    ("sampled", "block", 1, PLAIN),
    ("sampled", "block", 1, SHAPED),
    ("ngram", "block", 1, SHAPED),
    ("eagle3_modelopt", "standard", 3, SHAPED),
    ("eagle", "block", 1, SHAPED),
    ("medusa_token_map", "standard", 2, PLAIN),
    ("medusa", "standard", 3, SHAPED),
    ("p_eagle", "standard", 3, SHAPED),
    ("p_eagle", "block", 1, PLAIN),
    ("dflash", "block", 1, PLAIN),
    ("dspark", "standard", 3, SHAPED),
]


@pytest.mark.parametrize(("drafter", "verification", "width", "options"), CASES)
def test_tokens_follow_the_exact_distribution(
    target: Path,
    draft: Path,
    head: HeadMaker,
    exact: Callable[[dict[str, Any]], Array],
    drafter: str,
    verification: str,
    width: int,
    options: dict[str, Any],
) -> None:
    if drafter in HEADS:
        draft = head(drafter)
    counts, engine = outcomes(target, config_of(draft, drafter, verification, width), options)
    acceptance = metrics_of(engine)
    assert 0 < acceptance.num_accepted_draft_tokens < acceptance.num_draft_tokens
    assert counts.sum() == NUM_DRAWS
    assert abs(chi_square_z(counts, exact(options))) < 5


def test_accepting_whatever_is_drafted_is_noticed(
    target: Path, draft: Path, exact: Callable[[dict[str, Any]], Array]
) -> None:
    config = {
        **config_of(draft, "sampled", "synthetic", 1),
        "synthetic_acceptance_length": 4.0,
    }
    counts, _ = outcomes(target, config, PLAIN)
    assert chi_square_z(counts, exact(PLAIN)) > 5


def test_block_accepts_at_least_as_much_as_token_wise(target: Path, draft: Path) -> None:
    lengths = {}
    for verification in ("standard", "block"):
        _, engine = outcomes(target, config_of(draft, "sampled", verification, 1), PLAIN)
        lengths[verification] = metrics_of(engine).mean_acceptance_length
    assert lengths["block"] > lengths["standard"] - 0.01


def test_a_wider_tree_accepts_more(target: Path, draft: Path) -> None:
    lengths = []
    for width in (1, 3):
        _, engine = outcomes(target, config_of(draft, "sampled", "standard", width), PLAIN)
        lengths.append(metrics_of(engine).mean_acceptance_length)
    assert lengths[1] > lengths[0]
