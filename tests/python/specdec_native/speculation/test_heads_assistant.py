"""Assistants of Gemma 4, which read the target's keys and values: law 1, refusals, and faults that
must be seen.

What they compute is compared in test_heads.py, what is accepted in test_heads_acceptance.py.
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
from make_heads import ASSISTANTS
from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints.draft_config import read_draft_config
from specdec_native.errors import CheckpointError
from test_cuda import DEVICES
from test_heads import PROMPTS, Pairs, check_drafts, check_logits, pair  # noqa: F401
from test_heads_acceptance import Trained, trained  # noqa: F401
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
NUM_CLUSTERS = 20


def with_clusters(directory: Path, copy: Path, num_kept: int = 9) -> Path:
    """The assistant, with centroids that are means of clusters of its LM head's rows."""
    shutil.copytree(directory, copy)
    tensors = load_file(directory / "model.safetensors")
    rows = tensors["model.embed_tokens.weight"]
    ordering = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))
    centroids = rows[ordering].reshape(NUM_CLUSTERS, -1, rows.shape[1]).mean(1)
    tensors["masked_embedding.token_ordering"] = ordering
    tensors["masked_embedding.centroids.weight"] = centroids
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return reconfigured(
        copy,
        use_ordered_embeddings=True,
        num_centroids=NUM_CLUSTERS,
        centroid_intermediate_top_k=num_kept,
    )


def reconfigured(directory: Path, text: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Changes keys of config.json and of its text_config in place; returns the directory."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    config["text_config"] |= text or {}
    path.write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def assistant(trained_head: Callable[[str], Path]) -> Path:
    return trained_head("assistant")


@pytest.fixture(scope="module")
def clusters(assistant: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_clusters(assistant, tmp_path_factory.mktemp("assistants") / "clusters")


@pytest.fixture(scope="module")
def toy(toy_gemma: Path) -> Setting:
    setting = Setting(toy_gemma, train_heads.NUM_WORDS, "float32", 40)
    texts = train_heads.ToyLanguage().texts(NUM_REQUESTS, 66, seed=9).tolist()
    setting.prompts = [text[: 6 + (i * 5) % 60] for i, text in enumerate(texts)]
    return setting


def config_of(
    model: Path, tokens: int = 3, width: int = 1, policy: str = "fixed", **more: Any
) -> dict[str, Any]:
    return {
        "model": str(model),
        "num_speculative_tokens": tokens,
        "tree_width": width,
        "draft_length_policy": policy,
        **more,
    }


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (8, 1), (3, 3)])
def test_answers_are_those_without_drafts(
    toy: Setting, assistant: Path, clusters: Path, tokens: int, width: int, sampling: str
) -> None:
    for model in (assistant, clusters) if tokens == 3 else (assistant,):
        with check(toy, sampling, config_of(model, tokens, width)) as engine:
            histogram = metrics_of(engine).acceptance_histogram
        assert sum(histogram[1:]) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_batches_preemption_and_prefix_hits(toy: Setting, clusters: Path, policy: str) -> None:
    config = config_of(clusters, 4, 2, policy)
    check(toy, "t1", config, max_num_seqs=1).close()
    check_preempted(toy, config)
    check_cached(toy, config)
    check_coming_and_going(toy, config)


@pytest.mark.parametrize("verification", ["standard", "block"])
def test_weighed_drafts(toy: Setting, clusters: Path, verification: str) -> None:
    """Sampled answers depend on what is drafted, but not on the batch."""
    config = config_of(clusters, 4, rejection_sample_method=verification)
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
        {"method": "mtp"},
        {"method": "gemma4_mtp"},
        {"quantization": "none"},
        {"quantization": "int4"},
        {"speculative_token_tree": "[(0,), (1,), (0, 0), (0, 0, 0)]", "tree_width": 2},
    ],
)
def test_options(toy: Setting, clusters: Path, more: dict[str, Any]) -> None:
    with check(toy, "t1", config_of(clusters, **more)) as engine:
        assert metrics_of(engine).num_accepted_draft_tokens > 0


