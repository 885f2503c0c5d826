"""Everything that scripts written for vLLM use: names, helpers, metrics, the engine."""

import asyncio
import importlib
import json
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import specdec_native
from specdec_native import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    CompilationConfig,
    Counter,
    CUDAGraphMode,
    EngineArgs,
    Gauge,
    Histogram,
    LLMEngine,
    SamplingParams,
    Vector,
    cleanup_dist_env_and_memory,
    destroy_distributed_environment,
    destroy_model_parallel,
)
from specdec_vllm.arguments import engine_options
from specdec_vllm.missing import (
    CONFIG_NAMES,
    ENUM_NAMES,
    MISSING_METHODS,
    MISSING_NAMES,
    REFUSED_NAMES,
)
from tiny_text_model import OPTIONS, PARAMS, texts

ROOT = Path(__file__).parents[3]


# -- names


def test_names_for_types_import_and_are_refused_when_made() -> None:
    pages = (ROOT / "docs" / "vllm.md").read_text()
    for name, advice in REFUSED_NAMES.items():
        found: Any = getattr(specdec_native, name)
        assert found is getattr(specdec_native, name)
        assert found | None and not isinstance(3, found)
        derived = type("Derived", (found,), {})
        for refused in (found, derived):
            with pytest.raises(ValueError, match=f"{name} is not supported") as error:
                refused("a", number=1)
            assert str(error.value).endswith(advice)
        assert f"| `{name}` | {advice} |" in pages
    for name in (*CONFIG_NAMES, *ENUM_NAMES):
        assert f"`{name}`" in pages


def test_configurations_are_dicts(model: Path) -> None:
    config = CompilationConfig(level=3, cudagraph_mode=CUDAGraphMode.FULL)
    assert config == {"level": 3, "cudagraph_mode": "FULL"}
    config.use_inductor = False
    assert (config["use_inductor"], config.level) == (False, 3)
    with pytest.raises(AttributeError, match="CompilationConfig was not given mode"):
        config.mode  # noqa: B018
    profiler = specdec_native.ProfilerConfig(profiler="torch")
    assert engine_options({"compilation_config": config, "profiler_config": profiler}) == {}


def test_names_that_are_not_here_come_with_advice() -> None:
    for name, advice in MISSING_NAMES.items():
        with pytest.raises(ImportError) as error:
            exec(f"from specdec_native import {name}")
        assert name in str(error.value) and advice in str(error.value)
        assert not hasattr(importlib.import_module("specdec_vllm.llm"), name)
    with pytest.raises(AttributeError, match="nonsense"):
        specdec_native.nonsense  # noqa: B018
    for name in (*specdec_native.__all__, *specdec_native._HOMES):
        assert getattr(specdec_native, name) is not None


