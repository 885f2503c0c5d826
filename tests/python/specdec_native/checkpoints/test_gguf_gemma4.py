"""GGUF files of Gemma 4 beside the usual: what they may leave out, have besides, or must have."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

from gguf_of_transformers import gguf_metadata, gguf_tensors
from gguf_pairs import changed, convert, make_pair, same_logprobs
from logprobs import engine_logprobs, random_tokens
from make_checkpoints import VARIANTS, build
from make_gguf import write_gguf
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_convert import convert_gguf

Contents = tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]


@pytest.fixture(scope="module")
def effective(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return contents("gemma4_effective", tmp_path_factory.mktemp("effective"))


def contents(variant: str, directory: Path) -> Contents:
    """Metadata and tensors of a variant's file."""
    model = build(VARIANTS[variant])
    model.save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    return gguf_metadata(model.config), gguf_tensors(weights, model.config)


def test_matrices_that_layers_without_own_keys_have_are_left_out(
    effective: Contents, tmp_path: Path
) -> None:
    metadata, tensors = effective
    unused = {
        name.replace("blk.1.", "blk.3."): values
        for name, values in tensors.items()
        if name.startswith("blk.1.attn_") and name.split(".")[2] in ("attn_k", "attn_v")
    }
    unused["blk.3.attn_k_norm.weight"] = np.ones(32, np.float32)
    assert len(unused) == 3
    plain = convert(write_gguf(tmp_path / "plain.gguf", "gemma4", metadata, tensors))
    found = convert(write_gguf(tmp_path / "more.gguf", "gemma4", metadata, tensors | unused))
    for name in ("config.json", "model.safetensors"):
        assert (found / name).read_bytes() == (plain / name).read_bytes()


@pytest.mark.parametrize("variant", ["gemma4", "gemma4_effective", "gemma4_moe"])
def test_quantised_matrices_stay_so(variant: str, tmp_path: Path) -> None:
    metadata, tensors = contents(variant, tmp_path / "original")
    is_matrix = {name: v.ndim > 1 and v.shape[-1] % 32 == 0 for name, v in tensors.items()}
    kinds = {name: Type.Q8_0 for name, quantised in is_matrix.items() if quantised}
    source = write_gguf(tmp_path / "q8.gguf", "gemma4", metadata, tensors, kinds)
    converted = {}
    for name, keep_integers in (("kept", True), ("decoded", False)):
        converted[name] = tmp_path / name
        converted[name].mkdir()
        convert_gguf(source, converted[name], dtype="float32", keep_integers=keep_integers)
    kept = load_file(converted["kept"] / "model.safetensors")
    decoded = load_file(converted["decoded"] / "model.safetensors")
    assert {name.removesuffix(".scales") for name in kept} == decoded.keys()
    for name, values in decoded.items():
        assert kept[name].dtype == (torch.int8 if values.ndim == 2 else torch.float32), name
        found = kept[name].float()
        if values.ndim == 2:
            scales = kept[f"{name}.scales"].float()
            found = (found.reshape(*scales.shape, -1) * scales[..., None]).reshape(values.shape)
        assert torch.equal(found, values), name
    tokens = random_tokens(60, seed=3)
    expected_logprobs = engine_logprobs(converted["decoded"], tokens, dtype="float32")
    logprobs = engine_logprobs(converted["kept"], tokens, dtype="float32")
    # Inputs of products are rounded, and then a token's experts may be others.
    assert np.median(np.abs(logprobs - expected_logprobs)) < 0.2


