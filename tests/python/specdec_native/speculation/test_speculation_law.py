"""Law 1: speculation never changes an answer: tokens equal, logprobs bit-equal."""

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specdec_native import Engine, RequestOutput, SamplingParams
from specdec_native.requests.outputs import SpeculativeDecodingMetrics

Answer = tuple[list[int], list[dict[int, float]]]

MAX_MODEL_LEN = 192
NUM_REQUESTS = 32

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "t1": {"temperature": 1},
    "everything": {
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {5: 1.0, 9: -2.0},
        "bad_words": [],
    },
}


def drafts_of_a_madman(tokens: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Some right continuations (repeats of what stood before) and some nonsense."""
    tail = list(tokens[-8:])
    return [tail[:max_tokens], [tokens[-1]] * max_tokens, [tokens[0], *tail][:max_tokens]]


def speculative(
    method: str, model: Path, tokens: int | None, width: int, policy: str = "fixed"
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "num_speculative_tokens": tokens,
        "tree_width": width,
        "draft_length_policy": policy,
    }
    ngram = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4}
    suffix = {"method": "suffix"}
    return {
        "ngram": {**config, **ngram},
        "suffix": {**config, **suffix},
        "draft_model": {**config, "method": "draft_model", "model": str(model)},
        "composite": {**config, "drafters": [ngram, suffix, {"method": "replay"}]},
        "merged": {
            **config,
            "drafters": [ngram, {"method": "draft_model", "model": str(model)}],
            "merge_drafters": True,
        },
        "custom": {**config, "method": "custom_class", "drafter": drafts_of_a_madman},
    }[method]


METHODS = ["ngram", "suffix", "draft_model", "composite", "merged", "custom"]
SHAPES = [(1, 1), (3, 1), (5, 1), (16, 1), (4, 3)]
POLICIES = ["fixed", "auto"]


def metrics_of(engine: Engine) -> SpeculativeDecodingMetrics:
    metrics = engine.stats().speculative_decoding
    assert metrics is not None
    return metrics


def answer(output: RequestOutput) -> Answer:
    completion = output.outputs[0]
    assert completion.logprobs is not None
    return list(completion.token_ids), [
        {token: entry.logprob for token, entry in position.items()}
        for position in completion.logprobs
    ]


def params_of(sampling: str, index: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        **SAMPLING[sampling], seed=index, max_tokens=max_tokens + index % 5, logprobs=2
    )


class Setting:
    """A model, prompts of repetitive tokens and every request's answer without speculation."""

    def __init__(
        self,
        model: Path,
        vocab_size: int,
        dtype: str,
        max_tokens: int,
        *,
        num_requests: int = NUM_REQUESTS,
        **options: Any,
    ) -> None:
        self.model = model
        self.max_tokens = max_tokens
        self.num_requests = num_requests
        self.options = {"dtype": dtype, **options}
        draw = random.Random(3)
        self.prompts = []
        for i in range(num_requests):
            word = [draw.randrange(3, vocab_size) for _ in range(3 + i % 7)]
            self.prompts.append((word * 12)[: 6 + (i * 5) % 60])
        self._plain: dict[str, list[Answer]] = {}

    def engine(self, **options: Any) -> Engine:
        return Engine(
            self.model,
            **{
                **self.options,
                "max_model_len": MAX_MODEL_LEN,
                "max_num_seqs": 32,
                **options,
            },
        )

    def params(self, sampling: str) -> list[SamplingParams]:
        return [params_of(sampling, i, self.max_tokens) for i in range(self.num_requests)]

    def plain(self, sampling: str) -> list[Answer]:
        if sampling not in self._plain:
            with self.engine() as engine:
                outputs = engine.generate(self.prompts, self.params(sampling))
            self._plain[sampling] = [answer(output) for output in outputs]
        return self._plain[sampling]


@pytest.fixture(scope="module")
def tiny(checkpoint: Callable[[str], Path]) -> Setting:
    return Setting(checkpoint("llama"), 160, "float32", 40)


@pytest.fixture(scope="module", params=["int8", "int4"])
def quantized(checkpoint: Callable[[str], Path], request: pytest.FixtureRequest) -> Setting:
    return Setting(checkpoint("llama"), 160, "bfloat16", 40, quantization=request.param)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def int8_cache(checkpoint: Callable[[str], Path], request: pytest.FixtureRequest) -> Setting:
    return Setting(checkpoint("llama"), 160, request.param, 40, kv_cache_dtype="int8")


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Setting:
    return Setting(smollm2, 49000, "bfloat16", 24)


def check(setting: Setting, sampling: str, config: dict[str, Any], **options: Any) -> Engine:
    engine = setting.engine(speculative_config=config, **options)
    outputs = engine.generate(setting.prompts, setting.params(sampling))
    assert [answer(output) for output in outputs] == setting.plain(sampling)
    stats = engine.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    return engine


def check_preempted(setting: Setting, config: dict[str, Any]) -> None:
    """In a small cache, with prompts in small chunks."""
    with check(setting, "t1", config, num_kv_blocks=16, max_num_batched_tokens=20) as engine:
        assert engine.stats().num_preemptions > 0


def check_cached(setting: Setting, config: dict[str, Any]) -> None:
    """Once more, with prefixes from the cache."""
    with check(setting, "t1", config) as engine:
        outputs = engine.generate(setting.prompts, setting.params("t1"))
        assert any(output.num_cached_tokens for output in outputs)
        assert [answer(output) for output in outputs] == setting.plain("t1")


def check_coming_and_going(setting: Setting, config: dict[str, Any]) -> None:
    """Prompts arrive while others decode; some are aborted."""
    engine = setting.engine(speculative_config=config, max_num_seqs=6)
    params = setting.params("everything")
    pending, aborted = list(range(NUM_REQUESTS)), []
    answers: dict[int, Answer] = {}

    def step_once() -> None:
        for output in engine.step():
            if output.finished:
                answers[int(output.request_id)] = answer(output)

    for step in itertools.count():
        if pending and step % 3 == 0:
            index = pending.pop(0)
            engine.add_request(setting.prompts[index], params[index], request_id=str(index))
            if index % 7 == 3:
                for _ in range(1 + index % 2):
                    step_once()
                engine.abort(str(index))
                aborted.append(index)
        step_once()
        if not pending and not engine.has_unfinished_requests():
            break
    expected = setting.plain("everything")
    assert set(answers) >= set(range(NUM_REQUESTS)) - set(aborted)
    assert all(got == expected[index] for index, got in answers.items())
    stats = engine.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks


def check_batch_size_table(setting: Setting, config: dict[str, Any]) -> None:
    """Drafting goes off and on with the number of requests."""
    config["num_speculative_tokens_per_batch_size"] = [[1, 4, 4], [5, 12, 1], [13, 64, 0]]
    with check(setting, "t1", config) as engine:
        assert metrics_of(engine).num_draft_tokens > 0


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_without_speculation(
    tiny: Setting, method: str, tokens: int, width: int, sampling: str
) -> None:
    config = speculative(method, tiny.model, tokens, width)
    with check(tiny, sampling, config) as engine:
        assert metrics_of(engine).num_draft_tokens > 0


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(("tokens", "width"), [(None, 1), (None, 3), (4, 1)])
@pytest.mark.parametrize("method", METHODS)
def test_answers_do_not_depend_on_the_lengths_chosen(
    tiny: Setting, method: str, tokens: int | None, width: int, sampling: str
) -> None:
    """Which lengths those are depends on the clock; a second run knows what the first learned."""
    config = speculative(method, tiny.model, tokens, width, "auto")
    with check(tiny, sampling, config) as engine:
        outputs = engine.generate(tiny.prompts, tiny.params(sampling))
        assert [answer(output) for output in outputs] == tiny.plain(sampling)
        policy = engine.stats().draft_policy
        assert policy is not None and policy.num_decisions > 0
        assert policy.num_verified_tokens == metrics_of(engine).num_draft_tokens


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [1, 8])
def test_batch_sizes(tiny: Setting, method: str, batch: int, policy: str) -> None:
    config = speculative(method, tiny.model, 5, 2, policy)
    check(tiny, "t1", config, max_num_seqs=batch).close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_preemption_and_small_chunks(tiny: Setting, method: str, policy: str) -> None:
    check_preempted(tiny, speculative(method, tiny.model, 5, 2, policy))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_prefix_cache_hits(tiny: Setting, method: str, policy: str) -> None:
    check_cached(tiny, speculative(method, tiny.model, 4, 2, policy))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_requests_that_come_and_go(tiny: Setting, method: str, policy: str) -> None:
    check_coming_and_going(tiny, speculative(method, tiny.model, 5, 2, policy))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_may_draft_less_or_nothing(tiny: Setting, policy: str) -> None:
    config = speculative("ngram", tiny.model, 5, 1, policy)
    engine = tiny.engine(speculative_config=config)
    params = tiny.params("t1")
    for i, one in enumerate(params):
        one.num_speculative_tokens = [0, 2, None][i % 3]
    outputs = engine.generate(tiny.prompts, params)
    assert [answer(output) for output in outputs] == tiny.plain("t1")
    for i, output in enumerate(outputs):
        spec = output.metrics.speculative_decoding if output.metrics else None
        if i % 3 == 0:
            assert spec is None or spec.num_draft_tokens == 0
        if i % 3 == 1:
            assert spec is None or sum(spec.acceptance_histogram[3:]) == 0


