"""Law 1 with draft heads: they never change an answer, however good their drafts are."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import make_heads
import tiny_text_model
import train_heads
from specdec_native import Engine, SamplingParams
from test_cuda import DEVICES
from test_speculation_law import (
    NUM_REQUESTS,
    SAMPLING,
    Answer,
    Setting,
    answer,
    check,
    check_batch_size_table,
    check_cached,
    check_coming_and_going,
    check_preempted,
    metrics_of,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")

Head = Callable[[str], Path]
Config = Callable[..., dict[str, Any]]

METHODS = ["eagle", "eagle3", "p_eagle", "pard", "dflash", "dspark", "medusa", "mlp", "merged"]
SHAPES = [(1, 1), (4, 1), (3, 3)]  # no more than the heads of Medusa and the MLP speculator have
POLICIES = ["fixed", "auto"]


@pytest.fixture(scope="module")
def toy(toy_target: Path) -> Setting:
    """Prompts are texts of the language that the target has learned."""
    setting = Setting(toy_target, train_heads.NUM_WORDS, "float32", 40)
    texts = train_heads.ToyLanguage().texts(NUM_REQUESTS, 66, seed=9).tolist()
    setting.prompts = [text[: 6 + (i * 5) % 60] for i, text in enumerate(texts)]
    return setting


@pytest.fixture(scope="module")
def config_of(trained_head: Head) -> Config:
    """speculative_config of a method; `merged` grafts drafts of n-grams and of EAGLE-3."""

    def drafter(name: str) -> dict[str, Any]:
        variant = make_heads.HEADS[train_heads.TRAINED[name]]
        return {
            "method": variant.method,
            "model": str(trained_head(name)),
            "parallel_drafting": variant.kind in ("p_eagle", "pard"),
        }

    def config(method: str, tokens: int, width: int, policy: str = "fixed") -> dict[str, Any]:
        shape = {
            "num_speculative_tokens": tokens,
            "tree_width": width,
            "draft_length_policy": policy,
        }
        if method != "merged":
            return shape | drafter(method)
        ngram = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
        return shape | {"drafters": [ngram, drafter("eagle3")], "merge_drafters": True}

    return config


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_without_heads(
    toy: Setting, config_of: Config, method: str, tokens: int, width: int, sampling: str
) -> None:
    with check(toy, sampling, config_of(method, tokens, width)) as engine:
        histogram = metrics_of(engine).acceptance_histogram
    # Drafts were accepted in no step, in part and as a whole.
    assert all(count > 0 for count in histogram) or sampling == "everything"
    assert sum(histogram) > 0


@pytest.fixture(scope="module")
def constrained(
    toy_target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[dict[str, Any] | None], list[Answer]]:
    """A function from a speculative_config to answers that keep to a grammar."""
    model = tiny_text_model.add_byte_text(toy_target, tmp_path_factory.mktemp("grammar") / "toy")
    regex = "[a-h]{4,9}(, )?(true|false)[i-p ]{3,9}"
    sampling = [
        SamplingParams(
            structured_outputs={"regex": regex},
            temperature=i % 2,
            seed=i,
            logprobs=2,
            max_tokens=24,
        )
        for i in range(12)
    ]
    prompts = [[3 + (i * j) % 60 for j in range(4 + i)] for i in range(12)]

    def run(config: dict[str, Any] | None) -> list[Answer]:
        with Engine(model, dtype="float32", max_model_len=96, speculative_config=config) as engine:
            outputs = engine.generate(prompts, sampling)
        for output in outputs:
            text = output.outputs[0].text
            assert output.outputs[0].finish_reason == "length" or re.fullmatch(regex, text)
        return [answer(output) for output in outputs]

    return run


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_answers_under_a_grammar(
    constrained: Callable[[dict[str, Any] | None], list[Answer]],
    config_of: Config,
    method: str,
    width: int,
) -> None:
    assert constrained(config_of(method, 3, width)) == constrained(None)


@pytest.mark.parametrize("options", [{"max_num_seqs": 1}, {"max_num_seqs": 8}, {"num_threads": 1}])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_batches(
    toy: Setting, config_of: Config, method: str, policy: str, options: dict[str, Any]
) -> None:
    check(toy, "t1", config_of(method, 4, 2, policy), **options).close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_preemption_and_small_chunks(
    toy: Setting, config_of: Config, method: str, policy: str
) -> None:
    check_preempted(toy, config_of(method, 4, 2, policy))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_prefix_cache_hits(toy: Setting, config_of: Config, method: str, policy: str) -> None:
    check_cached(toy, config_of(method, 4, 2, policy))


@pytest.mark.parametrize("method", METHODS)
def test_requests_that_come_and_go(toy: Setting, config_of: Config, method: str) -> None:
    check_coming_and_going(toy, config_of(method, 4, 2))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS[:-1])
def test_a_request_may_draft_less_or_nothing(
    toy: Setting, config_of: Config, method: str, policy: str
) -> None:
    """Those that draft hit prefixes of those that do not, for which the head never ran."""
    params = toy.params("t1")
    for i, one in enumerate(params):
        one.num_speculative_tokens = [0, 2, None][i % 3]
    with toy.engine(speculative_config=config_of(method, 4, 1, policy)) as engine:
        for turn in range(3):
            prompts = toy.prompts[turn:] + toy.prompts[:turn]
            expected = toy.plain("t1")[turn:] + toy.plain("t1")[:turn]
            turned = toy.params("t1")[turn:] + toy.params("t1")[:turn]
            for given, one in zip(params, turned, strict=True):
                one.num_speculative_tokens = given.num_speculative_tokens
            outputs = engine.generate(prompts, turned)
            assert [answer(output) for output in outputs] == expected
            for given, output in zip(params, outputs, strict=True):
                spec = output.metrics.speculative_decoding if output.metrics else None
                if given.num_speculative_tokens == 0:
                    assert spec is None or spec.num_draft_tokens == 0
                if given.num_speculative_tokens == 2:
                    assert spec is None or sum(spec.acceptance_histogram[3:]) == 0


@pytest.mark.parametrize("method", METHODS)
def test_batch_size_table_turns_heads_off_and_on(
    toy: Setting, config_of: Config, method: str
) -> None:
    check_batch_size_table(toy, config_of(method, 4, 1))


@pytest.mark.parametrize("verification", ["standard", "block"])
@pytest.mark.parametrize("method", METHODS[:-1])
def test_weighed_drafts(toy: Setting, config_of: Config, method: str, verification: str) -> None:
    """Greedy answers stay; sampled ones depend on what is drafted, but not on the batch."""
    config = config_of(method, 4, 1) | {"rejection_sample_method": verification}
    check(toy, "greedy", config).close()
    answers = []
    for options in ({}, {"max_num_seqs": 5}):
        with toy.engine(speculative_config=config, **options) as engine:
            outputs = engine.generate(toy.prompts, toy.params("t1"))
            answers.append([answer(output) for output in outputs])
            assert all(metrics_of(engine).acceptance_histogram)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}])
@pytest.mark.parametrize("method", METHODS[:-1])
def test_rounded_targets(
    toy: Setting, config_of: Config, method: str, options: dict[str, Any]
) -> None:
    setting = Setting(toy.model, train_heads.NUM_WORDS, "bfloat16", 24, **options)
    setting.prompts = toy.prompts
    with check(setting, "t1", config_of(method, 3, 3)) as engine:
        assert metrics_of(engine).num_accepted_draft_tokens > 0


@pytest.mark.parametrize("quantization", ["none", "int4"])
@pytest.mark.parametrize("method", METHODS[:-1])
def test_rounded_heads(toy: Setting, config_of: Config, method: str, quantization: str) -> None:
    config = config_of(method, 3, 2) | {"quantization": quantization}
    with check(toy, "t1", config) as engine:
        assert metrics_of(engine).num_accepted_draft_tokens > 0


def test_bad_words_and_allowed_tokens_reach_the_drafts(toy: Setting, config_of: Config) -> None:
    params = [
        SamplingParams(
            temperature=0.8, seed=i, max_tokens=20, logprobs=2, allowed_token_ids=list(range(3, 40))
        )
        for i in range(NUM_REQUESTS)
    ]
    with toy.engine() as engine:
        plain = [answer(output) for output in engine.generate(toy.prompts, params)]
    for method in METHODS:
        with toy.engine(speculative_config=config_of(method, 3, 2)) as engine:
            outputs = engine.generate(toy.prompts, params)
            assert [answer(output) for output in outputs] == plain
            assert metrics_of(engine).num_accepted_draft_tokens > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu(toy: Setting, config_of: Config, method: str, device: str) -> None:
    setting = Setting(toy.model, train_heads.NUM_WORDS, "bfloat16", 10, num_requests=6)
    setting.options["device"] = device
    setting.prompts = toy.prompts[10:16]
    with check(setting, "t1", config_of(method, 3, 2), max_model_len=96) as engine:
        assert metrics_of(engine).num_accepted_draft_tokens > 0
