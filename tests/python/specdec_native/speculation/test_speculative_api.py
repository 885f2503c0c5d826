"""Speculation through Engine and LLM: same answers, metrics, errors."""

import dataclasses
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_native import LLM, Engine, RequestOutput, SamplingParams
from specdec_native.requests.outputs import RequestMetrics, SpeculativeDecodingMetrics
from specdec_native.requests.request import Request
from speculative_configs import NGRAM
from tiny_text_model import TEXT_TOKEN_IDS

K = 4
MAX_MODEL_LEN = 128
SUFFIX = {"method": "suffix"}


def make_engine(model: Path, config: dict[str, Any] | None, **options: Any) -> Engine:
    defaults: dict[str, Any] = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN}
    return Engine(model, speculative_config=config, **(defaults | options))


def speculating(target: Path, **config: Any) -> Engine:
    """With drafts of fixed length, so that what is drafted and kept can be counted on."""
    fixed = {"num_speculative_tokens": K, "draft_length_policy": "fixed"}
    return make_engine(target, {**fixed, **config})


@pytest.fixture(scope="module")
def plain(model: Path) -> Engine:
    return make_engine(model, None)


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return speculating(model, **NGRAM)


def text_params(**options: Any) -> SamplingParams:
    defaults: dict[str, Any] = {
        "seed": 5,
        "max_tokens": 40,
        "ignore_eos": True,
        "allowed_token_ids": TEXT_TOKEN_IDS[:6],  # so that text repeats and drafts are right
    }
    return SamplingParams(**(defaults | options))


PARAMS = (
    text_params(temperature=0),
    text_params(),
    text_params(temperature=0.7, top_p=0.9, presence_penalty=0.5, logit_bias={4: 1.0}, n=3),
    text_params(logprobs=2, repetition_penalty=1.2),
    text_params(max_tokens=1),
)


def answers(engine: Engine) -> list[RequestOutput]:
    prompts = ["abcabcabc", "xyz", "aa", "the same the same", "b"]
    return engine.generate(prompts, list(PARAMS), use_tqdm=False)


def metrics_of(output: RequestOutput) -> SpeculativeDecodingMetrics:
    assert output.metrics is not None and output.metrics.speculative_decoding is not None
    return output.metrics.speculative_decoding


def is_consistent(metrics: SpeculativeDecodingMetrics) -> bool:
    histogram = metrics.acceptance_histogram
    return (
        len(histogram) == metrics.num_spec_tokens + 1
        and sum(histogram) == metrics.num_spec_steps
        and sum(i * n for i, n in enumerate(histogram)) == metrics.num_accepted_draft_tokens
        and sum(metrics.accepted_per_position) == metrics.num_accepted_draft_tokens
        and all(
            a <= p
            for a, p in zip(
                metrics.accepted_per_position, metrics.proposed_per_position, strict=True
            )
        )
        and metrics.num_accepted_draft_tokens <= metrics.num_draft_tokens
    )


