"""GGUF files of every architecture become the checkpoints that transformers saved."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedConfig

from gguf_pairs import MODELS, Pair, make_pair, same_logprobs
from specdec_native.checkpoints.gguf_convert import describe_gguf

# Converted to a family that computes the same under other names.
RENAMED = ("granite_hybrid_dense", "granite_hybrid_moe", "qwen3_next")
# Norms are stored with one added, which rounds what is small beside it.
ONE_ADDED = (
    *("gemma", "gemma2", "nemotron"),
    *("qwen3_5", "qwen3_5_half_rotated", "qwen3_5_moe"),
)


class Pairs:
    """The pairs by name, made when they are asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._made: dict[str, Pair] = {}

    def __getitem__(self, name: str) -> Pair:
        if name not in self._made:
            self._made[name] = make_pair(self._factory.mktemp(name), MODELS[name])
        return self._made[name]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory)


def computed(config: PreTrainedConfig) -> dict[str, Any]:
    """What of a config decides the computation."""
    ignored = {
        "_name_or_path", "dtype", "initializer_range", "transformers_version", "classifier_dropout",
        "use_cache", "output_router_logits", "router_aux_loss_coef", "max_window_layers",
        "attention_dropout", "mamba_chunk_size",
    }  # fmt: skip
    ignored_of_ropes = ("attention_factor", "mrope_section", "mrope_interleaved")
    values = {key: value for key, value in config.to_dict().items() if key not in ignored}
    if values.get("head_dim", 0) is None:
        values["head_dim"] = config.hidden_size // config.num_attention_heads
    rope_parameters = config.rope_parameters
    if "full_attention" not in rope_parameters:
        rope_parameters = {"full_attention": rope_parameters}
    values["rope_parameters"] = {
        kind: {key: value for key, value in rope.items() if key not in ignored_of_ropes}
        for kind, rope in rope_parameters.items()
    }
    return values


def experts_apart(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with a matrix for each expert, as files of other families have them."""
    apart = {}
    for name, tensor in weights.items():
        stacked = re.fullmatch(
            r"(.*layers\.\d+)\.(?:(mlp)\.experts|(experts)|block_sparse_moe)"
            r"\.(gate_up_proj|input_linear\.weight|down_proj|output_linear\.weight)",
            name,
        )
        if not stacked:
            apart[name] = tensor
            continue
        layer, alternates, stands_alone, part = stacked.groups()
        for expert, stored in enumerate(tensor):
            matrix = stored.T if alternates else stored
            prefix = f"{layer}.{'experts' if stands_alone else 'mlp.experts'}.{expert}"
            if part in ("down_proj", "output_linear.weight"):
                apart[f"{prefix}.down_proj.weight"] = matrix
                continue
            halves = (matrix[0::2], matrix[1::2]) if alternates else matrix.chunk(2)
            for side, half in zip(("gate", "up"), halves, strict=True):
                apart[f"{prefix}.{side}_proj.weight"] = half
    return apart


@pytest.mark.parametrize("name", [name for name in MODELS if name not in RENAMED])
def test_tensors_and_config_are_those_of_the_original(
    name: str, pairs: Pairs, tmp_path: Path
) -> None:
    pair = pairs[name]
    original = experts_apart(load_file(pair.original / "model.safetensors"))
    converted = load_file(pair.converted / "model.safetensors")
    assert sorted(converted) == sorted(original)
    for tensor_name, tensor in original.items():
        has_one_added = name in ONE_ADDED and tensor_name.endswith("m.weight")
        rounding = 5e-7 if has_one_added else 0.0
        found, expected = converted[tensor_name], tensor
        if tensor_name.endswith("A_log"):  # several have the same exponential, which is stored
            found, expected = (values.double().exp().float() for values in (found, expected))
        assert torch.allclose(found, expected, rtol=0, atol=rounding), tensor_name
    directory = tmp_path / "described"
    directory.mkdir()
    described = [described_name for described_name, _ in describe_gguf(pair.gguf, directory)]
    assert sorted(described) == sorted(n for n in converted if ".act_fn." not in n)
    expected_config = computed(AutoConfig.from_pretrained(pair.original))
    found_config = computed(AutoConfig.from_pretrained(pair.converted))
    for key, value in expected_config.items():
        assert found_config[key] == value, key


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_computes_the_same(name: str, pairs: Pairs) -> None:
    # Norms with one added are rounded, and Phi's attention factor is.
    tolerance = 1e-4 if name in ("gemma", "gemma2", "nemotron", "phi3_longrope") else 0.0
    assert same_logprobs(pairs[name], tolerance)


def test_generation_config_has_the_ids(pairs: Pairs) -> None:
    generation = json.loads((pairs["phi3"].converted / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
