"""What vLLM's arguments make of a checkpoint: dummy weights, overrides, float16."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_text_model
from make_fp8 import KINDS
from specdec_native import LLM, Engine, SamplingParams
from specdec_native.checkpoints.hf_config import load_hf_config
from tiny_text_model import OPTIONS, PARAMS, texts


def test_dummy_weights_need_no_weight_files(model: Path, tmp_path: Path) -> None:
    files = tmp_path / "files"
    shutil.copytree(model, files, ignore=shutil.ignore_patterns("*.safetensors*"))
    dummy = LLM(files, load_format="dummy", **OPTIONS)
    again = LLM(model, load_format="dummy", **OPTIONS, num_threads=1)
    loaded = LLM(model, load_format="auto", **OPTIONS)
    answers = [one.generate(["abc", "xyz"], PARAMS) for one in (dummy, again, loaded)]
    assert texts(answers[0]) == texts(answers[1]) != texts(answers[2])
    info, expected = (one.engine.model_info() for one in (dummy, loaded))
    for name in ("num_parameters", "weight_bytes", "weight_format", "vocab_size"):
        assert getattr(info, name) == getattr(expected, name)
    with pytest.raises(ValueError, match="no model"):
        LLM(files, **OPTIONS)


def test_dummy_weights_are_held_as_asked_whatever_is_stored(model: Path) -> None:
    options: dict[str, Any] = {
        **OPTIONS,
        "load_format": "dummy",
        "hf_overrides": {"quantization_config": KINDS["static"].config},
    }
    assert Engine(model, **options).model_info().weight_format == "float32"
    assert Engine(model, quantization="int8", **options).model_info().weight_format == "int8"


@pytest.mark.parametrize("variant", ["opt", "mixtral", "qwen3", "qwen2"])
def test_every_family_has_dummy_weights(checkpoint: Callable[[str], Path], variant: str) -> None:
    options: dict[str, Any] = {"max_model_len": 64, "num_kv_blocks": 8}
    found = Engine(checkpoint(variant), load_format="dummy", **options)
    loaded = Engine(checkpoint(variant), **options)
    assert found.model_info().num_parameters == loaded.model_info().num_parameters
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
    output = found.generate([5, 6, 7], params)[0].outputs[0]
    for position in output.logprobs or []:
        assert all(-50 < entry.logprob <= 0 for entry in position.values())


def test_a_draft_model_of_dummy_weights_is_the_same_one(model: Path, tmp_path: Path) -> None:
    files = tmp_path / "files"
    shutil.copytree(model, files, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = {
        "model": str(files),
        "quantization": "none",
        "num_speculative_tokens": 3,
        "draft_length_policy": "fixed",
    }
    llm = LLM(files, load_format="dummy", **OPTIONS, speculative_config=config)
    metrics = llm.generate("abc", PARAMS)[0].outputs[0].speculative_decoding
    assert metrics is not None and metrics.draft_acceptance_rate == 1.0


def scaled(config: Any) -> Any:
    config.update({"max_position_embeddings": config.max_position_embeddings * 2})
    config.rms_norm_eps = 0.5
    return config


@pytest.mark.parametrize("as_function", [False, True])
def test_overrides_are_as_good_as_the_file(
    model: Path, tmp_path: Path, llm: LLM, as_function: bool
) -> None:
    config = json.loads((model / "config.json").read_text())
    overrides = {
        "max_position_embeddings": 2 * config["max_position_embeddings"],
        "rms_norm_eps": 0.5,
    }
    edited = tmp_path / "edited"
    shutil.copytree(model, edited)
    (edited / "config.json").write_text(json.dumps(config | overrides))
    given = LLM(model, dtype="float32", hf_overrides=scaled if as_function else overrides)
    written = LLM(edited, dtype="float32")
    found = texts(given.generate("abc", PARAMS))
    assert found == texts(written.generate("abc", PARAMS)) != texts(llm.generate("abc", PARAMS))
    assert given.model_config.max_model_len == written.model_config.max_model_len
    assert given.model_config.hf_config == json.loads((edited / "config.json").read_text())


def test_what_an_override_takes_away_is_gone(model: Path) -> None:
    """As if the keys were not in the file."""

    def without(config: Any) -> Any:
        del config["vocab_size"]
        config["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
        return config

    overrides = {"vocab_size": None, "rope_scaling": {"factor": 2.0}}
    with pytest.raises(ValueError, match="vocab_size"):
        Engine(model, hf_overrides={"vocab_size": None})
    with pytest.raises(ValueError, match="vocab_size"):
        Engine(model, hf_overrides=without)
    assert load_hf_config(model, without).get("vocab_size") is None
    assert "vocab_size" not in load_hf_config(model, overrides)


def test_a_generation_config_may_lie_elsewhere(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "generation"
    folder.mkdir()
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.3, "top_k": 7, "eos_token_id": [4, 5]})
    )
    llm = LLM(model, **OPTIONS, generation_config=str(folder))
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.3, top_k=7)
    assert llm.engine.eos_token_ids == [4, 5, tiny_text_model.END]
    over = LLM(
        model,
        **OPTIONS,
        generation_config=str(folder),
        override_generation_config={"temperature": 0.9, "max_new_tokens": 3},
    )
    expected = SamplingParams(temperature=0.9, top_k=7, max_tokens=3)
    assert over.get_default_sampling_params() == expected
    assert len(over.generate("abc")[0].outputs[0].token_ids) <= 3
    alone = LLM(
        model, **OPTIONS, generation_config="vllm", override_generation_config={"top_p": 0.5}
    )
    assert alone.get_default_sampling_params() == SamplingParams(top_p=0.5)


@pytest.mark.parametrize("dtype", ["half", "float16"])
def test_half_on_a_cpu_is_bfloat16(
    model: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    half = LLM(model, dtype=dtype, device="cpu", max_model_len=96)
    assert half.engine.model_info().dtype == "bfloat16"
    assert "running in bfloat16" in caplog.text
    bfloat16 = LLM(model, dtype="bfloat16", device="cpu", max_model_len=96)
    assert texts(half.generate("abc", PARAMS)) == texts(bfloat16.generate("abc", PARAMS))