class Knowing:
    """A drafter that has seen the answers, and proposes them with a wrong branch beside."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts = texts
        self.calls = 0

    def propose(self, tokens: list[int], max_tokens: int) -> list[list[int]]:
        self.calls += 1
        known = [text for text in self.texts if text[: len(tokens)] == tokens]
        return [text[len(tokens) :][:max_tokens] for text in known] + [[TEXT_TOKEN_IDS[-1]]]


def whole(output: RequestOutput) -> list[int]:
    return [*(output.prompt_token_ids or []), *output.outputs[0].token_ids]


# -- answers


@pytest.mark.parametrize(
    "config",
    [
        NGRAM,
        {**NGRAM, "tree_width": 3},
        SUFFIX,
        {**SUFFIX, "suffix_decoding_max_cached_requests": 0, "tree_width": 2},
        {"drafters": [NGRAM, SUFFIX]},
        {"drafters": [SUFFIX, NGRAM], "merge_drafters": True, "tree_width": 2},
        {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 2, 2], [3, 3, 4], [4, 9, 0]]},
        {"drafter": lambda tokens, max_tokens: tokens[:max_tokens]},
    ],
    ids=lambda config: json.dumps(config, default=lambda _: "function"),
)
def test_speculation_changes_no_answer(model: Path, plain: Engine, config: dict[str, Any]) -> None:
    engine = speculating(model, **config)
    expected = answers(plain)
    for _ in range(2):  # again with what the first run left behind
        outputs = answers(engine)
        assert [o.outputs for o in outputs] == [o.outputs for o in expected]
    assert engine.stats().speculative_decoding is not None


def test_a_draft_model_that_is_the_target_is_always_right(model: Path, plain: Engine) -> None:
    engine = speculating(model, model=str(model), quantization="none")
    for params in (text_params(temperature=0), text_params()):
        output = engine.generate("abc", params)[0]
        assert output.outputs == plain.generate("abc", params)[0].outputs
        assert metrics_of(output).draft_acceptance_rate == 1.0


def test_a_custom_drafter_is_asked_and_believed(model: Path, plain: Engine) -> None:
    expected = plain.generate("abc", text_params())[0]
    drafter = Knowing([whole(expected)])
    output = speculating(model, drafter=drafter, tree_width=2).generate("abc", text_params())[0]
    assert output.outputs == expected.outputs
    metrics = metrics_of(output)
    assert drafter.calls > 0 and metrics.num_spec_steps <= drafter.calls
    assert metrics.mean_acceptance_length == pytest.approx(K + 1, abs=0.5)
    assert is_consistent(metrics)


def test_streams_show_the_same_text(engine: Engine, plain: Engine) -> None:
    expected = plain.generate("abab", text_params())[0].outputs
    pieces = list(engine.stream("abab", text_params()))
    assert pieces[-1].outputs == expected
    assert len(pieces) < len(expected[0].token_ids)  # several tokens come at once


@pytest.mark.parametrize("length", [1.0, 2.5, K + 1.0])
def test_synthetic_acceptance_has_the_length_asked_for(model: Path, length: float) -> None:
    engine = speculating(
        model,
        drafter=lambda tokens, max_tokens: tokens[:1] * max_tokens,
        rejection_sample_method="synthetic",
        synthetic_acceptance_length=length,
    )
    params = [text_params(max_tokens=100, seed=i) for i in range(20)]
    engine.generate(["a"] * 20, params, use_tqdm=False)
    metrics = engine.stats().speculative_decoding
    assert metrics is not None
    assert metrics.mean_acceptance_length == pytest.approx(length, rel=0.1)


# -- metrics


def counts(**values: Any) -> Any:
    empty: dict[str, Any] = {
        "num_steps": 0,
        "num_draft_tokens": 0,
        "num_accepted_tokens": 0,
        "num_emitted_tokens": 0,
        "proposed_per_position": [],
        "accepted_per_position": [],
        "histogram": [],
        "num_predicted_draft_tokens": 0,
        "num_predicted_accepted_tokens": 0,
    }
    return SimpleNamespace(**(empty | values))


FIRST = {
    "num_steps": 3,
    "num_draft_tokens": 8,
    "num_accepted_tokens": 3,
    "num_emitted_tokens": 6,
    "num_predicted_draft_tokens": 5,
    "num_predicted_accepted_tokens": 2,
    "proposed_per_position": [3, 3, 2],
    "accepted_per_position": [2, 1],
    "histogram": [1, 1, 1],
}
SECOND = {
    "num_steps": 1,
    "num_draft_tokens": 4,
    "num_accepted_tokens": 4,
    "num_emitted_tokens": 5,
    "num_predicted_draft_tokens": 3,
    "num_predicted_accepted_tokens": 3,
    "proposed_per_position": [1, 1, 1, 1],
    "accepted_per_position": [1, 1, 1, 1],
    "histogram": [0, 0, 0, 0, 1],
}


def test_metrics_add_up() -> None:
    metrics = SpeculativeDecodingMetrics.from_counts([counts(**FIRST), counts(**SECOND)], K)
    assert metrics == SpeculativeDecodingMetrics(
        mean_acceptance_length=1 + 7 / 4,
        draft_acceptance_rate=7 / 12,
        acceptance_histogram=[1, 1, 1, 0, 1],
        num_spec_steps=4,
        num_accepted_draft_tokens=7,
        num_draft_tokens=12,
        num_spec_tokens=K,
        num_emitted_tokens=11,
        proposed_per_position=[4, 4, 3, 1],
        accepted_per_position=[3, 2, 1, 1],
        num_accepted_prediction_tokens=5,
        num_prediction_tokens=8,
    )


def test_metrics_without_drafts_are_zero() -> None:
    for given in ([], [counts()]):
        metrics = SpeculativeDecodingMetrics.from_counts(given, K)
        assert (metrics.mean_acceptance_length, metrics.draft_acceptance_rate) == (1.0, 0.0)
        assert metrics.acceptance_histogram == [0] * (K + 1)


def core_output(*parts: dict[str, Any], error: str = "", finished: bool = True) -> Any:
    return SimpleNamespace(
        outputs=[
            SimpleNamespace(
                **(
                    {
                        "index": i,
                        "new_token_ids": [7],
                        "new_logprobs": [],
                        "finish_reason": "length",
                        "stop_token_id": None,
                        "acceptance": None,
                        "tapped_states": None,
                    }
                    | part
                )
            )
            for i, part in enumerate(parts)
        ],
        new_prompt_logprobs=[],
        finished=finished,
        error=error,
        raise_engine_failure=lambda: None,
        metrics=RequestMetrics(),
    )


def make_request(n: int, num_spec_tokens: int | None) -> Request:
    params = SamplingParams(n=n)
    request = Request(
        "x",
        prompt=None,
        prompt_token_ids=[1],
        params=params,
        prepared=None,  # type: ignore[arg-type]
        tokenizer=None,
        num_spec_tokens=num_spec_tokens,
    )
    request.take(n)
    return request


def test_a_request_sums_over_its_completions() -> None:
    request = make_request(2, K)
    request.apply(core_output({"acceptance": counts(**FIRST)}, {"acceptance": counts(**SECOND)}))
    output = request.take_output()
    assert metrics_of(output) == SpeculativeDecodingMetrics.from_counts(
        [counts(**FIRST), counts(**SECOND)], K
    )
    for completion, values in zip(output.outputs, (FIRST, SECOND), strict=True):
        assert completion.speculative_decoding == SpeculativeDecodingMetrics.from_counts(
            [counts(**values)], K
        )


def test_without_speculation_there_are_no_metrics(plain: Engine) -> None:
    output = plain.generate("abc", text_params())[0]
    assert output.metrics is not None and output.metrics.speculative_decoding is None
    assert output.outputs[0].speculative_decoding is None
    stats = plain.stats()
    assert stats.speculative_decoding is None and stats.drafters == []


def test_metrics_of_requests_and_engine_agree(model: Path) -> None:
    engine = speculating(model, drafters=[NGRAM, SUFFIX])
    outputs = answers(engine)
    stats = engine.stats()
    assert stats.speculative_decoding is not None
    for output in outputs:
        metrics = metrics_of(output)
        assert is_consistent(metrics)
        parts = [completion.speculative_decoding for completion in output.outputs]
        assert sum(p.num_draft_tokens for p in parts if p) == metrics.num_draft_tokens
    assert is_consistent(stats.speculative_decoding)
    for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        total = sum(getattr(metrics_of(output), name) for output in outputs)
        assert getattr(stats.speculative_decoding, name) == total
    assert [drafter.name for drafter in stats.drafters] == ["ngram", "suffix"]
    assert (
        sum(d.num_accepted_tokens for d in stats.drafters)
        == stats.speculative_decoding.num_accepted_draft_tokens
        > 0
    )
    lookup, suffix = stats.drafters
    assert lookup.memory_bytes == 0 < suffix.memory_bytes  # suffix remembers finished answers
    assert 0 < stats.draft_seconds < stats.forward_seconds + stats.draft_seconds


def test_what_the_length_policy_chose_is_counted(model: Path, engine: Engine) -> None:
    adaptive = make_engine(model, NGRAM)
    answers(adaptive)
    stats = adaptive.stats()
    assert stats.draft_policy is not None and stats.speculative_decoding is not None
    policy = stats.draft_policy
    assert policy.num_decisions >= policy.num_without_drafts > 0  # the first ones measure
    assert policy.num_drafted_tokens >= policy.num_verified_tokens
    assert policy.num_verified_tokens == stats.speculative_decoding.num_draft_tokens
    assert stats.speculative_decoding.num_spec_tokens == 16
    assert json.loads(json.dumps(dataclasses.asdict(policy)))["num_probes"] == policy.num_probes
    assert engine.stats().draft_policy is None  # of fixed length


def test_metrics_are_there_when_a_stop_string_ends_the_answer(engine: Engine) -> None:
    text = engine.generate("abab", text_params())[0].outputs[0].text
    output = engine.generate("abab", text_params(stop=text[20:24]))[0]
    assert output.outputs[0].finish_reason == "stop"
    metrics = metrics_of(output)
    assert metrics.num_spec_steps > 0 and is_consistent(metrics)


def test_metrics_survive_json(engine: Engine) -> None:
    metrics = metrics_of(engine.generate("abab", text_params())[0])
    fields = json.loads(json.dumps(dataclasses.asdict(metrics)))
    assert SpeculativeDecodingMetrics(**fields) == metrics


# -- one request's own length


@pytest.mark.parametrize("num_tokens", [0, 1, 2, K])
def test_a_request_may_draft_less(engine: Engine, plain: Engine, num_tokens: int) -> None:
    params = text_params(num_speculative_tokens=num_tokens)
    output = engine.generate("abababab", params)[0]
    assert output.outputs == plain.generate("abababab", text_params())[0].outputs
    metrics = metrics_of(output)
    assert metrics.num_spec_tokens == num_tokens and is_consistent(metrics)
    assert (metrics.num_draft_tokens == 0) == (num_tokens == 0)


@pytest.mark.parametrize("value", [-1, 1.5, True, "3", 2**31])
def test_a_wrong_length_of_a_request_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="num_speculative_tokens"):
        SamplingParams(num_speculative_tokens=value)


def test_a_request_cannot_draft_more_than_the_engine(engine: Engine, plain: Engine) -> None:
    with pytest.raises(ValueError, match="num_speculative_tokens.*more than the engine's"):
        engine.generate("abc", text_params(num_speculative_tokens=K + 1))
    assert not engine.has_unfinished_requests()
    for num_tokens in (0, 1, 1000):  # limits that an engine without drafts keeps to
        off = plain.generate("abc", text_params(num_speculative_tokens=num_tokens))[0]
        assert off.outputs == plain.generate("abc", text_params())[0].outputs


# -- errors of one request


class FailsOn:
    """A drafter that raises for prompts beginning with one token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def propose(self, tokens: list[int], max_tokens: int) -> list[int]:
        if tokens[0] == self.token:
            raise KeyError("nothing to propose")
        return tokens[:max_tokens]


