"""Random sampling parameters, good ones and bad ones, beside requests whose answers are known.

A bad one is a ValueError that names one of its fields. Good ones end, and nobody beside them gets
another token. SPECDEC_FUZZ_PARAMS sets how many are tried; SPECDEC_FUZZ_SEED which.
"""

import functools
import os
import random
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import make_checkpoints
from specdec_native import Engine, RequestOutputKind, SamplingParams

COUNT = int(os.environ.get("SPECDEC_FUZZ_PARAMS", "3000"))
SEED = int(os.environ.get("SPECDEC_FUZZ_SEED", "0"))
MAX_LEN = 48
VOCAB = make_checkpoints.VOCAB_SIZE
BATCH = 6  # good sets that run together
MOST_COMPLETIONS = 4  # of a request that runs
SHARE = 5  # one of so many good sets runs

BIG = [2**31 - 1, 2**31, 2**32, sys.maxsize, 2**63, 2**64 - 1, 2**64, 10**400, 10**5000]
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, *BIG, *(-number for number in BIG)),
    *(0.0, -0.0, 0.5, 1.0, 2.0, 1e-50, 5e-324, 1e39, 1.7e308),
    *(float("nan"), float("inf"), float("-inf"), 1j, Decimal("0.5")),
    *("", "a", "5", "\ud800", b"a", object(), len, int, ...),
    *([], [5], [5] * 300, [None], [[1]], ["a", ""], (1, 2), {3, 4}, {}, {5: 1.0}, {"x": 1}),
    *(np.int64(3), np.uint8(7), np.int64(-1), np.float32(0.5), np.float64("nan"), np.bool_(True)),
    *(np.array([1, 2]), np.array(5), np.array([]), np.array([[1]])),
]
NUMBERS: list[Any] = [0, 1, 0.5, 0.1, np.float32(0.25), 1e-7]
COUNTS: list[Any] = [0, 1, 2, 3, 7, np.int64(5), *BIG[:4]]
TOKEN_LISTS: list[Any] = [
    [5],
    [5, 5],
    [7] * (VOCAB + 1),
    list(range(VOCAB)),
    list(range(VOCAB)) * 2,
    [VOCAB - 1, 0],
    [VOCAB],
    np.array([9, 9, 11]),
    (20, 21),
    list(range(3, VOCAB)),
]
WORDS: list[Any] = ["a", "bc", ["a", "a"], ["xyz", " b"], [chr(c) for c in range(32, 127)], "é"]
FLAGS: list[Any] = [True, False, 0, 1, np.bool_(False)]
PENALTIES: list[Any] = [-2, -0.5, 0, 0.5, 2]

# What a field is mostly given; ODD is for all of them.
USUAL: dict[str, list[Any]] = {
    "n": [1, 2, 3, np.int64(2)],
    "presence_penalty": PENALTIES,
    "frequency_penalty": PENALTIES,
    "repetition_penalty": [1.0, 1.3, 0.5, 1e-38, 3e38, 1e-50],
    "temperature": [0, 0.7, 1, 2, 1e-3, 1e-6],
    "top_p": [1.0, 0.9, 1e-7, 0.3],
    "top_k": [-1, *COUNTS],
    "min_p": NUMBERS,
    "seed": [None, 0, -1, 5, 2**63, -(2**63), 2**64 - 1],
    "stop": WORDS,
    "stop_token_ids": TOKEN_LISTS,
    "ignore_eos": FLAGS,
    "max_tokens": [None, 1, 5, 12, *BIG[:4]],
    "min_tokens": COUNTS,
    "logprobs": [None, 0, 1, 5, VOCAB, VOCAB + 1, -1, *BIG[:4]],
    "prompt_logprobs": [None, 0, 2, VOCAB, -1, *BIG[:4]],
    "detokenize": FLAGS,
    "skip_special_tokens": FLAGS,
    "spaces_between_special_tokens": FLAGS,
    "include_stop_str_in_output": FLAGS,
    "output_kind": list(RequestOutputKind),
    "stream_interval": COUNTS,
    "skip_clone": FLAGS,
    "logit_bias": [
        {5: 1.0},
        {"5": -3, 6: 1e30},
        dict.fromkeys(range(VOCAB), 3.4e38),
        {VOCAB - 1: -3.4e38, 0: 100},
        {VOCAB: 1},
        {2**31: 1},
    ],
    "allowed_token_ids": TOKEN_LISTS,
    "bad_words": WORDS,
    "num_speculative_tokens": [None, 0, 1, 3, 4, 5, *BIG[:4]],
    "record_draft_steps": FLAGS,
    "flat_logprobs": FLAGS,
    "logits_processors": [None, [], [lambda output, logits: logits]],
}


