"""Every mistake is an error that names it, and the engine goes on serving."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_native import Engine, SamplingParams, _core

PROMPT = [1, 2, 3]


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return Engine(model, dtype="float32", max_model_len=64)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt"),
        ([1] * 64, {}, "max_model_len"),
        ([1] * 1000, {}, "max_model_len"),
        ([1, 10**6], {}, "vocabulary"),
        ([1, -1], {}, "token|vocabulary"),
        (PROMPT, {"temperature": float("nan")}, "temperature"),
        (PROMPT, {"temperature": float("inf")}, "temperature"),
        (PROMPT, {"temperature": -1}, "temperature"),
        (PROMPT, {"top_p": 0}, "top_p"),
        (PROMPT, {"top_p": 1.1}, "top_p"),
        (PROMPT, {"top_k": -2}, "top_k"),
        (PROMPT, {"min_p": 1.5}, "min_p"),
        (PROMPT, {"presence_penalty": 2.5}, "presence_penalty"),
        (PROMPT, {"frequency_penalty": -2.5}, "frequency_penalty"),
        (PROMPT, {"repetition_penalty": 0}, "repetition_penalty"),
        (PROMPT, {"n": 0}, "n"),
        (PROMPT, {"max_tokens": 0}, "max_tokens"),
        (PROMPT, {"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        (PROMPT, {"logprobs": -2}, "logprobs"),
        (PROMPT, {"logit_bias": {10**6: 1.0}}, "logit_bias"),
        (PROMPT, {"allowed_token_ids": []}, "allowed_token_ids"),
        (PROMPT, {"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        (PROMPT, {"stop_token_ids": [10**6]}, "stop_token_ids"),
        ("a string", {}, "tokenizer"),
        ("half a \ud83d", {}, r"prompts\[1\].*surrogate"),
        ({"prompt": "\ude00"}, {}, r"prompts\[1\].*surrogate"),
        ({"text": "?"}, {}, "prompt"),
    ],
)
def test_a_bad_request_is_refused_and_the_engine_goes_on(
    engine: Engine, prompt: Any, options: dict[str, Any], message: str
) -> None:
    good = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    expected = engine.generate([PROMPT], good)[0].outputs[0].token_ids
    with pytest.raises(ValueError, match=message):
        engine.generate([PROMPT, prompt], SamplingParams(**options))
    assert not engine.has_unfinished_requests()
    assert engine.generate([PROMPT], good)[0].outputs[0].token_ids == expected


def test_tokens_allowed_twice_harm_nobody(model: Path, checkpoint: Callable[[str], Path]) -> None:
    """Also where a draft model has fewer tokens than are listed."""
    params = SamplingParams(max_tokens=6, seed=1, allowed_token_ids=[5, 9])
    good = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    draft = {"model": str(checkpoint("llama_small_vocab")), "draft_length_policy": "fixed"}
    for config in (None, {**draft, "num_speculative_tokens": 3}):
        engine = Engine(model, dtype="float32", max_model_len=64, speculative_config=config)
        expected = [
            engine.generate([PROMPT], each)[0].outputs[0].token_ids for each in (params, good)
        ]
        for count in (1, 145, 500):
            many = SamplingParams(max_tokens=6, seed=1, allowed_token_ids=[9] * count + [5])
            assert many.allowed_token_ids == [9, 5]
            outputs = engine.generate([PROMPT, PROMPT], [many, good])
            assert [output.outputs[0].token_ids for output in outputs] == expected


def test_a_bad_request_leaves_running_ones_alone(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    expected = list(engine.generate([PROMPT], params)[0].outputs[0].token_ids)
    engine.add_request(PROMPT, params, request_id="good")
    engine.step()
    with pytest.raises(ValueError, match="vocabulary"):
        engine.add_request([10**6], params, request_id="bad")
    with pytest.raises(ValueError, match="good"):
        engine.add_request(PROMPT, params, request_id="good")
    tokens: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.request_id == "good"
            tokens = list(output.outputs[0].token_ids)
    assert tokens == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "float8"}, ValueError, "dtype.*'bfloat16'"),
        ({"load_format": "tensorizer"}, ValueError, "load_format.*'dummy'"),
        ({"hf_overrides": "factor=4"}, ValueError, "hf_overrides must be a dict or a function"),
        ({"hf_overrides": {"vocab_size": {1, 2}}}, ValueError, "hf_overrides: not JSON"),
        ({"hf_overrides": {"vocab_size": "many"}}, ValueError, "vocab_size"),
        ({"hf_overrides": lambda config: None}, ValueError, "hf_overrides: the function must"),
        ({"generation_config": "nowhere"}, ValueError, "generation_config must be.*nowhere"),
        ({"override_generation_config": 3}, ValueError, "override_generation_config"),
        ({"dtype": "float32", "device": "cuda"}, ValueError, "dtype.*float32.*device='cpu'"),
        ({"device": "tpu"}, ValueError, "device"),
        ({"cpu_isa": "mmx"}, ValueError, "cpu_isa"),
        ({"block_size": 8}, ValueError, "block_size"),
        ({"max_model_len": 10**6}, ValueError, "max_model_len"),
        ({"num_kv_blocks": 1, "max_model_len": 64}, ValueError, "num_kv_blocks"),
        ({"kv_cache_memory_bytes": 100}, ValueError, "kv_cache_memory_bytes.*one block"),
        ({"max_num_seqs": 0}, ValueError, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, ValueError, "max_num_batched_tokens"),
        ({"gpu_memory_utilization": 0}, ValueError, r"gpu_memory_utilization.*in \(0, 1\]"),
        ({"gpu_memory_utilization": 1.5}, ValueError, r"gpu_memory_utilization.*in \(0, 1\]"),
        ({"gpu_memory_utilization": "90%"}, ValueError, "gpu_memory_utilization.*number"),
        ({"enforce_eager": 1}, ValueError, "enforce_eager.*True or False"),
        ({"deterministic": "no"}, ValueError, "deterministic.*True or False"),
        ({"num_threads": -1}, ValueError, "num_threads"),
        ({"max_num_batched_tokens": 2**30 + 1}, ValueError, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 2**31 - 1}, ValueError, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 2**31}, ValueError, "max_num_batched_tokens"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_a_bad_option_is_named(
    model: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Engine(model, **options)


def test_a_gpu_that_is_not_there_is_an_error_with_its_reason(model: Path) -> None:
    with pytest.raises(RuntimeError, match='cuda:99 is not available.*device="cpu"') as caught:
        Engine(model, device="cuda:99", dtype="bfloat16")
    assert _core.gpu_problem() in str(caught.value)


def copy_of(model: Path, target: Path) -> Path:
    shutil.copytree(model, target)
    return target


def test_an_unknown_family_lists_the_known_ones(model: Path, tmp_path: Path) -> None:
    broken = copy_of(model, tmp_path / "model")
    config = json.loads((broken / "config.json").read_text())
    config["architectures"] = ["FancyNewForCausalLM"]
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"FancyNewForCausalLM.* Llama,.* OPT,"):
        Engine(broken)


def test_a_truncated_checkpoint_names_the_file(model: Path, tmp_path: Path) -> None:
    broken = copy_of(model, tmp_path / "model")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.safetensors"):
        Engine(broken)


def test_ids_of_eos_outside_the_vocabulary_are_ignored(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = copy_of(model, tmp_path / "model")
    (odd / "generation_config.json").write_text('{"eos_token_id": [2, 160, 5000]}')
    engine = Engine(odd, max_model_len=64)
    assert engine.eos_token_ids == [2]
    assert "eos_token_id 160, 5000 of generation_config.json" in caplog.text
    assert len(engine.generate([PROMPT], SamplingParams(max_tokens=2))) == 1


def test_positions_beyond_what_the_cache_holds_cost_nothing(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 10**9}
    long = copy_of(model, tmp_path / "model")
    (long / "config.json").write_text(json.dumps(config))
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    answers = [
        Engine(path, num_kv_blocks=4).generate([PROMPT], params)[0].outputs[0].token_ids
        for path in (model, long)
    ]
    assert answers[0] == answers[1]


def test_a_missing_tokenizer_still_serves_token_ids(engine: Engine) -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        engine.chat([{"role": "user", "content": "hello"}])
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    assert len(engine.generate([PROMPT], params)[0].outputs[0].token_ids) == 2