def test_an_error_of_the_core_is_raised_with_the_requests_name() -> None:
    with pytest.raises(RuntimeError, match="request x: out of luck"):
        make_request(1, K).apply(core_output({"finish_reason": "error"}, error="out of luck"))


def test_a_failing_drafter_ends_its_request_alone(model: Path, plain: Engine) -> None:
    bad = plain.tokenizer.encode("!")[0]
    engine = speculating(model, drafter=FailsOn(bad))
    expected = plain.generate("abc", text_params())[0].outputs
    good = engine.stream("abc", text_params())
    with pytest.raises(RuntimeError, match="nothing to propose"):
        list(engine.stream("!bc", text_params()))
    assert list(good)[-1].outputs == expected
    with pytest.raises(RuntimeError, match="nothing to propose"):
        engine.generate(["abc", "!bc", "xyz"], text_params())
    assert not engine.has_unfinished_requests()
    assert engine.generate("abc", text_params())[0].outputs == expected


def test_steps_raise_the_error_and_lose_nothing(model: Path, plain: Engine) -> None:
    bad = plain.tokenizer.encode("!")[0]
    engine = speculating(model, drafter=FailsOn(bad))
    for name, prompt in (("a", "abc"), ("bad", "!bc"), ("z", "xyz")):
        engine.add_request(prompt, text_params(), request_id=name)
    finished, errors = {}, []
    while engine.has_unfinished_requests():
        try:
            for output in engine.step():
                if output.finished:
                    finished[output.request_id] = output.outputs
        except RuntimeError as error:
            errors.append(str(error))
    assert len(errors) == 1 and "request bad" in errors[0]
    assert finished == {
        name: plain.generate(prompt, text_params())[0].outputs
        for name, prompt in (("a", "abc"), ("z", "xyz"))
    }