def test_gates_and_ups_of_experts_may_be_apart(tmp_path: Path) -> None:
    metadata, tensors = contents("gemma4_moe", tmp_path / "original")
    apart = {name: values for name, values in tensors.items() if "gate_up" not in name}
    for layer in range(4):
        gate_up = tensors[f"blk.{layer}.ffn_gate_up_exps.weight"]
        for side, half in zip(("gate", "up"), np.split(gate_up, 2, axis=1), strict=True):
            apart[f"blk.{layer}.ffn_{side}_exps.weight"] = half
    fused = convert(write_gguf(tmp_path / "fused.gguf", "gemma4", metadata, tensors))
    found = convert(write_gguf(tmp_path / "apart.gguf", "gemma4", metadata, apart))
    expected = load_file(fused / "model.safetensors")
    for name, tensor in load_file(found / "model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


def test_layers_of_full_attention_may_have_values_and_turn_all_planes(tmp_path: Path) -> None:
    ropes = {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 1.0,
            "rope_theta": 5e5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    variant = changed("gemma4", attention_k_eq_v=False, rope_parameters=ropes)
    pair = make_pair(tmp_path, variant)
    config = json.loads((pair.converted / "config.json").read_text())
    assert config["rope_parameters"] == ropes
    assert (config["attention_k_eq_v"], config["num_key_value_heads"]) == (False, 2)
    assert config["per_layer_config"] == {"1": {"head_dim": 32}, "3": {"head_dim": 32}}
    assert same_logprobs(pair, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({".attention.sliding_window_pattern": [True] * 4}, "gives the last layer a window"),
        ({".attention.sliding_window_pattern": True}, "pattern is True, expected list"),
        ({".attention.sliding_window_pattern": [True, False]}, "has 2 values for 4 layers"),
        ({".attention.sliding_window_pattern": None}, "sliding_window_pattern is missing"),
        ({".attention.sliding_window": None}, "attention.sliding_window is missing"),
        ({".attention.key_length_swa": None}, "attention.key_length_swa is missing"),
        ({".attention.value_length_swa": 8}, "value_length_swa is 8 but heads are 16 wide"),
        ({".rope.dimension_count": 16}, "rope.dimension_count is 16 but heads are 32 wide"),
        ({".attention.shared_kv_layers": 4}, "is 4, but the file has 4 layers"),
        ({".attention.shared_kv_layers": 1}, "blk.2.attn_v.weight is missing, and not just"),
        ({".feed_forward_length": [96, 96, 96, 192]}, "feed_forward_length differs"),
        ({".attention.head_count_kv": [2, 2, 2]}, "head_count_kv has 3 values for 4 layers"),
        ({".rope.scaling.factor": 8.0}, "rope.scaling.factor is 8.0, which may change"),
        ({".attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, which may change"),
        ({".altup.num_inputs": 4}, "altup.num_inputs is 4, which may change"),
    ],
)
def test_other_metadata_is_refused(
    change: dict[str, Any], message: str, effective: Contents, tmp_path: Path
) -> None:
    metadata, tensors = effective
    known = {key: value for key, value in (metadata | change).items() if value is not None}
    source = write_gguf(tmp_path / "m.gguf", "gemma4", known, tensors)
    with pytest.raises(CheckpointError, match=message):
        convert(source)


STOPPED = 1e30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_freqs.weight": None}, "rope_freqs.weight is missing"),
        ({"rope_freqs.weight": np.ones(8)}, "has 8 values, expected 16, half of a head"),
        ({"rope_freqs.weight": np.full(16, 8.0)}, "is not ones and then values that stop"),
        (
            {"rope_freqs.weight": np.array([STOPPED] * 12 + [1.0] * 4)},
            "is not ones and then values that stop",
        ),
        ({"blk.0.attn_v.weight": None}, "tensor blk.0.attn_v.weight is missing, and not just"),
        ({"per_layer_token_embd.weight": None}, "per_layer_token_embd.weight is missing"),
        ({"per_layer_token_embd.weight": np.ones((160, 32))}, "matrix of 4 x 32 columns"),
        ({"blk.0.laurel_l.weight": np.ones((8, 64))}, "blk.0.laurel_l.weight has no place"),
        ({"blk.0.ffn_up_exps.scale": np.ones(6)}, "blk.0.ffn_up_exps.scale has no place"),
    ],
)
def test_other_tensors_are_refused(
    change: dict[str, Any], message: str, effective: Contents, tmp_path: Path
) -> None:
    metadata, tensors = effective
    known = {name: v.astype(np.float32) for name, v in (tensors | change).items() if v is not None}
    source = write_gguf(tmp_path / "m.gguf", "gemma4", metadata, known)
    with pytest.raises(CheckpointError, match=message):
        convert(source)
