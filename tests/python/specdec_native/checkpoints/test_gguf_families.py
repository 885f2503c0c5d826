"""GGUF files of every architecture become the checkpoints that transformers saved."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedConfig

from gguf_pairs import MODELS, Pair, make_pair, same_logprobs
from specdec_native.checkpoints.gguf_convert import describe_gguf

# Converted to a family that computes the same under other names.
RENAMED = ("granite_hybrid_dense", "granite_hybrid_moe")


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
        "attention_dropout",
    }  # fmt: skip
    values = {key: value for key, value in config.to_dict().items() if key not in ignored}
    if values.get("head_dim", 0) is None:
        values["head_dim"] = config.hidden_size // config.num_attention_heads
    rope_parameters = config.rope_parameters
    if "full_attention" not in rope_parameters:
        rope_parameters = {"full_attention": rope_parameters}
    values["rope_parameters"] = {
        kind: {key: value for key, value in rope.items() if key != "attention_factor"}
        for kind, rope in rope_parameters.items()
    }
    return values


def experts_apart(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with a matrix for each expert, as files of other families have them."""
    apart = {}
    for name, tensor in weights.items():
        layer, _, part = name.partition(".block_sparse_moe.")
        if part == "input_linear.weight":
            for expert, gate_up in enumerate(tensor):
                for side, matrix in zip(("gate", "up"), gate_up.chunk(2), strict=True):
                    apart[f"{layer}.mlp.experts.{expert}.{side}_proj.weight"] = matrix
        elif part == "output_linear.weight":
            for expert, down in enumerate(tensor):
                apart[f"{layer}.mlp.experts.{expert}.down_proj.weight"] = down
        elif name.endswith(".experts.gate_up_proj") and ".mlp." not in name:
            for expert, gate_up in enumerate(tensor):
                for side, matrix in zip(("gate", "up"), gate_up.chunk(2), strict=True):
                    own_name = f"mlp.experts.{expert}.{side}_proj.weight"
                    apart[name.replace("experts.gate_up_proj", own_name)] = matrix
        elif name.endswith(".experts.down_proj") and ".mlp." not in name:
            for expert, down in enumerate(tensor):
                own_name = f"mlp.experts.{expert}.down_proj.weight"
                apart[name.replace("experts.down_proj", own_name)] = down
        elif name.endswith("mlp.experts.gate_up_proj"):
            for expert, columns in enumerate(tensor):
                for first, side in enumerate(("gate", "up")):
                    matrix = columns[:, first::2].T
                    apart[name.replace("gate_up", f"{expert}.{side}") + ".weight"] = matrix
        elif name.endswith("mlp.experts.down_proj"):
            for expert, columns in enumerate(tensor):
                apart[name.replace("down", f"{expert}.down") + ".weight"] = columns.T
        else:
            apart[name] = tensor
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
        # These norms are stored with one added, which rounds what is small beside it.
        has_one_added = name in ("gemma", "gemma2", "nemotron") and tensor_name.endswith("m.weight")
        rounding = 5e-7 if has_one_added else 0.0
        assert torch.allclose(converted[tensor_name], tensor, rtol=0, atol=rounding), tensor_name
    directory = tmp_path / "described"
    directory.mkdir()
    described = [described_name for described_name, _ in describe_gguf(pair.gguf, directory)]
    assert sorted(described) == sorted(n for n in converted if ".act_fn." not in n)
    expected = computed(AutoConfig.from_pretrained(pair.original))
    found = computed(AutoConfig.from_pretrained(pair.converted))
    for key, value in expected.items():
        assert found[key] == value, key


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_computes_the_same(name: str, pairs: Pairs) -> None:
    # Norms with one added are rounded, and Phi's attention factor is.
    tolerance = 1e-4 if name in ("gemma", "gemma2", "nemotron", "phi3_longrope") else 0.0
    assert same_logprobs(pairs[name], tolerance)


def test_generation_config_has_the_ids(pairs: Pairs) -> None:
    generation = json.loads((pairs["phi3"].converted / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
