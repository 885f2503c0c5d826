"""`"method": "auto"`: which drafters it stands for, and that they draft together."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import train_heads
from conftest import HeadMaker
from specdec_native import Engine
from specdec_native.checkpoints.head_registry import heads_of
from specdec_native.speculation.auto_drafters import (
    brought_drafters,
    name_drafters,
    text_of_drafters,
)
from specdec_native.speculation.target_of_head import find_target
from speculative_configs import find_config, parse
from test_speculation_law import NUM_REQUESTS, Setting, check

SUFFIX = {"method": "suffix"}
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
MTP = {"method": "mtp"}


def named(config: dict[str, Any], *brought: dict[str, Any]) -> list[dict[str, Any]]:
    drafters: list[dict[str, Any]] = name_drafters(config, find_config, brought)["drafters"]
    return drafters


@pytest.mark.parametrize("auto", [{"method": "auto"}, {"drafters": "auto"}])
def test_it_stands_for_drafters_of_one_tree(auto: dict[str, Any]) -> None:
    config = name_drafters(
        {**auto, "num_speculative_tokens": 5, "tree_width": 2}, find_config, [MTP]
    )
    assert config == {
        "drafters": [SUFFIX, NGRAM, MTP],
        "merge_drafters": True,
        "num_speculative_tokens": 5,
        "tree_width": 2,
    }
    options = parse(**auto)
    assert [drafter.method for drafter in options.drafters] == ["suffix", "ngram"]
    assert options.num_speculative_tokens == 24
    assert "tree_width" not in options.fields
    assert name_drafters(auto, find_config, [MTP])["tree_width"] == 4
    apart = name_drafters({**auto, "merge_drafters": False}, find_config)
    assert apart["merge_drafters"] is False


def test_block_verification_gets_chains() -> None:
    block = {"rejection_sample_method": "block", "num_speculative_tokens": 4}
    for config in ({"method": "auto"}, {"method": "auto", "model": "org/small"}):
        assert not {"merge_drafters", "tree_width"} & parse(**config, **block).fields.keys()
    both = parse(method="auto", rejection_sample_method="standard", num_speculative_tokens=4)
    assert both.fields["merge_drafters"] is True


def test_keys_go_to_the_drafters_that_take_them() -> None:
    found = named(
        {
            "method": "auto",
            "quantization": "int4",
            "speculative_token_map": [3, 4],
            "prompt_lookup_max": 3,
            "suffix_decoding_max_cached_requests": 0,
        },
        MTP,
        {"method": "eagle3", "model": "HEAD"},
    )
    assert found == [
        {**SUFFIX, "suffix_decoding_max_cached_requests": 0},
        {"method": "ngram", "prompt_lookup_max": 3},
        {**MTP, "quantization": "int4", "speculative_token_map": [3, 4]},
        {"method": "eagle3", "model": "HEAD", "quantization": "int4"},
    ]


def test_a_model_of_the_users_replaces_what_the_target_brings() -> None:
    config = {"method": "auto", "model": "org/small", "revision": "v2", "min_confidence": 0.2}
    assert named(config, MTP) == [
        SUFFIX,
        NGRAM,
        {"model": "org/small", "revision": "v2", "min_confidence": 0.2},
    ]
    options = parse(**config)
    assert [drafter.method for drafter in options.drafters] == ["suffix", "ngram", "draft_model"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "auto", "drafters": [SUFFIX]}, "give either"),
        ({"method": "ngram", "drafters": "auto"}, "give either"),
        ({"method": "auto", "drafter": print}, 'list it in "drafters"'),
        ({"method": "auto", "treewidth": 2}, "did you mean 'tree_width'"),
        ({"method": "auto", "num_speculative_tokens": 0}, "at least 1"),
        ({"drafters": [{"method": "auto"}]}, r"drafters\[0\]"),
        ({"method": "auot"}, "unknown method 'auot'"),
    ],
)
def test_what_has_no_meaning_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**config)


# -- what a target brings


def edited(directory: Path, copy: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of a checkpoint with other tensors."""
    shutil.copytree(directory, copy)
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors")
    return copy


@pytest.mark.parametrize("target", ["qwen3_5", "qwen2", "glm4_moe"])
def test_the_layer_in_the_checkpoint_is_found(
    head: HeadMaker, checkpoint: Callable[[str], Path], target: str
) -> None:
    """Qwen3.5's is mtp.*, MiMo's model.mtp_layers.*, and GLM's is called as one more layer."""
    assert brought_drafters("x", head("mtp", target)) == [MTP]
    assert brought_drafters("x", checkpoint(target)) == []
    assert brought_drafters("x", head("mtp", target), has_weights=False) == []