def test_beside_other_drafters(toy: Setting, assistant: Path) -> None:
    config = {
        "drafters": [{"model": str(assistant)}, {"method": "ngram"}, {"method": "suffix"}],
        "num_speculative_tokens": 4,
        "merge_drafters": True,
        "draft_length_policy": "fixed",
    }
    with check(toy, "t1", config) as engine:
        assert metrics_of(engine).num_accepted_draft_tokens > 0


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_quantised_target(
    toy_gemma: Path, toy: Setting, clusters: Path, quantization: str, kv_cache_dtype: str
) -> None:
    """The assistant reads keys and values of any kind that the target has."""
    setting = Setting(toy_gemma, train_heads.NUM_WORDS, "bfloat16", 20)
    setting.prompts = toy.prompts
    setting.options |= {"quantization": quantization, "kv_cache_dtype": kv_cache_dtype}
    with check(setting, "greedy", config_of(clusters, 3, 2)) as engine:
        assert metrics_of(engine).num_accepted_draft_tokens > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [1, 2])
def test_a_gpu(toy: Setting, clusters: Path, width: int, device: str) -> None:
    """Device steps accept what steps from the host do."""
    setting = Setting(toy.model, train_heads.NUM_WORDS, "bfloat16", 10, num_requests=6)
    setting.options["device"] = device
    setting.prompts = toy.prompts[10:16]
    on_device = config_of(clusters, 3, width)
    # A second drafter, which is never asked, makes the host draft.
    on_host = {key: value for key, value in on_device.items() if key != "model"}
    on_host["drafters"] = [{"model": str(clusters)}, {"drafter": lambda tokens, most: []}]
    histograms = []
    for config in (on_device, on_host):
        with check(setting, "t1", config, max_model_len=96) as engine:
            histograms.append(metrics_of(engine).acceptance_histogram)
    assert sum(histograms[0][1:]) > 0
    assert histograms[0] == histograms[1]


@pytest.mark.parametrize("name", ASSISTANTS)
def test_ranks(checkpoint: Callable[[str], Path], head: HeadMaker, name: str) -> None:
    """Where drafts are weighed, answers depend on them: equal ones show equal drafts."""
    target = "gemma4_effective_wide"
    config = config_of(head(name, target), rejection_sample_method="standard")
    params = SamplingParams(temperature=1, seed=5, max_tokens=24, ignore_eos=True, logprobs=1)
    answers = []
    for ranks in (1, 2):
        with Engine(
            checkpoint(target),
            dtype="float32",
            tensor_parallel_size=ranks,
            speculative_config=config,
        ) as engine:
            outputs = engine.generate(PROMPTS[:6], params)
            answers.append([answer(output) for output in outputs])
    assert answers[0] == answers[1]


def test_the_oracle_foretells_what_is_accepted_of_clusters(
    trained: Callable[[str], Trained],  # noqa: F811
    clusters: Path,
    tmp_path: Path,
) -> None:
    whole = trained("assistant")

    def with_oracle(directory: Path) -> Trained:
        oracle = head_oracles.load("gemma4_assistant", directory, whole.oracle.target)
        return dataclasses.replace(whole, directory=directory, oracle=oracle)

    head = with_oracle(clusters)
    foretold = head.foretold()
    assert all(count > 0 for count in foretold)
    with head.engine() as engine:
        assert head.histogram(engine) == foretold
    one = with_oracle(with_clusters(whole.directory, tmp_path / "one", num_kept=1))
    with one.engine() as engine:
        assert head.histogram(engine) == one.foretold() != foretold


# ---- planted faults: formulas that differ from the assistant's by one of them


class Advancing(head_oracles.Gemma4Assistant):
    """Drafts stand one behind the other."""

    def position(self, root: int, depth: int) -> int:
        return root + depth