def test_tokens_outside_the_vocabulary_are_an_error(model: Path) -> None:
    engine = speculating(model, drafter=lambda tokens, max_tokens: [10**6])
    with pytest.raises(RuntimeError, match="1000000"):
        engine.generate("abc", text_params())


def test_a_custom_drafter_works_from_several_threads(model: Path, plain: Engine) -> None:
    engine = speculating(model, drafter=lambda tokens, max_tokens: tokens[:max_tokens])
    prompts = [f"thread {i}" for i in range(6)]
    expected = [plain.generate(prompt, text_params())[0].outputs for prompt in prompts]
    results: list[Any] = [None] * len(prompts)

    def work(i: int) -> None:
        results[i] = engine.generate(prompts[i], text_params())[0].outputs

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert results == expected


# -- vLLM's class


def test_llm_takes_a_config_or_older_arguments(model: Path) -> None:
    config = {**NGRAM, "num_speculative_tokens": 3}
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN}
    llm = LLM(str(model), speculative_config=config, **options)
    expected = llm.generate("abab", text_params(), use_tqdm=False)[0]
    with pytest.warns(DeprecationWarning) as caught:
        older = LLM(
            str(model),
            speculative_model="[ngram]",
            num_speculative_tokens=3,
            ngram_prompt_lookup_max=3,
            use_v2_block_manager=True,
            **options,
        )
    assert any("speculative_config=" in str(warning.message) for warning in caught)
    assert all(warning.filename == __file__ for warning in caught)
    output = older.generate("abab", text_params(), use_tqdm=False)[0]
    assert output.outputs == expected.outputs
    assert metrics_of(output).num_spec_tokens == metrics_of(expected).num_spec_tokens == 3
    assert [drafter.name for drafter in older.engine.stats().drafters] == ["ngram"]
