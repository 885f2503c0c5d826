"""GGUF files of models with recurrent layers: what they leave out, have besides, or need."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

from gguf_of_transformers import architecture_of, gguf_metadata, gguf_tensors
from gguf_pairs import MODELS, changed, convert, make_pair, same_logprobs
from logprobs import engine_logprobs, random_tokens, reference_logprobs
from make_checkpoints import Variant, build
from make_gguf import write_gguf
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_convert import convert_gguf, describe_gguf
from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_recurrent_tensors import logarithms
from specdec_native.checkpoints.stored_weights import weights_of_gguf
from test_gguf_integers import TOLERANCES, assert_within, dequantize, file_values, load

Array = npt.NDArray[np.float32]
Contents = tuple[str, dict[str, Any], dict[str, Array]]

# Heads of 128 values, half of the block that most types have.
WIDE = {"linear_num_value_heads": 4, "linear_value_head_dim": 128}


def contents(variant: str | Variant, directory: Path) -> Contents:
    """Architecture, metadata and tensors of a variant's file; its checkpoint in `directory`."""
    model = build(MODELS[variant] if isinstance(variant, str) else variant)
    model.save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    metadata, tensors = gguf_metadata(model.config), gguf_tensors(weights, model.config)
    return architecture_of(model.config), metadata, tensors


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return contents("qwen3_5", tmp_path_factory.mktemp("delta"))


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return contents("granite_mamba", tmp_path_factory.mktemp("mamba"))