class Swapped(head_oracles.Gemma4Assistant):
    """The hidden state first."""

    def join(self, ids: Tensor, states: Tensor) -> Tensor:
        return torch.cat([states, self.embed(ids)], -1)


class Unnormed(head_oracles.Gemma4Assistant):
    """Drafted rows hand on their state before the last norm."""

    def fed_back(self, output: Any) -> Tensor:
        norm = self.weights["model.norm.weight"]
        state: Tensor = self.model.post_projection(output.hidden_states[-1] / norm)
        return state


class Earlier(head_oracles.Gemma4Assistant):
    """Keys and values of the first layers with that kind of attention."""

    def target_kv(self, tokens: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        attentions = [layer.self_attn for layer in self.target.model.model.layers]
        stores = [attention.store_full_length_kv for attention in attentions]
        for i, attention in enumerate(attentions):
            attention.store_full_length_kv = i < 2
        kv = super().target_kv(tokens)
        for attention, store in zip(attentions, stores, strict=True):
            attention.store_full_length_kv = store
        return kv


class Shifted(head_oracles.Gemma4Assistant):
    """Rows read the state of one token further back."""

    def features(self, tokens: Tensor) -> Tensor:
        features = super().features(tokens)
        return torch.cat([features[:1], features[:-1]])


class ShortWindow(head_oracles.Gemma4Assistant):
    """The window that the target's own rows would have."""

    def __init__(self, directory: Path, target: head_oracles.Target) -> None:
        super().__init__(directory, target)
        self.model.config.get_text_config().sliding_window -= 1


@pytest.mark.parametrize("fault", [Advancing, Swapped, Unnormed, Earlier, Shifted, ShortWindow])
def test_a_faulty_formula_is_noticed(
    pair: Pairs,  # noqa: F811
    fault: type[head_oracles.Gemma4Assistant],
) -> None:
    right = pair("assistant", "gemma4")
    wrong = dataclasses.replace(right, oracle=fault(right.directory, right.oracle.target))
    check_logits(right)
    with pytest.raises(AssertionError):
        check_logits(wrong)
    if fault is not ShortWindow:  # which changes few drafts
        with pytest.raises(AssertionError):
            check_drafts(wrong, PROMPTS[:3])


def test_another_order_of_tokens_is_noticed(
    pair: Pairs,  # noqa: F811
    tmp_path: Path,
) -> None:
    right = pair("assistant_clusters", "gemma4")
    copy = shutil.copytree(right.directory, tmp_path / "rolled")
    tensors = load_file(copy / "model.safetensors")
    name = "masked_embedding.token_ordering"
    tensors[name] = tensors[name].roll(1)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AssertionError):
        check_drafts(dataclasses.replace(right, directory=copy), PROMPTS[:3])