def test_a_layer_that_the_engine_cannot_use_is_named(
    checkpoint: Callable[[str], Path],
    head: HeadMaker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def add(name: str) -> Callable[[dict[str, Tensor]], None]:
        return lambda tensors: tensors.update({name: torch.zeros(4)})

    of_llama = edited(checkpoint("llama"), tmp_path / "llama", add("mtp.fc.weight"))
    name = "mtp.layers.1.input_layernorm.weight"
    two_layers = edited(head("mtp", "qwen3_5"), tmp_path / "two", add(name))
    for directory, reason in ((of_llama, "LlamaForCausalLM"), (two_layers, name)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "specdec_native"):
            assert brought_drafters("x", directory) == []
        (record,) = caplog.records
        assert str(directory) in record.getMessage() and reason in record.getMessage()


def test_the_head_of_the_package_is_found_by_the_models_name(tmp_path: Path) -> None:
    best = heads_of("SmolLM2-135M-Instruct")[0]
    expected = [{"method": best.method, "model": best.name}]
    snapshot = tmp_path / "models--HuggingFaceTB--SmolLM2-135M-Instruct" / "snapshots" / "0a1b"
    fetched, other = tmp_path / "fetched", tmp_path / "SmolLM2-135M-Instruct-v2"
    for directory in (snapshot, fetched, other):
        directory.mkdir(parents=True)
        save_file({"model.norm.weight": torch.zeros(4)}, directory / "model.safetensors")
    provenance = {"name": "SmolLM2-135M-Instruct"}
    (fetched / "specdec_provenance.json").write_text(json.dumps(provenance))
    assert brought_drafters("HuggingFaceTB/SmolLM2-135M-Instruct", other) == expected
    assert brought_drafters("smollm2-135m-instruct", other) == expected
    for directory, brought in ((snapshot, expected), (fetched, expected), (other, [])):
        assert brought_drafters(str(directory), directory) == brought


def test_a_head_given_as_the_model_is_the_head_that_is_used(head: HeadMaker) -> None:
    directory = str(head("speculators_norm_after_residual"))
    for auto in ({"method": "auto"}, {"drafters": "auto"}):
        target = find_target(directory, None, auto, find_config)
        assert target.model == "tiny/target"
        methods = [drafter.method for drafter in parse(**target.speculative_config).drafters]
        assert methods == ["suffix", "ngram", "eagle3"]


# -- whole engines


@pytest.fixture(scope="module")
def toy(trained_head: Callable[[str], Path]) -> Setting:
    setting = Setting(trained_head("mtp"), train_heads.NUM_WORDS, "float32", 40)
    texts = train_heads.ToyLanguage().texts(NUM_REQUESTS, 66, seed=9).tolist()
    setting.prompts = [text[: 6 + (i * 5) % 60] for i, text in enumerate(texts)]
    return setting


@pytest.mark.parametrize("policy", ["fixed", "auto"])
def test_all_draft_and_no_answer_changes(
    toy: Setting, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"method": "auto", "draft_length_policy": policy, "num_speculative_tokens": 4}
    with caplog.at_level(logging.INFO, "specdec_native"), check(toy, "t1", config) as engine:
        drafters = {drafter.name: drafter for drafter in engine.stats().drafters}
        resolved = engine.vllm_config.speculative_config
    assert list(drafters) == ["suffix", "ngram", "mtp"]
    if policy == "fixed":
        assert drafters["mtp"].num_accepted_tokens > 0 < drafters["suffix"].num_accepted_tokens
    assert resolved is not None and resolved["drafters"] == [SUFFIX, NGRAM, MTP]
    assert 'speculative_config "auto": suffix, ngram, mtp' in caplog.text


def test_a_target_that_brings_nothing_drafts_from_its_own_text(
    checkpoint: Callable[[str], Path],
) -> None:
    with Engine(checkpoint("llama"), speculative_config={"drafters": "auto"}) as engine:
        assert [drafter.name for drafter in engine.stats().drafters] == ["suffix", "ngram"]


def test_names_for_a_log() -> None:
    head = {"method": "eagle3", "model": "HEAD"}
    assert text_of_drafters([SUFFIX, head, {"model": "org/small"}]) == (
        "suffix, eagle3 (HEAD), org/small"
    )
