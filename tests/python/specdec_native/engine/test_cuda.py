"""The CUDA backend, on the emulated device and on a GPU where there is one, against the CPU's."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logprobs import engine_logprobs, random_tokens
from make_checkpoints import ONE_OF_EACH
from specdec_native import LLM, Engine, RequestOutput, SamplingParams, _core
from test_quantization import ACTIVATION_ERROR, relative_error, with_all_experts
from test_speculation_law import METHODS, Setting, answer, check, metrics_of, speculative

Checkpoint = Callable[[str], Path]

DEVICES = [
    pytest.param(
        "emulated",
        marks=pytest.mark.skipif(
            not _core.build_info().has_emulated_device, reason="built without the emulated device"
        ),
    ),
    pytest.param("cuda", marks=pytest.mark.skipif(bool(_core.gpu_problem()), reason="no GPU")),
]
# A cache that is made at once, whatever the device's memory.
SMALL: dict[str, Any] = {"num_kv_blocks": 64, "max_num_batched_tokens": 64}
NUM_TOKENS = 48


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def deterministic_model(checkpoint: Checkpoint, variant: str, tmp_path: Path) -> Path:
    """The variant, with every expert in use: rounding must not move tokens between experts."""
    return with_all_experts(checkpoint(variant), tmp_path / "model")


# -- against the CPU


@pytest.mark.parametrize(
    "variant",
    [*ONE_OF_EACH, "llama_biases", "llama_no_gqa", "opt_post_norm", "opt_no_bias", "phi3_longrope",
     "gpt_neox_serial", "mixtral_stacked", "gemma2_no_caps", "stablelm_parallel",
     "gemma4_effective", "gemma4_moe"],
)  # fmt: skip
def test_every_family_rounds_no_more_than_the_cpu_does(
    checkpoint: Checkpoint, device: str, variant: str, tmp_path: Path
) -> None:
    model = deterministic_model(checkpoint, variant, tmp_path)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    exact = engine_logprobs(model, tokens, dtype="float32", device="cpu")
    cpu = engine_logprobs(model, tokens, dtype="bfloat16", device="cpu")
    found = engine_logprobs(
        model, tokens, dtype="bfloat16", device=device, num_kv_blocks=8, max_num_batched_tokens=20
    )
    assert 1e-4 < relative_error(found, exact) < 1.5 * relative_error(cpu, exact)


@pytest.mark.parametrize("variant", ["llama_tied", "phi3", "gpt_neox", "mixtral"])
def test_made_up_weights_are_the_cpus(
    checkpoint: Checkpoint, device: str, variant: str, tmp_path: Path
) -> None:
    """Fused, cut, tied and stacked matrices, which the device makes for itself."""
    (tmp_path / "config.json").write_text((checkpoint(variant) / "config.json").read_text())
    tokens = random_tokens(NUM_TOKENS, seed=3)
    shared: dict[str, Any] = {"load_format": "dummy"}
    exact = engine_logprobs(tmp_path, tokens, dtype="float32", device="cpu", **shared)
    cpu = engine_logprobs(tmp_path, tokens, dtype="bfloat16", device="cpu", **shared)
    found = engine_logprobs(
        tmp_path,
        tokens,
        dtype="bfloat16",
        device=device,
        num_kv_blocks=8,
        max_num_batched_tokens=20,
        **shared,
    )
    assert 1e-4 < relative_error(found, exact) < 1.5 * relative_error(cpu, exact)


@pytest.mark.parametrize("variant", ["llama", "qwen3", "opt", "mixtral"])
def test_greedy_tokens_are_the_cpus_but_for_near_ties(
    checkpoint: Checkpoint, device: str, variant: str, tmp_path: Path
) -> None:
    """The CPU judges each token given the same ones before it."""
    model = deterministic_model(checkpoint, variant, tmp_path)
    prompts = [random_tokens(5 + 3 * i, seed=i) for i in range(6)]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with Engine(model, dtype="bfloat16", device=device, **SMALL) as engine:
        outputs = engine.generate(prompts, params)
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    texts = [prompt + tokens for prompt, tokens in zip(prompts, answers, strict=True)]
    with Engine(model, dtype="bfloat16", device="cpu") as judge:
        judged = judge.generate(texts, SamplingParams(max_tokens=1, prompt_logprobs=1))
    num_same = 0
    for prompt, text, output in zip(prompts, texts, judged, strict=True):
        assert output.prompt_logprobs is not None and len(text) == len(prompt) + 12
        for token, position in zip(
            text[len(prompt) :], output.prompt_logprobs[len(prompt) :], strict=True
        ):
            assert position is not None
            best = max(entry.logprob for entry in position.values())
            assert best - position[token].logprob < 0.1
            num_same += position[token].rank == 1
    assert num_same >= 0.95 * 6 * 12


def test_sampled_tokens_are_mostly_the_cpus(checkpoint: Checkpoint, device: str) -> None:
    """The noise is the same, and the logits are nearly."""
    model = checkpoint("llama")
    prompts = [random_tokens(9, seed=i) for i in range(48)]
    params = [SamplingParams(temperature=1, seed=i, max_tokens=1) for i in range(48)]

    def draw(**options: Any) -> list[int]:
        with Engine(model, dtype="bfloat16", **SMALL, **options) as engine:
            outputs = engine.generate(prompts, params)
        return [output.outputs[0].token_ids[0] for output in outputs]

    pairs = zip(draw(device=device), draw(device="cpu"), strict=True)
    assert sum(found == expected for found, expected in pairs) >= 45


@pytest.mark.parametrize("dtype", ["half", "float16"])
def test_float16_rounds_less_than_bfloat16(checkpoint: Checkpoint, device: str, dtype: str) -> None:
    model = checkpoint("llama")
    tokens = random_tokens(NUM_TOKENS, seed=3)
    exact = engine_logprobs(model, tokens, dtype="float32", device="cpu")
    bfloat16 = engine_logprobs(model, tokens, dtype="bfloat16", device="cpu")
    found = engine_logprobs(model, tokens, dtype=dtype, device=device, **SMALL)
    assert 1e-5 < relative_error(found, exact) < relative_error(bfloat16, exact) / 4


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [("llama", "bfloat16"), ("llama_bfloat16", "bfloat16"), ("llama_float16", "float16")],
)
def test_the_dtype_is_the_checkpoints_or_bfloat16(
    checkpoint: Checkpoint,
    device: str,
    variant: str,
    dtype: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "specdec_native"):
        info = Engine(checkpoint(variant), device=device, **SMALL).model_info()
    assert info.dtype == info.kv_cache_dtype == dtype
    assert info.device == ("cuda:0" if device == "cuda" else device)
    assert ("running in bfloat16" in caplog.text) == (variant == "llama")


@pytest.mark.parametrize("variant", ["llama", "qwen2", "opt", "mixtral"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_weights_are_the_cpus(
    checkpoint: Checkpoint, device: str, variant: str, quantization: str, tmp_path: Path
) -> None:
    """Whether inputs are rounded to 8 bits as well is the device's choice."""
    model = deterministic_model(checkpoint, variant, tmp_path)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    options: dict[str, Any] = {"dtype": "bfloat16", "quantization": quantization, **SMALL}
    exact = engine_logprobs(model, tokens, dtype="bfloat16", device="cpu")
    cpu = engine_logprobs(model, tokens, device="cpu", **options)
    found = engine_logprobs(model, tokens, device=device, **options)
    assert relative_error(found, cpu) < ACTIVATION_ERROR
    assert relative_error(found, exact) > 1e-3