@pytest.fixture(scope="module")
def conv(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    return contents("lfm2_moe", tmp_path_factory.mktemp("conv"))


RECURRENT = [
    "lfm2", "lfm2_biases", "lfm2_moe", "qwen3_next", "qwen3_5", "qwen3_5_half_rotated",
    "qwen3_5_moe", "granite_mamba", "granite_mamba_moe",
]  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_the_engine_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    pair = make_pair(tmp_path, MODELS[name])
    tokens = random_tokens(100, seed=4)
    expected = reference_logprobs(pair.original, tokens, token_by_token=False)[:-1]
    found = engine_logprobs(pair.converted, tokens, dtype="float32")
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


def test_transformers_reads_qwen3_next_as_qwen3_5(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, MODELS["qwen3_next"])
    config = json.loads((pair.converted / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5MoeForCausalLM"]
    tokens = random_tokens(70, seed=4)
    expected = reference_logprobs(pair.original, tokens, token_by_token=False)
    found = reference_logprobs(pair.converted, tokens, token_by_token=False)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


def test_older_files_of_qwen3_next_have_one_projection(tmp_path: Path) -> None:
    architecture, metadata, tensors = contents("qwen3_next", tmp_path / "original")
    weights = load_file(tmp_path / "original" / "model.safetensors")
    older = {
        name: values
        for name, values in tensors.items()
        if "attn_qkv" not in name and "attn_gate" not in name
    }
    assert len(older) == len(tensors) - 6
    older |= {
        f"blk.{layer}.ssm_in.weight": weights[
            f"model.layers.{layer}.linear_attn.in_proj_qkvz.weight"
        ].numpy()
        for layer in (0, 1, 3)
    }
    expected = convert(write_gguf(tmp_path / "new.gguf", architecture, metadata, tensors))
    found = convert(write_gguf(tmp_path / "old.gguf", architecture, metadata, older))
    assert (found / "config.json").read_bytes() == (expected / "config.json").read_bytes()
    found_tensors = load_file(found / "model.safetensors")
    for name, values in load_file(expected / "model.safetensors").items():
        assert torch.equal(found_tensors[name], values), name


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_layers_that_predict_later_tokens_are_left_out(name: str, tmp_path: Path) -> None:
    architecture, metadata, tensors = contents(name, tmp_path / "original")
    later = {
        name.replace("blk.2.", "blk.4."): values
        for name, values in tensors.items()
        if name.startswith("blk.2.")
    }
    later |= {
        f"blk.4.nextn.{part}.weight": np.ones(64, np.float32)
        for part in ("enorm", "hnorm", "shared_head_norm")
    }
    later["blk.4.nextn.eh_proj.weight"] = np.ones((64, 128), np.float32)
    counts = {".block_count": 5, ".nextn_predict_layers": 1}
    plain = convert(write_gguf(tmp_path / "plain.gguf", architecture, metadata, tensors))
    more = write_gguf(tmp_path / "more.gguf", architecture, metadata | counts, tensors | later)
    found = convert(more)
    for file in ("config.json", "model.safetensors"):
        assert (found / file).read_bytes() == (plain / file).read_bytes()


def layer_types(path: Path, file: Contents, change: dict[str, Any]) -> list[str]:
    architecture, metadata, tensors = file
    known = {key: value for key, value in (metadata | change).items() if value is not None}
    directory = convert(write_gguf(path, architecture, known, tensors))
    types: list[str] = json.loads((directory / "config.json").read_text())["layer_types"]
    return types


def test_which_layers_are_recurrent(delta: Contents, tmp_path: Path) -> None:
    linear, full = "linear_attention", "full_attention"
    listed = ".attention.recurrent_layers"
    by_list = {listed: [True, False, False, True]}
    assert layer_types(tmp_path / "a.gguf", delta, by_list) == [linear, full, full, linear]
    with_later = {listed: [True, False, True, False, False], ".nextn_predict_layers": 1}
    with_later_layers = layer_types(tmp_path / "e.gguf", delta, with_later | {".block_count": 5})
    assert with_later_layers == [linear, full] * 2
    by_interval = {listed: None, ".full_attention_interval": 2}
    assert layer_types(tmp_path / "b.gguf", delta, by_interval) == [linear, full] * 2
    unsaid = {listed: None, ".full_attention_interval": None}
    assert layer_types(tmp_path / "c.gguf", delta, unsaid) == [linear] * 3 + [full]
    by_heads = {listed: None, ".attention.head_count_kv": [0, 2, 2, 0]}
    assert layer_types(tmp_path / "d.gguf", delta, by_heads) == [linear, full, full, linear]


def test_models_with_an_interval(tmp_path: Path) -> None:
    types = ["linear_attention", "full_attention"] * 2
    pair = make_pair(tmp_path, changed("qwen3_5", layer_types=types))
    assert GgufFile(pair.gguf).hyperparameter("full_attention_interval", 0) == 2
    assert json.loads((pair.converted / "config.json").read_text())["layer_types"] == types
    assert same_logprobs(pair, 0.0)


def test_a_head_of_values_for_each_of_keys_stays_where_it_is(tmp_path: Path) -> None:
    variant = changed("qwen3_5", linear_num_key_heads=3, linear_num_value_heads=3)
    assert same_logprobs(make_pair(tmp_path, variant), 0.0)


@pytest.mark.parametrize("name", ["granite_hybrid_dense", "granite_hybrid_moe"])
def test_granite_hybrid_may_have_attention_in_all_layers(name: str, tmp_path: Path) -> None:
    pair = make_pair(tmp_path, MODELS[name], architecture="granitehybrid")
    config = json.loads((pair.converted / "config.json").read_text())
    assert config["architectures"] == ["GraniteMoeHybridForCausalLM"]
    assert config["layer_types"] == ["attention"] * 3
    assert same_logprobs(pair, 0.0)


def test_lfm2_may_call_its_last_norm_as_others_do(tmp_path: Path) -> None:
    architecture, metadata, tensors = contents("lfm2", tmp_path / "original")
    renamed = tensors | {"output_norm.weight": tensors["token_embd_norm.weight"]}
    del renamed["token_embd_norm.weight"]
    expected = convert(write_gguf(tmp_path / "a.gguf", architecture, metadata, tensors))
    found = convert(write_gguf(tmp_path / "b.gguf", architecture, metadata, renamed))
    tensor = load_file(found / "model.safetensors")["model.embedding_norm.weight"]
    other = load_file(expected / "model.safetensors")["model.embedding_norm.weight"]
    assert torch.equal(tensor, other)


def test_experts_may_have_no_bias(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, changed("lfm2_moe", use_expert_bias=False, tie_word_embeddings=True))
    assert json.loads((pair.converted / "config.json").read_text())["use_expert_bias"] is False
    assert same_logprobs(pair, 0.0)


# -- Values


def test_logarithms_have_the_exponentials_that_files_have() -> None:
    rng = np.random.default_rng(1)
    stored = rng.uniform(-20, 20, 100_000).astype(np.float32)
    exponentials = np.exp(stored.astype(np.float64)).astype(np.float32)
    found = logarithms(exponentials)
    assert np.array_equal(np.exp(found.astype(np.float64)).astype(np.float32), exponentials)
    assert np.array_equal(found[np.abs(stored) > 2], stored[np.abs(stored) > 2])
    any_values = rng.uniform(1e-3, 100, 100_000).astype(np.float32)
    nearest = np.exp(logarithms(any_values).astype(np.float64))
    # Half the distance between two logarithms, which are below 8.
    assert np.abs(nearest / any_values - 1).max() < 2.0**-21.9


@pytest.mark.parametrize("name", ["lfm2_biases", "qwen3_5", "granite_mamba"])
def test_vectors_of_recurrent_layers_are_not_rounded(name: str, tmp_path: Path) -> None:
    architecture, metadata, tensors = contents(name, tmp_path / "original")
    source = write_gguf(tmp_path / "m.gguf", architecture, metadata, tensors)
    (tmp_path / "float32").mkdir()
    (tmp_path / "bfloat16").mkdir()
    convert_gguf(source, tmp_path / "float32", dtype="float32")
    convert_gguf(source, tmp_path / "bfloat16", dtype="bfloat16")
    exact = load_file(tmp_path / "float32" / "model.safetensors")
    endings = ("A_log", "dt_bias", ".D", "conv1d.weight", "conv.conv.weight")
    mixers = ("linear_attn.norm.weight", "mamba.norm.weight")
    of_layers = 0
    for tensor_name, values in load_file(tmp_path / "bfloat16" / "model.safetensors").items():
        if tensor_name.endswith(endings + mixers):
            assert torch.equal(values, exact[tensor_name]), tensor_name
            of_layers += 1
        else:
            assert values.dtype is torch.bfloat16, tensor_name
    assert of_layers == 3 * {"lfm2_biases": 1, "qwen3_5": 4, "granite_mamba": 5}[name]


def untiled(values: Array, num_keys: int) -> Array:
    """Rows of heads, of values of key heads by turns, as neighbours."""
    return np.concatenate([values[key::num_keys] for key in range(num_keys)])


@pytest.mark.parametrize("kind", TOLERANCES, ids=lambda kind: kind.name)
def test_quantised_heads_of_values_change_places(kind: Type, tmp_path: Path) -> None:
    variant = changed("qwen3_5", hidden_size=256, **WIDE)
    architecture, metadata, tensors = contents(variant, tmp_path / "original")
    parts = ("attn_qkv", "attn_gate", "ssm_out")
    kinds = {f"blk.0.{part}.weight": kind for part in parts}
    source = write_gguf(tmp_path / "q.gguf", architecture, metadata, tensors, kinds)
    for name, options in (("kept", {"keep_integers": True}), ("decoded", {"dtype": "float32"})):
        (tmp_path / name).mkdir()
        convert_gguf(source, tmp_path / name, **options)
    kept, decoded = load(tmp_path / "kept"), load(tmp_path / "decoded")
    stored = {part: file_values(tensors[f"blk.0.{part}.weight"], kind) for part in parts}
    values = stored["attn_qkv"][64:].reshape(4, 128, 256)
    expected = {
        "in_proj_qkv": np.concatenate([stored["attn_qkv"][:64], *untiled(values, 2)]),
        "in_proj_z": np.concatenate(list(untiled(stored["attn_gate"].reshape(4, 128, 256), 2))),
        "out_proj": np.concatenate(
            list(untiled(stored["ssm_out"].reshape(256, 4, 128).swapaxes(0, 1), 2)), axis=1
        ),
    }
    for part, matrix in expected.items():
        name = f"model.layers.0.linear_attn.{part}.weight"
        assert np.array_equal(decoded[name], matrix), part
        assert kept[name].dtype in (np.uint8, np.int8)
        assert_within(dequantize(kept, name), np.ascontiguousarray(matrix), TOLERANCES[kind])


@pytest.mark.parametrize("name", RECURRENT)
def test_quantised_matrices_stay_so(name: str, tmp_path: Path) -> None:
    wide = {"linear_value_head_dim": 32} if "qwen" in name else {}
    architecture, metadata, tensors = contents(changed_model(name, **wide), tmp_path / "original")
    kinds = {
        tensor_name: Type.Q8_0
        for tensor_name, values in tensors.items()
        if values.ndim > 1 and values.shape[-1] % 32 == 0 and "norm" not in tensor_name
    }
    source = write_gguf(tmp_path / "q8.gguf", architecture, metadata, tensors, kinds)
    converted = {}
    for label, keep_integers in (("kept", True), ("decoded", False)):
        converted[label] = tmp_path / label
        converted[label].mkdir()
        convert_gguf(source, converted[label], dtype="float32", keep_integers=keep_integers)
    kept, decoded = load(converted["kept"]), load(converted["decoded"])
    assert {tensor_name.removesuffix(".scales") for tensor_name in kept} == decoded.keys()
    num_kept = 0
    for tensor_name, values in decoded.items():
        if f"{tensor_name}.scales" not in kept:
            assert np.array_equal(kept[tensor_name], values), tensor_name
            continue
        found = dequantize(kept, tensor_name).astype(np.float32)
        assert np.array_equal(found, values), tensor_name
        num_kept += 1
    assert num_kept > len(kinds) / 2  # some of Granite's are joined
    tokens = random_tokens(60, seed=3)
    expected_logprobs = engine_logprobs(converted["decoded"], tokens, dtype="float32")
    logprobs = engine_logprobs(converted["kept"], tokens, dtype="float32")
    # Inputs of products are rounded, and then a token's experts may be others.
    assert np.median(np.abs(logprobs - expected_logprobs)) < 0.2


def changed_model(name: str, **config: Any) -> Variant:
    model = MODELS[name]
    return Variant(model.family, model.config | config, text_config=model.text_config)


def test_heads_that_are_no_whole_groups_are_decoded_if_asked(tmp_path: Path) -> None:
    variant = changed("qwen3_5", linear_num_value_heads=4, linear_value_head_dim=24)
    architecture, metadata, tensors = contents(variant, tmp_path / "original")
    name = "blk.0.ssm_out.weight"
    source = write_gguf(tmp_path / "q8.gguf", architecture, metadata, tensors, {name: Type.Q8_0})
    (tmp_path / "decoded").mkdir()
    convert_gguf(source, tmp_path / "decoded", dtype="float32")
    found = load(tmp_path / "decoded")["model.layers.0.linear_attn.out_proj.weight"]
    heads = file_values(tensors[name], Type.Q8_0).reshape(64, 4, 24).swapaxes(0, 1)
    assert np.array_equal(found, np.concatenate(list(untiled(heads, 2)), axis=1))
    (tmp_path / "kept").mkdir()
    with pytest.raises(CheckpointError, match="heads of 24 inputs are no whole groups of 32; give"):
        convert_gguf(source, tmp_path / "kept", keep_integers=True)


def test_vectors_of_heads_are_not_quantised(tmp_path: Path) -> None:
    variant = changed("qwen3_5", linear_num_value_heads=32)
    architecture, metadata, tensors = contents(variant, tmp_path / "original")
    name = "blk.0.ssm_dt.bias"
    source = write_gguf(tmp_path / "m.gguf", architecture, metadata, tensors, {name: Type.Q8_0})
    with pytest.raises(CheckpointError, match=f"{name} is a vector of type Q8_0; supported: F32"):
        convert(source)


def test_what_is_said_of_stored_weights(tmp_path: Path) -> None:
    variant = changed("qwen3_5", linear_value_head_dim=32)
    architecture, metadata, tensors = contents(variant, tmp_path / "original")
    kinds = {
        f"blk.{layer}.{part}.weight": kind
        for layer in (0, 1, 3)
        for part, kind in (
            ("attn_qkv", Type.Q5_0), ("attn_gate", Type.Q4_0), ("ssm_alpha", Type.Q8_0),
        )
    }  # fmt: skip
    source = write_gguf(tmp_path / "q.gguf", architecture, metadata, tensors, kinds)
    (tmp_path / "described").mkdir()
    weights = weights_of_gguf(describe_gguf(source, tmp_path / "described"), "bfloat16")
    recurrent = {w.stored: w for w in weights if w.part == "recurrent"}
    assert recurrent.keys() == {"Q5_0", "Q4_0", "Q8_0", "F32"}
    assert recurrent["Q5_0"].held == recurrent["Q4_0"].held == "int8_grouped"
    assert recurrent["Q8_0"].held == "bfloat16"
    assert recurrent["F32"].count == 6  # the other gates and the projections of results


# -- What is refused


def refuse(file: Contents, change: dict[str, Any], message: str, directory: Path) -> None:
    """change: keys of metadata, with a dot, and tensors; None takes either out."""
    architecture, metadata, tensors = file
    more = {key: value for key, value in change.items() if key.startswith(".")}
    others = {name: value for name, value in change.items() if name not in more}
    source = write_gguf(
        directory / "m.gguf",
        architecture,
        {key: value for key, value in (metadata | more).items() if value is not None},
        {n: np.asarray(v, np.float32) for n, v in (tensors | others).items() if v is not None},
    )
    with pytest.raises(CheckpointError, match=message):
        convert(source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({".ssm.conv_kernel": None}, "qwen35.ssm.conv_kernel is missing"),
        ({".ssm.state_size": 0}, "qwen35.ssm.state_size is 0, and must be positive"),
        ({".ssm.inner_size": 145}, "inner_size is 145, and ssm.time_step_rank is 6, which does"),
        ({".ssm.group_count": 4}, "time_step_rank is 6, and ssm.group_count is 4, which does not"),
        ({".ssm.dt_b_c_rms": True}, "ssm.dt_b_c_rms is True, which may change"),
        ({".ssm.v_head_reordered": False}, "ssm.v_head_reordered is False, which may change"),
        ({".attention.recurrent_layers": [True, False]}, "has 2 values for 4 layers"),
        ({".attention.recurrent_layers": 3}, "recurrent_layers is 3, expected list"),
        ({".full_attention_interval": 0}, "full_attention_interval is 0"),
        ({".attention.head_count_kv": [0, 1, 2, 0]}, "known is one number, and 0 for layers"),
        ({".nextn_predict_layers": 4}, "is 4, but the file has 4 layers in all"),
        ({".feed_forward_length": None}, "qwen35.feed_forward_length is missing"),
        ({".shortconv.l_cache": 3}, "shortconv.l_cache is 3, which may change"),
        ({"blk.0.attn_qkv.weight": np.ones((207, 64))}, "has 207 rows, expected 208"),
        ({"blk.0.attn_gate.weight": np.ones((64, 64))}, "has 64 rows, expected 144"),
        ({"blk.0.ssm_beta.weight": np.ones((4, 64))}, "has 4 rows, expected 6"),
        ({"blk.0.ssm_a": np.full(7, -1.0)}, "tensor blk.0.ssm_a has 7 rows, expected 6"),
        ({"blk.0.ssm_a": np.zeros(6)}, "blk.0.ssm_a has a value that is no finite number below 0"),
        ({"blk.0.ssm_a": np.full(6, np.nan)}, "no finite number below 0"),
        ({"blk.0.ssm_conv1d.weight": np.ones(208)}, "has 1 axes, expected two"),
        ({"blk.0.ssm_out.weight": np.ones((64, 72))}, "expected 144 columns"),
        ({"blk.0.ssm_a.weight": np.ones(6)}, "tensor blk.0.ssm_a.weight has no place"),
        ({"blk.0.ssm_dt": np.ones(6)}, "tensor blk.0.ssm_dt has no place"),
        ({"blk.0.ssm_in.weight": np.ones((8, 64))}, "tensor blk.0.ssm_in.weight has no place"),
        ({"blk.0.ssm_d": np.ones(6)}, "tensor blk.0.ssm_d has no place"),
    ],
)
def test_other_contents_of_qwen35_are_refused(
    change: dict[str, Any], message: str, delta: Contents, tmp_path: Path
) -> None:
    refuse(delta, change, message, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({".ssm.inner_size": 96}, "inner_size is 96, which is no multiple of embedding_length, 64"),
        ({".ssm.time_step_rank": 7}, "time_step_rank is 7, which does not divide it"),
        ({".ssm.group_count": None}, "granitehybrid.ssm.group_count is missing"),
        ({".ssm.dt_b_c_rms": True}, "ssm.dt_b_c_rms is True, which may change"),
        ({".attention.head_count_kv": [0] * 4}, "head_count_kv is .0, 0, 0, 0.; known is one"),
        ({".attention.head_count_kv": None}, "head_count_kv is missing"),
        ({"blk.0.ffn_up.weight": None}, "tensor blk.0.ffn_up.weight is missing"),
        ({"blk.0.ssm_x.weight": np.ones((8, 64))}, "tensor blk.0.ssm_x.weight has no place"),
        ({"blk.0.ssm_a": np.ones((8, 1))}, "no finite number below 0"),
    ],
)
def test_other_contents_of_granite_hybrid_are_refused(
    change: dict[str, Any], message: str, mamba: Contents, tmp_path: Path
) -> None:
    refuse(mamba, change, message, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({".shortconv.l_cache": None}, "lfm2moe.shortconv.l_cache is missing"),
        ({".expert_gating_func": 1}, "expert_gating_func is 1; known is only 2"),
        ({".expert_feed_forward_length": None}, "expert_feed_forward_length is missing"),
        ({".attention.causal": False}, "attention.causal is False, which may change"),
        ({".attention.sliding_window": 64}, "attention.sliding_window is 64, which may change"),
        ({"dense_2.weight": np.ones((8, 64))}, "tensor dense_2.weight has no place"),
        ({"blk.0.shortconv.other.weight": np.ones((8, 64))}, "other.weight has no place"),
    ],
)
def test_other_contents_of_lfm2_are_refused(
    change: dict[str, Any], message: str, conv: Contents, tmp_path: Path
) -> None:
    refuse(conv, change, message, tmp_path)
