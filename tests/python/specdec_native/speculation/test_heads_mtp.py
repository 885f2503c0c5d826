"""The layer for multi-token prediction in a checkpoint: law 1, and faults that must be seen.

What it computes is compared in test_heads.py, what is accepted in test_heads_acceptance.py.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import head_oracles
import train_heads
from conftest import HeadMaker
from specdec_native import Engine
from specdec_native.errors import CheckpointError
from test_cuda import DEVICES
from test_heads import PROMPTS, TEXT, Pairs, check_drafts, check_logits, pair  # noqa: F401
from test_speculation_law import (
    NUM_REQUESTS,
    SAMPLING,
    Setting,
    answer,
    check,
    check_cached,
    check_coming_and_going,
    check_preempted,
    metrics_of,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")

POLICIES = ["fixed", "auto"]


@pytest.fixture(scope="module")
def toy(trained_head: Callable[[str], Path]) -> Setting:
    """A target in whose checkpoint the trained layer is."""
    setting = Setting(trained_head("mtp"), train_heads.NUM_WORDS, "float32", 40)
    texts = train_heads.ToyLanguage().texts(NUM_REQUESTS, 66, seed=9).tolist()
    setting.prompts = [text[: 6 + (i * 5) % 60] for i, text in enumerate(texts)]
    return setting


def config_of(tokens: int, width: int = 1, policy: str = "fixed", **more: Any) -> dict[str, Any]:
    return {
        "method": "mtp",
        "num_speculative_tokens": tokens,
        "tree_width": width,
        "draft_length_policy": policy,
        **more,
    }


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (5, 1), (3, 3)])
def test_answers_are_those_without_drafts(
    toy: Setting, tokens: int, width: int, sampling: str
) -> None:
    with check(toy, sampling, config_of(tokens, width)) as engine:
        histogram = metrics_of(engine).acceptance_histogram
    assert sum(histogram[1:]) > 0
    assert all(count > 0 for count in histogram) or sampling == "everything"


@pytest.mark.parametrize("policy", POLICIES)
def test_batches_preemption_and_prefix_hits(toy: Setting, policy: str) -> None:
    check(toy, "t1", config_of(4, 2, policy), max_num_seqs=1).close()
    check_preempted(toy, config_of(4, 2, policy))
    check_cached(toy, config_of(4, 2, policy))
    check_coming_and_going(toy, config_of(4, 2, policy))


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_weighed_drafts(toy: Setting, verification: str) -> None:
    """Sampled answers depend on what is drafted, but not on the batch."""
    config = config_of(4, rejection_sample_method=verification)
    check(toy, "greedy", config).close()
    answers = []
    for num_seqs in (32, 5):
        with toy.engine(speculative_config=config, max_num_seqs=num_seqs) as engine:
            outputs = engine.generate(toy.prompts, toy.params("t1"))
            answers.append([answer(output) for output in outputs])
            assert metrics_of(engine).num_accepted_draft_tokens > 0
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "more",
    [
        {"method": "qwen3_5_mtp"},
        {"method": "mimo_mtp"},
        {"quantization": "int4"},
        {"speculative_token_map": list(range(3, 64))},
    ],
)
def test_options(toy: Setting, more: dict[str, Any]) -> None:
    with check(toy, "t1", config_of(3, **more)) as engine:
        assert metrics_of(engine).num_accepted_draft_tokens > 0


def test_the_layer_may_be_in_another_checkpoint_of_the_model(
    toy: Setting, toy_hybrid: Path
) -> None:
    for model, speculative in (
        (toy.model, config_of(3)),
        (toy_hybrid, config_of(3, model=str(toy.model))),
    ):
        other = Setting(model, train_heads.NUM_WORDS, "float32", 20)
        other.prompts = toy.prompts
        with check(other, "greedy", speculative) as engine:
            histogram = metrics_of(engine).acceptance_histogram
        assert all(count > 0 for count in histogram)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", ["toy", "qwen2"])
def test_a_gpu(toy: Setting, head: HeadMaker, target: str, device: str) -> None:
    """Steps of the toy, which has states, come from the host; a MiMo's are the device's own."""
    model = toy.model if target == "toy" else head("mtp", target)
    setting = Setting(model, train_heads.NUM_WORDS, "bfloat16", 10, num_requests=6)
    setting.options["device"] = device
    setting.prompts = toy.prompts[10:16]
    with check(setting, "t1", config_of(3, 2), max_model_len=96) as engine:
        assert metrics_of(engine).num_accepted_draft_tokens > 0 or target != "toy"


# ---- planted faults: files or formulas that differ from the layer's by one of them


def edited(directory: Path, copy: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of a checkpoint with other tensors."""
    shutil.copytree(directory, copy)
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file({k: t.contiguous() for k, t in tensors.items()}, copy / "model.safetensors")
    return copy