def engines(model: Path, draft: Path) -> list[Engine]:
    drafting = ({"method": "ngram"}, {"model": str(draft), "tree_width": 2})
    configs = [None] + [
        {"num_speculative_tokens": 4, "draft_length_policy": "fixed", **keys} for keys in drafting
    ]
    return [
        Engine(
            model,
            dtype="float32",
            num_threads=1,
            max_model_len=MAX_LEN,
            max_num_batched_tokens=40,
            num_kv_blocks=24,
            max_logprobs=-1,
            speculative_config=config,
        )
        for config in configs
    ]


def random_fields(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(sorted(USUAL), rng.choice((1, 2, 3, 6, len(USUAL))))
    odd = rng.choice((0.0, 0.0, 0.1, 0.5))
    return {name: rng.choice(ODD if rng.random() < odd else USUAL[name]) for name in names}


def checked(fields: dict[str, Any], make: Callable[[], Any]) -> Any:
    """What `make` returns; None where it refuses one of the fields by name."""
    try:
        return make()
    except ValueError as error:
        assert any(name in str(error) for name in fields), (fields, error)
        return None


def answers(engine: Engine, prompts: list[Any], params: list[SamplingParams]) -> list[Any]:
    outputs = engine.generate(prompts, params, use_tqdm=False)
    return [
        [(part.token_ids, part.logprobs, part.finish_reason) for part in output.outputs]
        for output in outputs
    ]


BYSTANDERS = [
    SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=2),
    SamplingParams(seed=3, max_tokens=12, n=2, top_p=0.9, repetition_penalty=1.2, min_tokens=4),
    SamplingParams(seed=4, max_tokens=9, allowed_token_ids=list(range(3, 60)), logprobs=1),
]
PROMPTS = [[5, 6, 7], [9] * 20, [30, 31, 32, 33]]


@pytest.mark.fuzz
def test_no_parameters_harm_anyone_else(model: Path, checkpoint: Callable[[str], Path]) -> None:
    rng = random.Random(SEED)
    all_engines = engines(model, checkpoint("llama_small_vocab"))
    expected = [
        [answers(engine, [PROMPTS[i]], [BYSTANDERS[i]])[0] for i in range(len(PROMPTS))]
        for engine in all_engines
    ]
    assert expected[1:] == expected[:1] * 2  # speculation or not
    waiting: list[list[SamplingParams]] = [[] for _ in all_engines]
    num_good = num_run = 0
    for _ in range(COUNT):
        fields = random_fields(rng)
        params = checked(fields, functools.partial(SamplingParams, **fields))
        if params is None:
            continue
        index = rng.randrange(len(all_engines))
        engine, good = all_engines[index], waiting[index]
        # The core's checks: of what they refuse, nothing is left behind.
        request_id = checked(fields, functools.partial(engine.add_request, PROMPTS[0], params))
        if request_id is None:
            assert not engine.has_unfinished_requests()
            continue
        engine.abort(request_id)
        num_good += 1
        if params.n <= MOST_COMPLETIONS and rng.randrange(SHARE) == 0:
            good.append(params)
        if len(good) < BATCH:
            continue
        ran = answers(engine, PROMPTS * 3, [*BYSTANDERS, *good])
        assert ran[: len(PROMPTS)] == expected[index], good
        assert engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks
        num_run += len(good)
        good.clear()
    assert num_good > COUNT / 10
    assert num_run > COUNT / 100
    print(COUNT, "sets,", num_good, "good,", num_run, "ran")
