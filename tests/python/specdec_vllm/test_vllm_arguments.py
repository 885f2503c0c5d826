"""Arguments of vLLM: taken, ignored or refused, by name, as an object and from a command line."""

import argparse
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

import specdec_native
from specdec_native import (
    LLM,
    EngineArgs,
    FlexibleArgumentParser,
    LLMEngine,
    StructuredOutputsConfig,
)
from specdec_vllm.arguments import ENGINE_ARGUMENTS, engine_options
from specdec_vllm.tables import TABLES
from tiny_text_model import OPTIONS, PARAMS, texts

# -- arguments


# Defaults of vLLM 0.33 that are neither None nor empty, and values its tests and examples give.
GIVEN: dict[str, Any] = {
    "async_scheduling": True,
    "attention_config": {"backend": "FLASH_ATTN"},
    "compilation_config": {"mode": 0},
    "config_format": "auto",
    "convert": "auto",
    "data_parallel_backend": "mp",
    "disable_chunked_mm_input": False,
    "disable_log_stats": False,
    "disable_sliding_window": False,
    "distributed_executor_backend": "mp",
    "guided_decoding_backend": "auto",
    "kernel_config": {"enable_flashinfer_autotune": False},
    "limit_mm_per_prompt": {"image": 5},
    "load_format": "safetensors",
    "logprobs_mode": "raw_logprobs",
    "max_logprobs": 20,
    "max_num_scheduled_tokens": 64,
    "mm_processor_cache_gb": 4,
    "nnodes": 1,
    "per_request_spec_decode_metrics": "detailed",
    "runner": "generate",
    "scheduling_policy": "priority",
    "swap_space": 4,
    "tensor_parallel_size": 1,
    "tokenizer_mode": "auto",
    "worker_cls": "auto",
}


def test_vllms_arguments_change_no_answer(model: Path, llm: LLM) -> None:
    given = LLM(model, **OPTIONS, **GIVEN)
    assert texts(given.generate("abc", PARAMS)) == texts(llm.generate("abc", PARAMS))


def test_every_argument_is_in_one_table() -> None:
    tables = (*TABLES["ignored_arguments"].values(), *TABLES["fixed_arguments"].values())
    names = [*ENGINE_ARGUMENTS, *itertools.chain(*tables)]
    assert len(names) == len(set(names)) > 250
    assert set(names) < {field.name for field in dataclasses.fields(EngineArgs)}


def test_what_is_ignored_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="specdec_native"):
        assert engine_options({"swap_space": 4, "nnodes": 1, "kernel_config": None}) == {}
    assert "ignored, as the cache is this engine's own: swap_space" in caplog.text
    assert "kernel_config" not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"enable_lora": True}, ValueError, "enable_lora=True.*merge the adapter"),
        ({"enable_prompt_embeds": True}, ValueError, "enable_prompt_embeds=True.*token ids"),
        ({"task": "embed"}, ValueError, "task='embed'.*only text generation"),
        ({"runner": "pooling"}, ValueError, "runner='pooling'.*only text generation"),
        ({"device_ids": [1]}, ValueError, r'device_ids=\[1\].*device="cuda:N"'),
        ({"disable_sliding_window": True}, ValueError, "disable_sliding_window=True"),
        ({"watermark_config": {"key": 1}}, ValueError, "watermark_config"),
        (
            {"guided_decoding_disable_any_whitespace": True},
            ValueError,
            r'structured_outputs_config=\{"disable_any_whitespace": True\}',
        ),
        ({"enable_lroa": True}, TypeError, "enable_lroa.*enable_lora"),
    ],
)
def test_what_would_change_answers_is_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine_options(arguments)


@pytest.mark.parametrize("length", [-1, "auto"])
def test_an_automatic_length_is_what_the_cache_holds(model: Path, length: Any) -> None:
    engine = LLM(model, dtype="float32", max_model_len=length, num_gpu_blocks_override=3).llm_engine
    assert engine.vllm_config.model_config.max_model_len == 48
    with pytest.raises(ValueError, match="Please reduce the length"):
        engine.add_request("0", [5] * 58, PARAMS)