class Swapped(head_oracles.Mtp):
    """The hidden state first."""

    def join(self, ids: Tensor, states: Tensor) -> Tensor:
        self.form = dataclasses.replace(self.form, features_first=True)
        return super().join(ids, states)


class Unnormed(head_oracles.Mtp):
    """Drafted rows hand on their state before the last norm."""

    def run(
        self, ids: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        self.form = dataclasses.replace(self.form, feeds_back_normed=False)
        return super().run(ids, states, positions, visible)


class Shifted(head_oracles.Mtp):
    """Rows read the state of one token further back."""

    def features(self, tokens: Tensor) -> Tensor:
        features = super().features(tokens)
        return torch.cat([features[:1], features[:-1]])


class OtherFeatures(head_oracles.Mtp):
    """Reads the target's state before its last norm, or after it, as the family does not."""

    def __init__(self, directory: Path, target: head_oracles.Target) -> None:
        super().__init__(directory, target)
        self.form = dataclasses.replace(self.form, reads_normed=not self.form.reads_normed)


@pytest.mark.parametrize(
    ("fault", "target"),
    [
        *((fault, "qwen3_5") for fault in (Swapped, Unnormed, OtherFeatures, Shifted)),
        (OtherFeatures, "qwen2"),  # as a MiMo
    ],
)
def test_a_faulty_formula_is_noticed(
    pair: Pairs,  # noqa: F811
    fault: type[head_oracles.Mtp],
    target: str,
) -> None:
    right = pair("mtp", target)
    wrong = dataclasses.replace(right, oracle=fault(right.directory, right.oracle.target))
    for compare in (check_logits, lambda given: check_drafts(given, PROMPTS[:3])):
        compare(right)
        with pytest.raises(AssertionError):
            compare(wrong)


def test_a_checkpoint_with_images_has_the_same_layer(
    pair: Pairs,  # noqa: F811
    tmp_path: Path,
) -> None:
    def rename(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("model.")]:
            tensors[name.replace("model.", "model.language_model.")] = tensors.pop(name)

    text = pair("mtp", "qwen3_5")
    whole = edited(text.directory, tmp_path / "whole", rename)
    config = json.loads((whole / "config.json").read_text())
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": config,
    }
    (whole / "config.json").write_text(json.dumps(config))
    found = dataclasses.replace(text, directory=whole).logits(TEXT, [3, 4])
    assert np.array_equal(found, text.logits(TEXT, [3, 4]))


def test_a_checkpoint_that_lost_the_layer_is_refused(toy: Setting, toy_hybrid: Path) -> None:
    with pytest.raises(CheckpointError, match=r"mtp\.fc.*method 'mtp' drafts with mtp\.fc, "):
        Engine(toy_hybrid, speculative_config=config_of(3))


def test_a_layer_of_another_kind_is_refused(toy: Setting, tmp_path: Path) -> None:
    def add(tensors: dict[str, Tensor]) -> None:
        tensors["mtp.layers.1.input_layernorm.weight"] = torch.zeros(64)

    with pytest.raises(CheckpointError, match=r"mtp\.layers\.1\.input_layernorm"):
        Engine(edited(toy.model, tmp_path / "two", add), speculative_config=config_of(3))