@pytest.mark.parametrize("variant", ["llama", "mistral", "opt"])
def test_an_int8_cache_rounds_no_more_than_the_cpus(
    checkpoint: Checkpoint, device: str, variant: str
) -> None:
    model = checkpoint(variant)
    tokens = random_tokens(NUM_TOKENS, seed=3)
    options: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_dtype": "int8", **SMALL}
    exact = engine_logprobs(model, tokens, dtype="float32", device="cpu")
    cpu = engine_logprobs(model, tokens, device="cpu", **options)
    found = engine_logprobs(model, tokens, device=device, **options)
    assert relative_error(found, exact) < 1.5 * relative_error(cpu, exact)


# -- the laws: tokens equal, logprobs bit-equal

NUM_REQUESTS = 5
FORMATS: dict[str, dict[str, Any]] = {
    "float16": {"dtype": "float16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "fp8": {"quantization": "fp8"},
    "int8-cache": {"kv_cache_dtype": "int8"},
}


def make_setting(checkpoint: Checkpoint, device: str, variant: str, **options: Any) -> Setting:
    return Setting(
        checkpoint(variant),
        160,
        options.pop("dtype", "bfloat16"),
        8,
        num_requests=NUM_REQUESTS,
        device=device,
        **{"num_kv_blocks": 64, "max_num_batched_tokens": 128, **options},
    )


@pytest.fixture(scope="module")
def tiny(checkpoint: Checkpoint, device: str) -> Setting:
    return make_setting(checkpoint, device, "llama")


@pytest.mark.parametrize(
    ("tokens", "width", "sampling"), [(3, 1, "everything"), (3, 1, "greedy"), (4, 3, "everything")]
)
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_those_without_speculation(
    tiny: Setting, method: str, tokens: int, width: int, sampling: str
) -> None:
    with check(tiny, sampling, speculative(method, tiny.model, tokens, width)) as engine:
        assert metrics_of(engine).num_draft_tokens > 0


BATCHES: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "small chunks": {"max_num_batched_tokens": 7, "max_num_seqs": 3},
    "preempted": {"num_kv_blocks": 12, "max_num_batched_tokens": 20},
    "eager": {"enforce_eager": True},
    "lengths that pay": {},
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("method", ["suffix", "draft_model"])
def test_answers_do_not_depend_on_batch_chunks_cache_or_graphs(
    tiny: Setting, method: str, batch: str
) -> None:
    policy = "auto" if batch == "lengths that pay" else "fixed"
    config = speculative(method, tiny.model, 4, 2, policy)
    with check(tiny, "t1", config, **BATCHES[batch]) as engine:
        outputs = engine.generate(tiny.prompts, tiny.params("t1"))
        assert [answer(output) for output in outputs] == tiny.plain("t1")
        assert batch == "preempted" or any(output.num_cached_tokens for output in outputs)


@pytest.mark.parametrize("batch", ["alone", "small chunks", "eager"])
def test_plain_answers_do_not_depend_on_batch_chunks_or_graphs(tiny: Setting, batch: str) -> None:
    with tiny.engine(enable_prefix_caching=False, **BATCHES[batch]) as engine:
        outputs = engine.generate(tiny.prompts, tiny.params("everything"))
    assert [answer(output) for output in outputs] == tiny.plain("everything")


@pytest.mark.parametrize("name", FORMATS)
def test_other_formats_keep_the_law(checkpoint: Checkpoint, device: str, name: str) -> None:
    setting = make_setting(checkpoint, device, "qwen3", **FORMATS[name])
    check(setting, "t1", speculative("merged", setting.model, 4, 2)).close()


@pytest.mark.parametrize(
    "variant",
    ["mistral", "opt", "mixtral", "gemma2", "gemma3", "phi3_longrope", "qwen3_moe", "granite",
     "olmo2", "gpt_neox", "cohere2", "gpt_oss", "glm4_moe", "qwen2_moe", "hunyuan_dense",
     "apertus", "ministral3", "nemotron", "gemma4_effective", "gemma4_moe"],
)  # fmt: skip
def test_other_families_keep_the_law(checkpoint: Checkpoint, device: str, variant: str) -> None:
    setting = make_setting(checkpoint, device, variant)
    check(setting, "t1", speculative("merged", setting.model, 4, 2)).close()


def test_faster_kernels_may_be_asked_for(tiny: Setting) -> None:
    with tiny.engine(deterministic=False) as engine:
        outputs = engine.generate(tiny.prompts, tiny.params("greedy"))
    for output, (tokens, _) in zip(outputs, tiny.plain("greedy"), strict=True):
        assert len(output.outputs[0].token_ids) == len(tokens)


# -- memory


def memory_of(model: Path, device: str, **options: Any) -> _core.ModelInfo:
    options = {"dtype": "bfloat16", "max_num_batched_tokens": 64, **options}
    with Engine(model, device=device, **options) as engine:
        return engine.model_info()


@pytest.mark.skipif(not _core.build_info().has_emulated_device, reason="no emulated device")
def test_the_cache_is_the_share_of_the_memory_that_is_left(checkpoint: Checkpoint) -> None:
    model = checkpoint("llama")
    small, large = (
        memory_of(model, "emulated", gpu_memory_utilization=share) for share in (0.25, 0.5)
    )
    block_bytes = large.kv_cache_bytes // (large.num_kv_blocks + 1)
    gained = large.kv_cache_bytes - small.kv_cache_bytes
    assert gained == pytest.approx(512 << 20, abs=2 * block_bytes)  # of 2 GiB
    # A draft model has its part in every block, of the same memory.
    draft = speculative("draft_model", model, 3, 1)
    both = memory_of(model, "emulated", gpu_memory_utilization=0.5, speculative_config=draft)
    assert both.num_kv_blocks == pytest.approx(large.num_kv_blocks / 2, rel=0.02)
    assert both.kv_cache_bytes == pytest.approx(large.kv_cache_bytes, rel=0.02)


def test_no_memory_for_a_cache_says_what_to_change(checkpoint: Checkpoint, device: str) -> None:
    with pytest.raises(MemoryError, match="raise gpu_memory_utilization"):
        Engine(checkpoint("llama"), device=device, gpu_memory_utilization=1e-4)
    if device == "emulated":  # a GPU has room for all the tokens of so small a model
        with pytest.raises(ValueError, match="kv_cache_memory_bytes: .* is the most"):
            Engine(checkpoint("llama"), device=device, kv_cache_memory_bytes=4 << 30)


# -- what a user does


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt"),
        ([1, 10**6], {}, "vocabulary"),
        ([1] * 64, {}, "max_model_len"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"logit_bias": {10**6: 1.0}}, "logit_bias"),
    ],
)
def test_a_bad_request_is_refused_and_the_engine_goes_on(
    checkpoint: Checkpoint, device: str, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with Engine(checkpoint("llama"), device=device, max_model_len=64, **SMALL) as engine:
        good = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        expected = engine.generate([[1, 2, 3]], good)[0].outputs[0].token_ids
        with pytest.raises(ValueError, match=message):
            engine.generate([[1, 2, 3], prompt], SamplingParams(**options))
        assert engine.generate([[1, 2, 3]], good)[0].outputs[0].token_ids == expected


def test_float32_is_refused(checkpoint: Checkpoint, device: str) -> None:
    with pytest.raises(ValueError, match="dtype.*float32.*'bfloat16'.*device='cpu'"):
        Engine(checkpoint("llama"), device=device, dtype="float32")


def test_llm_takes_vllms_gpu_arguments(model: Path, device: str) -> None:
    def run(**options: Any) -> RequestOutput:
        llm = LLM(model, device=device, dtype="half", max_model_len=64, **options)
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        return llm.generate("abc", params, use_tqdm=False)[0]

    graphs = run(num_gpu_blocks_override=16)
    eager = run(gpu_memory_utilization=0.2, enforce_eager=True)
    assert graphs.outputs[0].token_ids == eager.outputs[0].token_ids


def test_the_command_line_runs_on_it(model: Path, device: str) -> None:
    command = ["generate", "abc", "--model", str(model), "--max-tokens", "4", "--json"]
    command += ["--device", device, "--dtype", "bfloat16", "--gpu-memory-utilization", "0.2"]
    result = subprocess.run(
        [sys.executable, "-m", "specdec_native", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["outputs"][0]["outputs"][0]["token_ids"]) <= 4
