"""GGUF files of Gemma 3n and 4 beside the usual: what they may leave out, have besides, or need."""

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
from gguf_pairs import Pair, changed, convert, make_pair, same_logprobs
from logprobs import engine_logprobs, random_tokens
from make_checkpoints import VARIANTS, VOCAB_SIZE, Variant, build
from make_gguf import write_gguf
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_config import model_config
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.gguf_file import GgufFile

Contents = tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]


@pytest.fixture(scope="module")
def effective(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return contents("gemma4_effective", tmp_path_factory.mktemp("effective"))


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return contents("gemma3n", tmp_path_factory.mktemp("streams"))


def contents(variant: str | Variant, directory: Path) -> Contents:
    """Metadata and tensors of a variant's file."""
    model = build(VARIANTS[variant] if isinstance(variant, str) else variant)
    model.save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    return gguf_metadata(model.config), gguf_tensors(weights, model.config)


@pytest.mark.parametrize("architecture", ["gemma3n", "gemma4"])
def test_matrices_that_layers_without_own_keys_have_are_left_out(
    architecture: str, streams: Contents, effective: Contents, tmp_path: Path
) -> None:
    metadata, tensors = streams if architecture == "gemma3n" else effective
    unused = {
        name.replace("blk.1.", "blk.3."): values
        for name, values in tensors.items()
        if name.startswith("blk.1.attn_") and name.split(".")[2] in ("attn_k", "attn_v")
    }
    unused["blk.3.attn_k_norm.weight"] = np.ones(32, np.float32)
    assert len(unused) == 3
    plain = convert(write_gguf(tmp_path / "plain.gguf", architecture, metadata, tensors))
    found = convert(write_gguf(tmp_path / "more.gguf", architecture, metadata, tensors | unused))
    for name in ("config.json", "model.safetensors"):
        assert (found / name).read_bytes() == (plain / name).read_bytes()


@pytest.mark.parametrize("variant", ["gemma3n", "gemma4", "gemma4_effective", "gemma4_moe"])
def test_quantised_matrices_stay_so(variant: str, tmp_path: Path) -> None:
    metadata, tensors = contents(variant, tmp_path / "original")
    is_matrix = {name: v.ndim > 1 and v.shape[-1] % 32 == 0 for name, v in tensors.items()}
    kinds = {name: Type.Q8_0 for name, quantised in is_matrix.items() if quantised}
    architecture = "gemma3n" if variant == "gemma3n" else "gemma4"
    source = write_gguf(tmp_path / "q8.gguf", architecture, metadata, tensors, kinds)
    converted = {}
    for name, keep_integers in (("kept", True), ("decoded", False)):
        converted[name] = tmp_path / name
        converted[name].mkdir()
        convert_gguf(source, converted[name], dtype="float32", keep_integers=keep_integers)
    kept = load_file(converted["kept"] / "model.safetensors")
    decoded = load_file(converted["decoded"] / "model.safetensors")
    assert {name.removesuffix(".scales") for name in kept} == decoded.keys()
    for name, values in decoded.items():
        quantised = values.ndim == 2 and values.shape[1] % 32 == 0
        assert kept[name].dtype == (torch.int8 if quantised else torch.float32), name
        found = kept[name].float()
        if quantised:
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


REFUSED_OF_GEMMA3N = [
    ({".attention.sliding_window_pattern": 5}, "pattern is 5, expected list"),
    ({".attention.sliding_window_pattern": [True, False]}, "has 2 values for 4 layers"),
    ({".attention.shared_kv_layers": None}, "attention.shared_kv_layers is missing"),
    ({".attention.shared_kv_layers": 4}, "is 4, but the file has 4 layers"),
    ({".attention.value_length": 16}, "value_length is 16 but heads are 32 wide"),
    ({".attention.head_count_kv": [2, 2, 1, 2]}, "head_count_kv differs between layers"),
    ({".rope.dimension_count": 16}, "rope.dimension_count is 16 but heads are 32 wide"),
    ({".rope.scaling.factor": 8.0}, "rope.scaling.factor is 8.0, which may change"),
    ({".feed_forward_length": [96, 96]}, "feed_forward_length has 2 values for 4 layers"),
    ({".block_count": 0}, "block_count must be positive"),
    ({".altup.num_inputs": None}, "altup.num_inputs is missing"),
    ({".altup.num_inputs": 5}, "altup_proj.weight is missing or not 4 matrices"),
    ({".altup.active_idx": None}, "altup.active_idx is missing"),
    ({".embedding_length_per_layer_input": None}, "per_layer_input is missing or 0"),
    ({".embedding_length_per_layer_input": 16}, "matrix of 4 x 16 columns"),
    ({".activation_sparsity_scale": None}, "activation_sparsity_scale is missing"),
    ({".activation_sparsity_scale": [0.5]}, "sparsity_scale has 1 values for 4 layers"),
    ({".activation_sparsity_scale": [0.5, np.nan, 0.5, 0.5]}, "nan.*, expected list"),
    ({".activation_sparsity_scale": [0.5, np.inf, 0.5, 0.5]}, "has inf, which is so far"),
    ({".activation_sparsity_scale": [0.5, 9.0, 0.5, 0.5]}, "has 9.0, which is so far"),
    ({".laurel.length": 32}, "laurel.length is 32, which may change"),
    ({"altup_proj.weight": None}, "altup_proj.weight is missing or not 3 matrices"),
    ({"altup_unembd_proj.weight": np.ones((2, 64, 64))}, "altup_unembd_proj.weight is missing or"),
    ({"blk.0.laurel_l.weight": None}, "blk.0.laurel_l.weight is missing or not a matrix"),
    ({"blk.2.altup_correct_scale.weight": None}, "altup_correct_scale.weight is missing, and"),
    ({"per_layer_token_embd.weight": None}, "per_layer_token_embd.weight is missing"),
    ({"rope_freqs.weight": np.ones(16)}, "rope_freqs.weight has no place"),
    ({"blk.0.layer_output_scale.weight": np.ones(1)}, "output_scale.weight has no place"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED_OF_GEMMA3N)
def test_other_contents_of_gemma3n_are_refused(
    change: dict[str, Any], message: str, streams: Contents, tmp_path: Path
) -> None:
    metadata, tensors = streams
    of_tensors = {name: v for name, v in change.items() if name.endswith(".weight")}
    of_metadata = {key: v for key, v in change.items() if key not in of_tensors}
    source = write_gguf(
        tmp_path / "m.gguf",
        "gemma3n",
        {key: value for key, value in (metadata | of_metadata).items() if value is not None},
        {
            name: values.astype(np.float32)
            for name, values in (tensors | of_tensors).items()
            if values is not None
        },
    )
    with pytest.raises(CheckpointError, match=message):
        convert(source)


def gemma3n_config(path: Path, contents: Contents, change: dict[str, Any]) -> dict[str, Any]:
    metadata, tensors = contents
    known = {key: value for key, value in (metadata | change).items() if value is not None}
    file = GgufFile(write_gguf(path, "gemma3n", known, tensors))
    return model_config(file, dtype="float32", tied=True)


def test_the_sparse_parts_give_the_deviations_again(streams: Contents, tmp_path: Path) -> None:
    # The second is what llama.cpp's converter, which computes in float32, makes of 0.95, and the
    # third what it makes of 0.8.
    stored = [-np.inf, 1.6448533535003662, 0.8416212797164917, -0.3, 4.5, 1.6448536, 0.0]
    is_sliding = [True, False] * 3 + [False]
    metadata, tensors = streams
    table = np.zeros((VOCAB_SIZE, len(stored) * 32), np.float32)
    scale = tensors["blk.0.altup_correct_scale.weight"]
    scales = {f"blk.{i}.altup_correct_scale.weight": scale for i in range(len(stored))}
    longer = (metadata, tensors | scales | {"per_layer_token_embd.weight": table})
    change = {
        ".block_count": len(stored),
        ".activation_sparsity_scale": stored,
        ".attention.sliding_window_pattern": is_sliding,
        ".feed_forward_length": 96,
    }
    config = gemma3n_config(tmp_path / "m.gguf", longer, change)
    pattern = config["activation_sparsity_pattern"]
    assert pattern[0] == 0.0
    assert pattern[5] == 0.95
    quantiles = torch.special.ndtri(torch.tensor(pattern[1:], dtype=torch.float64))
    assert quantiles.float().tolist() == np.array(stored[1:], np.float32).tolist()
    assert config["intermediate_size"] == [96] * len(stored)


def test_gemma3n_has_its_constants_where_the_file_has_none(
    streams: Contents, tmp_path: Path
) -> None:
    keys = ("rope.freq_base", "rope.freq_base_swa", "final_logit_softcapping")
    config = gemma3n_config(tmp_path / "m.gguf", streams, {f".{key}": None for key in keys})
    assert config["final_logit_softcapping"] == 30.0
    assert config["rope_parameters"] == {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert config["laurel_rank"] == 32


def test_outputs_without_scales_are_not_scaled(tmp_path: Path) -> None:
    variant = changed("gemma3n", altup_correct_scale=False, vocab_size_per_layer_input=VOCAB_SIZE)
    metadata, tensors = contents(variant, tmp_path / "original")
    fewer = {name: v for name, v in tensors.items() if "altup_correct_scale" not in name}
    assert len(fewer) == len(tensors) - 4
    source = write_gguf(tmp_path / "m.gguf", "gemma3n", metadata, fewer)
    pair = Pair(tmp_path / "original", source, convert(source))
    assert same_logprobs(pair, 0.0)


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0])
@pytest.mark.parametrize(("last_value", "num_rows"), [(0.0, 262144), (1.0, 262400)])
def test_rows_that_a_converter_added_go(
    last_value: float, num_rows: int, kind: Type, streams: Contents, tmp_path: Path
) -> None:
    metadata, tensors = streams
    table = np.ones((262400, 32), np.float32)
    table[262144:] = 0.0
    table[-1, -1] = last_value
    name = "per_layer_token_embd.weight"
    source = write_gguf(
        tmp_path / "m.gguf",
        "gemma3n",
        metadata | {".embedding_length_per_layer_input": 8},
        tensors | {name: table},
        {name: kind},
    )
    directory = tmp_path / "converted"
    directory.mkdir()
    convert_gguf(source, directory, dtype="bfloat16")
    config = json.loads((directory / "config.json").read_text())
    assert config["vocab_size_per_layer_input"] == num_rows
    stored = load_file(directory / "model.safetensors")["model.embed_tokens_per_layer.weight"]
    expected = torch.from_numpy(table[:num_rows])
    assert torch.allclose(stored.float(), expected, rtol=0, atol=0.01)


def test_tokens_past_the_table_read_its_first_row(streams: Contents, tmp_path: Path) -> None:
    metadata, tensors = streams
    name = "per_layer_token_embd.weight"
    num_rows = VARIANTS["gemma3n"].config["vocab_size_per_layer_input"]
    assert not tensors[name][num_rows:].any()
    source = write_gguf(
        tmp_path / "m.gguf", "gemma3n", metadata, tensors | {name: tensors[name][:num_rows]}
    )
    build(VARIANTS["gemma3n"]).save_pretrained(tmp_path / "original")
    assert same_logprobs(Pair(tmp_path / "original", source, convert(source)), 0.0)