def test_batch_size_table_turns_drafting_off_and_on(tiny: Setting) -> None:
    check_batch_size_table(tiny, speculative("draft_model", tiny.model, 4, 1))


@pytest.mark.parametrize("sampling", ["greedy", "t1"])
@pytest.mark.parametrize(("tokens", "width"), [(3, 1), (16, 1), (4, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_quantised_weights(
    quantized: Setting, method: str, tokens: int, width: int, sampling: str
) -> None:
    config = speculative(method, quantized.model, tokens, width)
    check(quantized, sampling, config).close()


BATCHES = {
    "batch1": {"max_num_seqs": 1},
    "batch8": {"max_num_seqs": 8},
    "thread1": {"num_threads": 1},
    "small": {"num_kv_blocks": 16, "max_num_batched_tokens": 20},
}


@pytest.mark.parametrize("options", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("draft", ["none", "int8", "int4"])
def test_quantised_weights_in_any_batch(
    quantized: Setting, draft: str, options: dict[str, Any]
) -> None:
    config = speculative("draft_model", quantized.model, 4, 2) | {"quantization": draft}
    with check(quantized, "t1", config, **options) as engine:
        outputs = engine.generate(quantized.prompts, quantized.params("t1"))  # from the cache
        assert [answer(output) for output in outputs] == quantized.plain("t1")


@pytest.mark.parametrize("sampling", ["greedy", "t1"])
@pytest.mark.parametrize(("tokens", "width"), [(3, 1), (16, 1), (4, 3)])
@pytest.mark.parametrize("method", METHODS)
def test_int8_cache(
    int8_cache: Setting, method: str, tokens: int, width: int, sampling: str
) -> None:
    config = speculative(method, int8_cache.model, tokens, width)
    check(int8_cache, sampling, config).close()


@pytest.mark.parametrize("options", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("method", ["merged", "custom"])
def test_int8_cache_in_any_batch(int8_cache: Setting, method: str, options: dict[str, Any]) -> None:
    config = speculative(method, int8_cache.model, 4, 3)
    with check(int8_cache, "t1", config, **options) as engine:
        assert (engine.stats().num_preemptions > 0) == ("num_kv_blocks" in options)
        outputs = engine.generate(int8_cache.prompts, int8_cache.params("t1"))
        if "num_threads" in options:  # the others have room for few requests
            assert any(output.num_cached_tokens for output in outputs)
        assert [answer(output) for output in outputs] == int8_cache.plain("t1")


@pytest.mark.breadth
@pytest.mark.models
@pytest.mark.parametrize(("method", "tokens", "width"), [("draft_model", 3, 1), ("merged", 4, 3)])
def test_real_weights_with_an_int8_cache(
    smollm2: Path, method: str, tokens: int, width: int
) -> None:
    setting = Setting(smollm2, 49000, "bfloat16", 24, kv_cache_dtype="int8")
    check(setting, "t1", speculative(method, smollm2, tokens, width)).close()


@pytest.mark.breadth
@pytest.mark.models
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_drafts_across_a_chunk_of_positions(smollm2: Path, kv_cache_dtype: str) -> None:
    """Attention computes 256 positions apart from the next ones, on any thread."""
    draw = random.Random(8)
    prompts = []
    for length in (238, 246, 251, 255, 256, 257, 500, 509, 760):
        word = [draw.randrange(3, 49000) for _ in range(9)]
        prompts.append((word * 100)[:length])
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True)
    options: dict[str, Any] = {
        "dtype": "bfloat16", "max_model_len": 800, "kv_cache_dtype": kv_cache_dtype
    }  # fmt: skip
    with Engine(smollm2, num_threads=2, max_num_seqs=1, **options) as engine:
        plain = [answer(output) for output in engine.generate(prompts, params)]
    suffix, custom = speculative("suffix", smollm2, 16, 1), speculative("custom", smollm2, 5, 3)
    for num_threads, config in ((1, suffix), (3, suffix), (2, custom), (3, custom)):
        with Engine(
            smollm2, num_threads=num_threads, speculative_config=config, **options
        ) as engine:
            outputs = engine.generate(prompts, params)
            assert [answer(output) for output in outputs] == plain
            assert metrics_of(engine).num_accepted_draft_tokens > 20


@pytest.mark.breadth
@pytest.mark.models
@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize(("method", "tokens", "width"), [("draft_model", 3, 1), ("merged", 4, 3)])
def test_real_weights_quantised(
    smollm2: Path, method: str, tokens: int, width: int, quantization: str
) -> None:
    setting = Setting(smollm2, 49000, "bfloat16", 24, quantization=quantization)
    check(setting, "t1", speculative(method, smollm2, tokens, width)).close()


@pytest.mark.models
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(
    ("method", "tokens", "width", "policy"),
    [
        ("ngram", 5, 1, "fixed"),
        ("suffix", 16, 1, "fixed"),
        ("suffix", None, 2, "auto"),
        ("draft_model", 3, 1, "fixed"),
        ("draft_model", None, 1, "auto"),
        ("merged", 4, 3, "fixed"),
        ("custom", 5, 3, "fixed"),
    ],
)
def test_real_weights(
    real: Setting, method: str, tokens: int | None, width: int, policy: str, sampling: str
) -> None:
    check(real, sampling, speculative(method, real.model, tokens, width, policy)).close()


@pytest.mark.parametrize("sampling", ["greedy", "t1"])
def test_a_model_that_drafts_for_itself_is_always_right(tiny: Setting, sampling: str) -> None:
    """Coupled noise: the draft draws what the target draws, so every token is accepted."""
    config = speculative("draft_model", tiny.model, 3, 1) | {"quantization": "none"}
    engine = tiny.engine(speculative_config=config)
    params = [
        SamplingParams(**SAMPLING[sampling], seed=i, max_tokens=41, ignore_eos=True)
        for i in range(8)
    ]
    engine.generate(tiny.prompts[:8], params)
    # The first token comes from the prompt, the other 40 in steps of 4.
    assert metrics_of(engine).mean_acceptance_length == 4.0
    assert metrics_of(engine).num_spec_steps == 80