def test_methods_that_are_not_here_come_with_advice(llm: LLM) -> None:
    for name, advice in MISSING_METHODS.items():
        assert not hasattr(llm, name)
        with pytest.raises(AttributeError) as error:
            getattr(llm, name)(["text"])
        assert f"LLM.{name}" in str(error.value) and advice in str(error.value)
        with pytest.raises(AttributeError, match=f"LLMEngine.{name} is not supported"):
            getattr(llm.llm_engine, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        llm.nonsense  # type: ignore[attr-defined] # noqa: B018


def test_helpers_that_scripts_call_at_their_ends(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM(model, **OPTIONS)
    llm.start_profile()
    assert "no profiler" in caplog.text
    llm.stop_profile()
    assert llm.reset_prefix_cache(reset_running_requests=True)
    llm.myself = llm  # type: ignore[attr-defined] # a cycle, which only the collector ends
    freed: list[int] = []
    importlib.import_module("weakref").finalize(llm, freed.append, 1)
    del llm
    cleanup_dist_env_and_memory()
    assert freed == [1]


def test_scripts_end_engines_as_in_vllm(model: Path) -> None:
    llm = LLM(model, **OPTIONS)
    destroy_model_parallel()
    destroy_distributed_environment()
    del llm.llm_engine.model_executor.driver_worker
    del llm.llm_engine.model_executor
    assert llm.generate("abc", PARAMS)  # what only drops references has ended nothing
    llm.llm_engine.engine_core.shutdown(timeout=1.0)
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("abc", PARAMS)


def test_the_world_is_as_large_as_the_ranks(model: Path, llm: LLM) -> None:
    assert llm.get_world_size() == 1
    assert LLM(model, **OPTIONS, pipeline_parallel_size=2).get_world_size() == 2


def test_a_model_that_slept_answers_as_before(model: Path, llm: LLM) -> None:
    given = LLM(model, **OPTIONS, enable_sleep_mode=True)
    given.get_tokenizer().chat_template = "{{ messages[0].content }}"
    given.sleep(level=0)
    assert not given.llm_engine.is_sleeping()
    for level in (1, 2):
        given.sleep(level=level)
        given.sleep()
        assert given.llm_engine.is_sleeping()
        with pytest.raises(RuntimeError, match="closed"):
            given.generate("abc", PARAMS)
        given.wake_up(tags=["weights"])
        given.wake_up(tags=["kv_cache"])
        assert not given.llm_engine.is_sleeping()
        assert texts(given.generate("abc", PARAMS)) == texts(llm.generate("abc", PARAMS))
    assert given.get_tokenizer().chat_template == "{{ messages[0].content }}"


def test_the_asyncio_engine_has_vllms_methods(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        args = AsyncEngineArgs(model=str(model), **OPTIONS, enable_log_requests=True)
        engine = AsyncLLM.from_engine_args(args, stat_loggers=[specdec_native.LoggingStatLogger])
        assert "stat_loggers are ignored" in caplog.text
        await engine.check_health()
        await engine.do_log_stats()
        assert engine.is_running and not engine.errored and not engine.is_stopped
        assert engine.dead_error is None
        assert not await engine.is_tracing_enabled()
        assert await engine.get_supported_tasks() == ("generate",)
        assert await engine.get_vllm_config() is engine.vllm_config
        assert await engine.reset_prefix_cache(reset_running_requests=True)
        options: dict[str, Any] = {"data_parallel_rank": 0, "trace_headers": {}, "priority": 3}
        outputs = engine.generate("abcdef", PARAMS, "1", prompt_text=None, **options)
        assert [o.finished async for o in outputs][-1]
        assert not await engine.abort(["1", "2"], internal=True)
        await engine.sleep()
        assert await engine.is_sleeping() and engine.errored
        await engine.wake_up()
        kwargs = {"truncate_prompt_tokens": 3}
        last = [o async for o in engine.generate("abcdef", PARAMS, "2", tokenization_kwargs=kwargs)]
        assert last[-1].prompt_token_ids == engine.engine.tokenizer.encode("def")
        with pytest.raises(AttributeError, match=r"AsyncLLM\.encode is not supported"):
            engine.encode  # noqa: B018
        with pytest.raises(ValueError, match="reasoning_ended is not supported"):
            engine.generate("abc", PARAMS, "3", reasoning_ended=True)
        engine.shutdown(timeout=1.0)
        assert engine.errored and isinstance(engine.dead_error, RuntimeError)

    asyncio.run(main())


def test_the_engine_is_stepped_as_in_vllm(model: Path, llm: LLM) -> None:
    engine = LLMEngine.from_engine_args(EngineArgs(model=str(model), **OPTIONS))
    expected = texts(llm.generate(["abc", "xyz"], PARAMS))
    assert engine.add_request("0", "abc", PARAMS) == "0"
    engine.add_request(request_id="1", prompt="xyz", params=PARAMS, priority=0)
    engine.add_request("2", "never", PARAMS, arrival_time=time.time())
    assert engine.get_num_unfinished_requests() == 3
    engine.abort_request(["2", "unknown"])
    found: dict[str, str] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[output.request_id] = output.outputs[0].text
    assert found == {"0": expected[0], "1": expected[1]}
    assert engine.get_num_unfinished_requests() == 0
    with pytest.raises(AttributeError, match=r"no attribute 'stream': use \.engine\.stream"):
        engine.stream  # type: ignore[attr-defined] # noqa: B018
    assert texts(list(engine.engine.stream("abc", PARAMS))[-1:]) == expected[:1]
    with pytest.raises(TypeError, match="request_id must be a string.*prompt, params"):
        engine.add_request("abc" and 3, "abc", PARAMS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"lora_request.*merge"):
        engine.add_request("3", "abc", PARAMS, lora_request=object())


def test_what_was_resolved_is_found_by_vllms_names(model: Path, llm: LLM) -> None:
    config = json.loads((model / "config.json").read_text())
    engine = llm.llm_engine
    assert engine.model_config.max_model_len == llm.model_config.max_model_len == 96
    assert engine.model_config.hf_config.num_hidden_layers == config["num_hidden_layers"]
    assert engine.model_config.get_vocab_size() == config["vocab_size"]
    assert engine.vllm_config.model_config.dtype == "float32"
    assert engine.vllm_config.cache_config.block_size == 16
    assert engine.vllm_config.scheduler_config.max_num_batched_tokens == 512
    assert engine.vllm_config.parallel_config.world_size == 1
    assert engine.vllm_config.speculative_config is None
    with pytest.raises(AttributeError, match="no_such_key"):
        engine.model_config.hf_config.no_such_key  # noqa: B018


# -- requests


def test_priorities_are_checked(model: Path, llm: LLM) -> None:
    given = LLM(model, **OPTIONS, scheduling_policy="priority")
    expected = texts(llm.generate(["abc", "xyz"], PARAMS))
    for priority in (1, [2, -1], (0, 0)):
        assert texts(given.generate(["abc", "xyz"], PARAMS, priority=priority)) == expected
    conversation = [{"role": "user", "content": "hi"}]
    assert len(given.chat([conversation] * 2, PARAMS, priority=[1, 0])) == 2
    assert len(given.chat(conversation, PARAMS, priority=[1])) == 1
    for wrong in ([1], [1, 2, 3]):
        with pytest.raises(ValueError, match=r"priority has \d entries for 2 prompts"):
            given.generate(["abc", "xyz"], PARAMS, priority=wrong)
        with pytest.raises(ValueError, match=r"priority has \d entries for 2 prompts"):
            given.chat([conversation] * 2, PARAMS, priority=wrong)
    for bad in ("ab", 1.5):
        with pytest.raises(ValueError, match="priority must be an integer"):
            given.generate(["abc", "xyz"], PARAMS, priority=bad)


def test_priorities_without_a_policy_are_ignored_with_one_warning(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM(model, **OPTIONS)
    expected = texts(llm.generate(["abc", "xyz"], PARAMS, priority=[0, 0]))
    assert not caplog.text
    assert texts(llm.generate(["abc", "xyz"], PARAMS, priority=[0, 1])) == expected
    conversation = [{"role": "user", "content": "hi"}]
    assert llm.chat(conversation, PARAMS, priority=5)
    llm.llm_engine.add_request("0", "abc", PARAMS, priority=-3)
    assert caplog.text.count('priority is ignored: make the engine with scheduling_policy="') == 1
    for wrong, message in (([1], "1 entries for 2 prompts"), ("ab", "must be an integer")):
        with pytest.raises(ValueError, match=message):
            llm.generate(["abc", "xyz"], PARAMS, priority=wrong)


def test_empty_media_are_text(llm: LLM) -> None:
    expected = texts(llm.generate("abc", PARAMS))
    prompt: Any = {"prompt": "abc", "multi_modal_data": {}, "mm_processor_kwargs": {}}
    assert texts(llm.generate(prompt, PARAMS)) == expected
    assert texts(llm.generate("abc", PARAMS, lora_request=[None])) == expected
    with pytest.raises(ValueError, match="multi_modal_data"):
        llm.generate(prompt | {"multi_modal_data": {"image": 1}}, PARAMS)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "decoder prompt cannot be empty"),
        ({"prompt_token_ids": [999999]}, "out of vocabulary"),
        ({"prompt_token_ids": [5] * 96}, "maximum context length is 96 tokens"),
        ({"prompt_token_ids": [5] * 96}, "longer than the maximum model length of 96"),
    ],
)
def test_errors_have_the_words_others_look_for(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(prompt, PARAMS)


def test_older_parameters_may_have_their_neutral_values() -> None:
    neutral: dict[str, Any] = {
        "use_beam_search": False,
        "length_penalty": 1.0,
        "early_stopping": False,
    }
    assert SamplingParams(temperature=0.5, n=2, best_of=2, **neutral) == SamplingParams(
        temperature=0.5, n=2
    )
    for name in (*neutral, "best_of"):
        wrong: dict[str, Any] = {name: 3}
        with pytest.raises(ValueError, match=name):
            SamplingParams(n=2, **wrong)


def test_arrival_is_on_the_wall_clock(llm: LLM) -> None:
    before = time.time()
    metrics = llm.generate("abc", PARAMS)[0].metrics
    assert metrics is not None
    assert before - 1 < metrics.arrival_time < metrics.finished_time < time.time() + 1


def test_metrics_of_a_request_have_vllms_names(llm: LLM) -> None:
    output = llm.generate("abc", SamplingParams(n=2, max_tokens=5, ignore_eos=True))[0]
    metrics = output.metrics
    assert metrics is not None and metrics.num_generation_tokens == 10
    assert metrics.queued_ts == metrics.arrival_time
    assert metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts
    assert metrics.first_token_ts <= metrics.last_token_ts == metrics.last_token_time
    assert metrics.first_token_latency == metrics.first_token_ts - metrics.queued_ts
    for name in ("encoder_prompt", "encoder_prompt_token_ids", "kv_transfer_params"):
        assert getattr(output, name) is None
    assert output.outputs[0].routed_experts is None
    states = [o.metrics for o in llm.stream("abc", PARAMS)]
    assert [m.num_generation_tokens for m in states if m][-1] == 20
    assert all(m.num_generation_tokens == 0 for m in states if m and not m.finished_time)


def test_options_of_the_tokenizer_come_with_a_request(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    for kwargs, kept in (
        ({"truncate_prompt_tokens": 2}, "ef"),
        ({"truncate_prompt_tokens": -1}, "abcdef"),
        ({"truncation": True, "max_length": 2}, "ab"),
        ({"add_special_tokens": False}, "abcdef"),
    ):
        for prompts in ("abcdef", ["abcdef"], [{"prompt": "abcdef"}]):
            output = llm.generate(prompts, PARAMS, tokenization_kwargs=kwargs)[0]  # type: ignore[arg-type]
            assert output.prompt_token_ids == tokenizer.encode(kept)
            assert output.prompt == "abcdef"
    ids = [5, 6, 7]
    output = llm.generate(ids, PARAMS, tokenization_kwargs={"max_length": 1})[0]
    assert output.prompt_token_ids == ids
    with pytest.raises(ValueError, match="tokenization_kwargs is not supported.*get_tokenizer"):
        llm.chat([{"role": "user", "content": "a"}], PARAMS, tokenization_kwargs={"padding": True})
    with pytest.raises(ValueError, match="return_offsets_mapping"):
        llm.generate("a", PARAMS, tokenization_kwargs={"return_offsets_mapping": True})


# -- helpers


def test_helpers_do_what_their_names_say(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = specdec_native.get_tokenizer(str(model), tokenizer_mode="auto")
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"
    for resolve in (specdec_native.resolve_chat_template, specdec_native.resolve_hf_chat_template):
        template = resolve(tokenizer, chat_template=None, tools=None, model_config=None)
        assert template == tokenizer.chat_template
    tokenizer.chat_template = None
    assert specdec_native.resolve_chat_template(tokenizer) is None
    drawn = []
    for _ in range(2):
        specdec_native.set_random_seed(7)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]
    assert specdec_native.random_uuid() != specdec_native.random_uuid()
    with socket.socket() as server:
        server.bind(("", specdec_native.get_open_port()))
    assert socket.inet_aton(specdec_native.get_ip())
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.7")
    assert specdec_native.get_ip() == "10.0.0.7"


def test_the_platform_is_the_device_of_engines(llm: LLM) -> None:
    platform = specdec_native.current_platform
    assert platform.device_type == llm.engine.model_info().device.partition(":")[0] == "cpu"
    assert platform.is_cpu() and not platform.is_cuda() and not platform.is_rocm()
    assert platform.device_count() == 1 and platform.get_device_name()


def test_loggers_say_some_things_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = specdec_native.init_logger("specdec_native.a_script")
    for _ in range(2):
        logger.warning_once("only %s", "once")
    logger.warning("again")
    assert caplog.messages == ["only once", "again"]


# -- metrics


def test_metrics_have_vllms_names(model: Path) -> None:
    llm = LLM(model, **OPTIONS, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    outputs = llm.generate([[7, 8, 9] * 14] * 2, PARAMS)
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    values = {name: m.value for name, m in metrics.items() if isinstance(m, (Counter, Gauge))}
    assert values["vllm:prompt_tokens"] == sum(len(o.prompt_token_ids or []) for o in outputs)
    assert values["vllm:prefix_cache_hits"] == sum(o.num_cached_tokens or 0 for o in outputs)
    assert values["vllm:generation_tokens"] == 2 * 20
    assert values["vllm:request_success"] == 2
    assert values["vllm:num_requests_running"] == 0
    drafts = [o.metrics.speculative_decoding for o in outputs if o.metrics]
    for name, attribute in {
        "num_drafts": "num_spec_steps",
        "num_draft_tokens": "num_draft_tokens",
        "num_accepted_tokens": "num_accepted_draft_tokens",
    }.items():
        total = sum(getattr(d, attribute) for d in drafts)
        assert values[f"vllm:spec_decode_{name}"] == total
    by_position = metrics["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert isinstance(by_position, Vector) and len(by_position.values) == 3
    assert sum(by_position.values) == values["vllm:spec_decode_num_accepted_tokens"]
    assert metrics["vllm:prompt_tokens"].labels["model_name"] == str(model)
    tokens = metrics["vllm:iteration_tokens_total"]
    assert isinstance(tokens, Histogram)
    assert list(tokens.buckets)[:3] == ["1.0", "8.0", "16.0"]
    assert tokens.buckets["+Inf"] == tokens.count == llm.engine.stats().num_steps
    assert list(tokens.buckets.values()) == sorted(tokens.buckets.values())


def test_without_speculation_there_are_no_metrics_of_drafts(llm: LLM) -> None:
    assert not any("spec_decode" in metric.name for metric in llm.get_metrics())
    assert llm.engine.stats().speculative_decoding is None


# -- a script

SCRIPT = """
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams


def process(engine: LLMEngine, prompts):
    request_id = 0
    while prompts or engine.has_unfinished_requests():
        if prompts:
            prompt, params = prompts.pop(0)
            engine.add_request(str(request_id), prompt, params)
            request_id += 1
        outputs: list[RequestOutput] = engine.step()
        for output in outputs:
            if output.finished:
                print("finished", output.request_id, len(output.outputs))


if __name__ == "__main__":
    args = EngineArgs(model=MODEL, dtype="half", enforce_eager=True, max_model_len=90)
    process(
        LLMEngine.from_engine_args(args),
        [
            ("A robot may not", SamplingParams(temperature=0.0, logprobs=1)),
            ("To be or not", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2)),
            ("What is", SamplingParams(n=2, temperature=0.8, top_p=0.95)),
        ],
    )
"""


def test_an_engine_script_runs_with_its_import_changed(model: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    source = SCRIPT.replace("from vllm", "from specdec_native").replace("MODEL", repr(str(model)))
    script.write_text(source)
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["finished 0 1", "finished 1 1", "finished 2 2"]
