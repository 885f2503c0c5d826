"""A request's tokens and logprobs do not depend on what else runs or how its prompt is cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_native import Engine, RequestOutput, SamplingParams

pytestmark = pytest.mark.models

MAX_MODEL_LEN = 512

GREEDY = SamplingParams(temperature=0, max_tokens=48, logprobs=3, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1, seed=11, max_tokens=48, logprobs=3, ignore_eos=True)


def answer(output: RequestOutput) -> tuple[list[int], list[dict[int, float]]]:
    """Tokens and the exact logprobs of one output; floats are compared bit for bit."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    logprobs = [
        {token: entry.logprob for token, entry in position.items()}
        for position in completion.logprobs
    ]
    return list(completion.token_ids), logprobs


def make_engine(model: Path, **options: Any) -> Engine:
    return Engine(model, dtype="bfloat16", **{"max_model_len": MAX_MODEL_LEN, **options})


@pytest.fixture(scope="module")
def batch(smollm2: Path, prompts: list[str]) -> list[list[int]]:
    """32 prompts of different lengths; the one under test is the first."""
    engine = make_engine(smollm2, max_num_seqs=1)
    encoded = [engine.tokenizer.encode(prompt)[:200] for prompt in prompts]
    return [encoded[i % len(encoded)] + [i + 5] for i in range(32)]


@pytest.fixture(scope="module", params=[GREEDY, SAMPLED], ids=["greedy", "sampled"])
def expected(
    request: pytest.FixtureRequest, smollm2: Path, batch: list[list[int]]
) -> tuple[SamplingParams, list[Any]]:
    """Every prompt of the batch run alone, on an engine without prefix cache."""
    params: SamplingParams = request.param
    engine = make_engine(smollm2, max_num_seqs=1, enable_prefix_caching=False)
    return params, [answer(engine.generate([prompt], params)[0]) for prompt in batch[:8]]


Expected = tuple[SamplingParams, list[Any]]


def test_among_31_others(smollm2: Path, batch: list[list[int]], expected: Expected) -> None:
    params, alone = expected
    outputs = make_engine(smollm2, max_num_seqs=32).generate(batch, params)
    assert [answer(output) for output in outputs[:8]] == alone


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_prompt_chunks(
    smollm2: Path, batch: list[list[int]], expected: Expected, chunk: int
) -> None:
    params, alone = expected
    engine = make_engine(smollm2, max_num_batched_tokens=chunk, max_num_seqs=1)
    outputs = engine.generate(batch[:3], params)
    assert [answer(output) for output in outputs] == alone[:3]


def test_after_a_prefix_cache_hit(
    smollm2: Path, batch: list[list[int]], expected: Expected
) -> None:
    params, alone = expected
    engine = make_engine(smollm2)
    engine.generate(batch[:8], params)
    outputs = engine.generate(batch[:8], params)
    # Every full block of the prompt but the one with its last token, which must be computed.
    hits = [(len(prompt) - 1) // 16 * 16 for prompt in batch[:8]]
    assert [output.num_cached_tokens for output in outputs] == hits
    assert sum(hits) > 0
    assert [answer(output) for output in outputs] == alone


def test_after_a_preemption(smollm2: Path, batch: list[list[int]], expected: Expected) -> None:
    params, alone = expected
    # 16 blocks hold one request of full length, and three or so of these.
    engine = make_engine(smollm2, max_model_len=256, num_kv_blocks=16, enable_prefix_caching=False)
    outputs = engine.generate(batch[:8], params)
    assert engine.stats().num_preemptions > 0
    assert [answer(output) for output in outputs] == alone


@pytest.mark.parametrize("num_threads", [1, 3])
def test_thread_counts(
    smollm2: Path, batch: list[list[int]], expected: Expected, num_threads: int
) -> None:
    params, alone = expected
    outputs = make_engine(smollm2, num_threads=num_threads).generate(batch[:3], params)
    assert [answer(output) for output in outputs] == alone[:3]


def test_another_seed_gives_another_answer(
    smollm2: Path, batch: list[list[int]], expected: Expected
) -> None:
    """The comparison above can fail: it tells seeds apart."""
    params, alone = expected
    other = params.clone()
    other.seed = 12
    outputs = make_engine(smollm2).generate(batch[:3], other)
    answers = [answer(output) for output in outputs]
    assert (answers == alone[:3]) == (params.temperature == 0)


def test_every_request_of_a_pool_too_small_finishes_as_it_does_alone(
    checkpoint: Callable[[str], Path],
) -> None:
    model = checkpoint("llama")
    params = SamplingParams(temperature=1, seed=3, max_tokens=40, logprobs=0, ignore_eos=True)
    requests = [[1 + (i * 7 + j) % 90 for j in range(5 + i % 40)] for i in range(64)]
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 96}
    alone = Engine(model, max_num_seqs=1, enable_prefix_caching=False, **options)
    expected = [answer(alone.generate([prompt], params)[0]) for prompt in requests]
    small = Engine(model, max_num_seqs=64, num_kv_blocks=20, **options)
    outputs = small.generate(requests, params)
    stats = small.stats()
    assert stats.num_preemptions > 0
    assert stats.num_free_kv_blocks == stats.num_kv_blocks == 20
    assert [answer(output) for output in outputs] == expected