def test_a_stored_lm_head_is_taken(
    pair: Pairs,  # noqa: F811
    tmp_path: Path,
) -> None:
    tied = pair("assistant", "gemma4")
    copy = shutil.copytree(tied.directory, tmp_path / "apart")
    tensors = load_file(copy / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.embed_tokens.weight"].zero_()
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    apart = dataclasses.replace(tied, directory=copy)
    assert np.array_equal(apart.logits(PROMPTS[3], [5]), tied.logits(PROMPTS[3], [5]))


# ---- refusals


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ({}, {"backbone_hidden_size": 96}, "backbone_hidden_size: 96, but the target's rows"),
        ({"vocab_size": 200}, {}, "text_config.vocab_size: 200, but the target"),
        ({"sliding_window": 25}, {}, "text_config.sliding_window: 25 .* 24 in layer 0"),
        ({"head_dim": 24}, {}, r"text_config.head_dim: 24 .* 16 in layer 0"),
        ({"num_key_value_heads": 4}, {}, "text_config.num_key_value_heads: 4 .* 2 in layer 0"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4},
                                 "sliding_attention": {"rope_type": "default",
                                                       "rope_theta": 1e4}}},
            {},
            "text_config.rope_parameters: turns queries of full_attention",
        ),
        ({"num_kv_shared_layers": 1}, {}, "text_config.num_kv_shared_layers: 1, and .* all 3"),
        (
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 160},
            {},
            "text_config.hidden_size_per_layer_input",
        ),
        ({"use_double_wide_mlp": True}, {}, "text_config.use_double_wide_mlp"),
        ({}, {"use_ordered_embeddings": True, "num_centroids": 7}, "num_centroids: 7 centroids"),
        (
            {},
            {"use_ordered_embeddings": True, "num_centroids": 20,
             "centroid_intermediate_top_k": 21},
            "centroid_intermediate_top_k: 21 is more than the 20",
        ),
        (
            {},
            {"use_ordered_embeddings": True, "num_centroids": 20,
             "centroid_intermediate_top_k": 7},
            "masked_embedding.centroids.weight",
        ),
        ({}, {"attention_window_scale": 2}, "attention_window_scale"),
    ],
)  # fmt: skip
def test_an_assistant_of_another_model_is_refused(
    checkpoint: Callable[[str], Path],
    head: HeadMaker,
    tmp_path: Path,
    text: dict[str, Any],
    changes: dict[str, Any],
    message: str,
) -> None:
    copy = shutil.copytree(head("assistant", "gemma4_effective"), tmp_path / "copy")
    reconfigured(copy, text, **changes)
    with pytest.raises(CheckpointError, match=message):
        Engine(checkpoint("gemma4_effective"), speculative_config=config_of(copy))


def test_a_target_without_windows_is_refused(
    checkpoint: Callable[[str], Path], head: HeadMaker, tmp_path: Path
) -> None:
    target = shutil.copytree(checkpoint("gemma4"), tmp_path / "full")
    path = target / "config.json"
    config = json.loads(path.read_text())
    config["layer_types"] = ["full_attention"] * 4
    config.pop("per_layer_config")
    config |= {"global_head_dim": 16, "num_global_key_value_heads": 2}
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="layer_types: has a layer of sliding_attention"):
        Engine(
            target,
            load_format="dummy",
            speculative_config=config_of(head("assistant", "gemma4")),
        )


def test_a_target_of_another_family_is_refused(
    checkpoint: Callable[[str], Path], head: HeadMaker
) -> None:
    with pytest.raises(CheckpointError, match="architectures.*the target is a LlamaForCausalLM"):
        Engine(
            checkpoint("llama"), speculative_config=config_of(head("assistant", "gemma4_effective"))
        )


def test_what_an_assistant_cannot_do_is_refused(
    checkpoint: Callable[[str], Path], head: HeadMaker
) -> None:
    target, assistant = checkpoint("gemma4"), head("assistant", "gemma4")
    for more, message in (
        ({"speculative_token_map": [3, 4, 5]}, "has output weights of its own"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size"),
    ):
        with pytest.raises(ValueError, match=message):
            Engine(target, speculative_config=config_of(assistant, **more))
    with pytest.raises(ValueError, match="model: method 'mtp' drafts for a Gemma4ForCausalLM with"):
        Engine(target, speculative_config={"method": "mtp", "num_speculative_tokens": 3})


def test_an_assistant_is_no_model(head: HeadMaker) -> None:
    directory = head("assistant", "gemma4")
    assert read_draft_config(directory).method == "mtp"
    with pytest.raises(CheckpointError, match='a draft head for the method "mtp"'):
        Engine(directory)


def test_random_weights(checkpoint: Callable[[str], Path], head: HeadMaker) -> None:
    with Engine(
        checkpoint("gemma4"),
        load_format="dummy",
        speculative_config=config_of(head("assistant_clusters", "gemma4")),
    ) as engine:
        assert len(engine.generate([[5, 6, 7]])[0].outputs[0].token_ids) > 0