def test_options_of_structured_outputs_hold_for_all_requests(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = StructuredOutputsConfig(backend="xgrammar", disable_fallback=True)
    config.disable_any_whitespace = True
    options = engine_options({"structured_outputs_config": config})
    assert options == {"structured_outputs_config": {"disable_any_whitespace": True}}
    assert caplog.text.count("structured_outputs_config: ") == 2
    assert "backend is ignored" in caplog.text and "disable_fallback is ignored" in caplog.text
    caplog.clear()
    for backend in ("auto", "guidance", None):
        engine_options({"structured_outputs_config": {"backend": backend}})
    assert not caplog.text
    for wrong, message in (
        ({"disable_whitespace": True}, "no key 'disable_whitespace'"),
        ({"disable_any_whitespace": "x"}, "disable_any_whitespace.*must be True or False"),
        ("xgrammar", "must be a dict"),
    ):
        with pytest.raises(ValueError, match=message):
            LLM(model, **OPTIONS, structured_outputs_config=wrong)


# -- arguments as an object


def test_engine_args_make_every_class(model: Path, llm: LLM) -> None:
    args = EngineArgs(model=str(model), **OPTIONS, swap_space=2)
    assert (args.data_parallel_size, args.max_num_seqs) == (1, None)
    expected = texts(llm.generate(["abc", "xyz"], PARAMS))
    for same in (LLM(**dataclasses.asdict(args)), LLM.from_engine_args(args)):
        assert texts(same.generate(["abc", "xyz"], PARAMS)) == expected
    assert LLMEngine.from_engine_args(args).model_config.max_model_len == 96
    with pytest.raises(TypeError, match="nonsense"):
        EngineArgs(model=str(model), nonsense=1)


def test_engine_args_come_from_a_command_line(model: Path) -> None:
    parser = FlexibleArgumentParser()
    parser.add_argument("--test_type", default="none")
    EngineArgs.add_cli_args(parser).set_defaults(max_num_seqs=4)  # type: ignore[attr-defined]
    line = ["--model", str(model), "--max_model_len=96", "--enforce-eager", "--dtype", "half"]
    line += [
        "-tp",
        "2",
        "-dp=1",
        "--revision",
        "7",
        "--enable-prefix-caching",
        "False",
        "--test_type",
        "x",
    ]
    line += ["--speculative-config", '{"method": "ngram"}', "--gpu_memory_utilization", "0.5"]
    found = parser.parse_args(line)
    assert found.test_type == "x"
    expected = EngineArgs(
        model=str(model),
        max_model_len=96,
        max_num_seqs=4,
        tensor_parallel_size=2,
        data_parallel_size=1,
        enforce_eager=True,
        dtype="half",
        revision="7",
        enable_prefix_caching=False,
        speculative_config={"method": "ngram"},
        gpu_memory_utilization=0.5,
    )
    assert EngineArgs.from_cli_args(args=found) == expected  # type: ignore[attr-defined]
    defaults = EngineArgs.add_cli_args(FlexibleArgumentParser())  # type: ignore[attr-defined]
    assert EngineArgs.from_cli_args(defaults.parse_args([])) == EngineArgs()  # type: ignore[attr-defined]
    assert EngineArgs().model == "Qwen/Qwen3-0.6B"
    some = argparse.Namespace(model="m", seed=3)
    assert EngineArgs.from_cli_args(some) == EngineArgs("m", seed=3)  # type: ignore[attr-defined]
    with pytest.raises(SystemExit):
        parser.parse_args(["--model", "x", "--max-modle-len", "3"])


def test_a_configuration_is_of_an_engine(model: Path, llm: LLM) -> None:
    args: Any = EngineArgs(model=str(model), **OPTIONS)
    config = args.create_engine_config(usage_context=specdec_native.UsageContext.LLM_CLASS)
    assert isinstance(config, specdec_native.VllmConfig)
    for found in (config.model_config, args.create_model_config()):
        assert (found.max_model_len, found.get_vocab_size()) == (
            96,
            llm.model_config.info.vocab_size,
        )
    engine = LLMEngine.from_vllm_config(config)
    with pytest.raises(TypeError, match=r"create_engine_config\(\)"):
        LLMEngine.from_vllm_config(llm.llm_engine.vllm_config)  # type: ignore[arg-type]
    expected = texts(llm.generate("abc", PARAMS))
    assert texts(list(engine.engine.stream("abc", PARAMS))[-1:]) == expected
    engine.sleep()
    engine.wake_up()
    assert texts(list(engine.engine.stream("abc", PARAMS))[-1:]) == expected
