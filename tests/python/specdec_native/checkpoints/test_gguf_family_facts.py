"""What GGUF files of some architectures leave out, have besides, or must have."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize, quantize
from safetensors.torch import load_file

from gguf_of_transformers import gguf_metadata, gguf_tensors
from gguf_pairs import MODELS, changed, config_of, convert, make_pair, same_logprobs
from logprobs import engine_logprobs, random_tokens
from make_checkpoints import VARIANTS, build
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_config import model_config
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.gguf_file import GgufFile

EXPERTS = {".expert_count": 4, ".expert_used_count": 2, ".expert_feed_forward_length": 32}


def test_minicpm_is_a_llama_with_multipliers(tmp_path: Path) -> None:
    # transformers has no MiniCPM, and Granite is one with a scale of attention, here the usual.
    variant = changed("granite", attention_multiplier=0.25)
    scales = {".attention.scale": 0.25}
    pair = make_pair(tmp_path, variant, architecture="minicpm", more=scales)
    config = json.loads((pair.converted / "config.json").read_text())
    assert (config["model_type"], config["scale_emb"]) == ("minicpm", 1.7)
    assert config["scale_depth"] == pytest.approx(0.6 * 3**0.5)
    assert config["dim_model_base"] == pytest.approx(64 / 1.4)
    assert same_logprobs(pair)


def test_minicpm_has_its_constants_where_the_file_has_none(tmp_path: Path) -> None:
    config = config_of(tmp_path / "old.gguf", "minicpm", {})
    assert (config["scale_emb"], config["scale_depth"], config["dim_model_base"]) == (12, 1.4, 256)
    assert config["rope_scaling"] is None


def test_minicpm4_has_two_lists_of_divisors_and_no_factor(tmp_path: Path) -> None:
    factors = {f"rope_factors_{k}.weight": np.ones(32, np.float32) for k in ("short", "long")}
    embedding = {"token_embd.weight": llama_tensors()["token_embd.weight"]}
    metadata = LLAMA_METADATA | {".rope.scaling.type": "longrope"}
    source = write_gguf(tmp_path / "m.gguf", "minicpm", metadata, embedding | factors)
    config = model_config(GgufFile(source), dtype="float32", tied=True)
    assert config["rope_scaling"]["rope_type"] == "longrope"
    assert config["rope_scaling"]["attention_factor"] == 1.0


def test_the_base_of_hunyuan_is_stretched_in_the_file(tmp_path: Path) -> None:
    base = 10000.0 * 50.0 ** (32 / 30)
    stretched = {".rope.freq_base": base, ".rope.scaling.type": "none", ".rope.scaling.factor": 1.0}
    assert same_logprobs(make_pair(tmp_path, VARIANTS["hunyuan_dense"], more=stretched), 1e-4)


def test_mistral_small_is_a_mistral_without_window(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, VARIANTS["mistral_full"], architecture="mistral3")
    config = json.loads((pair.converted / "config.json").read_text())
    assert (config["model_type"], config["sliding_window"]) == ("mistral", None)
    assert same_logprobs(pair, 0.0)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "attention.temperature_scale is 0.5 and rope.scaling.type is not yarn"),
        ({".rope.scaling.type": "yarn", ".attention.temperature_length": 65}, "known is only 0 or"),
    ],
)
def test_growing_queries_need_the_length_of_yarn(
    metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    scaling = {".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 64}
    known = scaling | {".attention.temperature_scale": 0.5} | metadata
    with pytest.raises(CheckpointError, match=message):
        config_of(tmp_path / "m.gguf", "mistral3", known)


def test_layers_of_glm4_moe_that_predict_later_tokens_are_left_out(tmp_path: Path) -> None:
    model = build(VARIANTS["glm4_moe"])
    num_layers = model.config.num_hidden_layers
    model.save_pretrained(tmp_path / "original")
    weights = load_file(tmp_path / "original" / "model.safetensors")
    tensors = gguf_tensors(weights, model.config)
    last = f"blk.{num_layers}."
    later = {
        name.replace(f"blk.{num_layers - 1}.", last): values
        for name, values in tensors.items()
        if name.startswith(f"blk.{num_layers - 1}.")
    }
    later[f"{last}nextn.eh_proj.weight"] = np.ones((64, 128), np.float32)
    counts = {".block_count": num_layers + 1, ".nextn_predict_layers": 1}
    metadata = gguf_metadata(model.config)
    plain = convert(write_gguf(tmp_path / "plain.gguf", "glm4moe", metadata, tensors))
    more = tensors | later
    found = convert(write_gguf(tmp_path / "more.gguf", "glm4moe", metadata | counts, more))
    for name in ("config.json", "model.safetensors"):
        assert (found / name).read_bytes() == (plain / name).read_bytes()
    source = write_gguf(tmp_path / "past.gguf", "glm4moe", metadata, more)
    with pytest.raises(CheckpointError, match=f"past the last of {num_layers} layers"):
        convert(source)


def test_experts_of_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    pair = make_pair(tmp_path / "float", MODELS["gpt_oss"])
    tensors = {
        name: np.concatenate([np.concatenate(list(tensor.slice(i).rows()))[None] for i in range(6)])
        if len(tensor.shape) == 3
        else np.concatenate(list(tensor.rows()))
        for name, tensor in GgufFile(pair.gguf).tensors.items()
    }
    kinds = {name: Type.MXFP4 for name, values in tensors.items() if values.ndim == 3}
    metadata = gguf_metadata(build(MODELS["gpt_oss"]).config)
    source = write_gguf(tmp_path / "mxfp4.gguf", "gpt-oss", metadata, tensors, kinds)
    converted = {}
    for name, keep_integers in (("kept", True), ("decoded", False)):
        converted[name] = tmp_path / name
        converted[name].mkdir()
        convert_gguf(source, converted[name], dtype="float32", keep_integers=keep_integers)
    kept = load_file(converted["kept"] / "model.safetensors")
    assert kept["model.layers.0.mlp.experts.5.gate_proj.weight.table"].shape == (16,)
    assert kept["model.layers.0.mlp.experts.gate_up_proj_bias"].dtype == torch.float32
    tokens = random_tokens(60, seed=3)
    expected = engine_logprobs(converted["decoded"], tokens, dtype="float32")
    found = engine_logprobs(converted["kept"], tokens, dtype="float32")
    assert np.abs(found - expected).max() < 0.1  # inputs of products are rounded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blk.0.ffn_up_shexp.weight": None}, "tensor blk.0.ffn_up_shexp.weight is missing"),
        ({"blk.0.ffn_gate_shexp.weight": None}, "tensor blk.0.ffn_gate_shexp.weight is missing"),
        ({"blk.0.ffn_up_shexp.weight": np.ones((8, 32), np.float32)}, "differ in type or width"),
    ],
)
def test_tensors_that_become_one_fit_or_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors: dict[str, Any] = {
        f"blk.0.ffn_{part}_shexp.weight": np.ones((8, 256), np.float32) for part in ("gate", "up")
    }
    tensors |= {"token_embd.weight": llama_tensors()["token_embd.weight"]} | change
    present = {name: values for name, values in tensors.items() if values is not None}
    experts = {".expert_count": 4, ".expert_used_count": 2}
    source = write_gguf(tmp_path / "m.gguf", "granitemoe", LLAMA_METADATA | experts, present)
    with pytest.raises(CheckpointError, match=message):
        convert(source)


def test_joined_matrices_stay_quantised(tmp_path: Path) -> None:
    pair = make_pair(tmp_path / "float", MODELS["granite_moe_shared"])
    stored = GgufFile(pair.gguf).tensors
    names = [f"blk.0.ffn_{part}_shexp.weight" for part in ("gate", "up")]
    matrices = [np.concatenate(list(stored[name].rows())) for name in names]
    metadata = gguf_metadata(build(MODELS["granite_moe_shared"]).config)
    tensors = {"token_embd.weight": np.zeros((8, 64), np.float32)}
    tensors |= dict(zip(names, matrices, strict=True))
    kinds = dict.fromkeys(names, Type.Q8_0)
    source = write_gguf(tmp_path / "q8.gguf", "granitemoe", metadata, tensors, kinds)
    directory = tmp_path / "kept"
    directory.mkdir()
    convert_gguf(source, directory, keep_integers=True)
    kept = load_file(directory / "model.safetensors")
    name = "model.layers.0.shared_mlp.input_linear.weight"
    codes, scales = kept[name].numpy(), kept[f"{name}.scales"].numpy()
    values = codes.reshape(*scales.shape, -1) * scales.astype(np.float32)[..., np.newaxis]
    expected = np.concatenate([dequantize(quantize(m, Type.Q8_0), Type.Q8_0) for m in matrices])
    assert np.array_equal(values.reshape(expected.shape), expected)


@pytest.mark.parametrize("architecture", ["apertus", "gpt-oss"])
def test_a_file_without_scaling_has_none(architecture: str, tmp_path: Path) -> None:
    parts = ("alpha_p", "alpha_n", "beta", "eps")
    own: dict[str, dict[str, Any]] = {
        "apertus": {f"xielu.{part}": [0.5] for part in parts},
        "gpt-oss": EXPERTS | {".attention.sliding_window": 16},
    }
    config = config_of(tmp_path / "m.gguf", architecture, own[architecture])
    assert config["rope_scaling"]["rope_type"] == "default"  # without it, they have their own


def test_exaone4_of_64_layers_has_windows(tmp_path: Path) -> None:
    large = config_of(tmp_path / "32b.gguf", "exaone4", {".block_count": 64})
    assert (large["sliding_window"], large["layer_types"].count("full_attention")) == (4096, 16)
    small = config_of(tmp_path / "1b.gguf", "exaone4", {".block_count": 30})
    assert (small["sliding_window"], set(small["layer_types"])) == (None, {"full_attention"})


def test_a_stablelm_is_parallel_where_it_has_no_second_norm(tmp_path: Path) -> None:
    said = {".use_parallel_residual": True, ".attention.layer_norm_epsilon": 1e-5}
    metadata = {key: value for key, value in LLAMA_METADATA.items() if "rms" not in key} | said
    for has_norm, is_parallel in ((True, False), (False, True)):
        tensors = llama_tensors()
        if not has_norm:
            del tensors["blk.0.ffn_norm.weight"]
        source = write_gguf(tmp_path / f"{has_norm}.gguf", "stablelm", metadata, tensors)
        config = model_config(GgufFile(source), dtype="float32", tied=True)
        assert config["use_parallel_residual"] is is_parallel


def test_what_yarn_multiplies_attention_by_follows_from_its_factor(tmp_path: Path) -> None:
    yarn = {
        ".rope.scaling.type": "yarn",
        ".rope.scaling.factor": 8.0,
        ".rope.scaling.original_context_length": 64,
    }
    plain = config_of(tmp_path / "plain.gguf", "olmo2", yarn)
    said = {".rope.scaling.yarn_attn_factor": 1.2079441541679836}
    assert config_of(tmp_path / "said.gguf", "olmo2", yarn | said) == plain
    other = {".rope.scaling.yarn_attn_factor": 1.5}
    with pytest.raises(CheckpointError, match=r"yarn_attn_factor is 1\.5; known is only 1\.20794"):
        config_of(tmp_path / "other.gguf", "olmo2", yarn | other)
    both = {".rope.scaling.attn_factor": 1.5, ".rope.scaling.yarn_log_multiplier": 1.0}
    with pytest.raises(CheckpointError, match="which is one too many"):
        config_of(tmp_path / "both.gguf", "olmo2", yarn | both)


@pytest.mark.parametrize(
    ("architecture", "metadata", "message"),
    [
        ("apertus", {}, "metadata xielu.alpha_p is missing"),
        ("apertus", {"xielu.alpha_p": [0.5, 0.5]}, "xielu.alpha_p has 2 values for 1 layers"),
        ("glm4moe", EXPERTS | {".expert_gating_func": 1}, "expert_gating_func is 1; known is only"),
        (
            "glm4moe",
            EXPERTS | {".nextn_predict_layers": 1},
            "is 1, but the file has 1 layers in all",
        ),
        (
            "ernie4_5-moe",
            EXPERTS | {".expert_shared_count": 2, ".expert_shared_feed_forward_length": 65},
            "expert_shared_feed_forward_length is 65; known is only 0 or 64",
        ),
        ("gpt-oss", EXPERTS | {".attention.sliding_window_pattern": 3}, "pattern is 3"),
        ("cohere2", {".attention.layer_norm_epsilon": 1e-5}, "cohere2.logit_scale is missing"),
        ("granitemoe", {".rope.scaling.finetuned": False}, "a Granite without positions"),
        ("smollm3", {".attention.sliding_window": 512}, "attention.sliding_window is 512"),
    ],
)
def test_what_a_family_needs_is_there_or_refused(
    architecture: str, metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    window = {".attention.sliding_window": 16} if architecture == "gpt-oss" else {}
    with pytest.raises(CheckpointError, match=message):
        config_of(tmp_path / "m.gguf", architecture, window | metadata)


def test_gemma2_has_its_constants_where_the_file_has_none(tmp_path: Path) -> None:
    config = config_of(tmp_path / "2b.gguf", "gemma2", {".block_count": 4})
    assert config["sliding_window"] == 4096
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (50.0, 30.0)
    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 2
    assert config["query_pre_attn_scalar"] == 64
    wide = {".block_count": 46, ".attention.key_length": 32, ".attention.value_length": 32}
    config = config_of(tmp_path / "27b.gguf", "gemma2", wide)
    assert (config["head_dim"], config["query_pre_attn_scalar"]) == (32, 64)
    known = {".attention.sliding_window_pattern": 2, ".rope.freq_base_swa": 10000.0}
    assert config_of(tmp_path / "known.gguf", "gemma2", {".block_count": 4} | known)
    with pytest.raises(CheckpointError, match="gemma2.rope.freq_base_swa is 20000.0"):
        config_of(tmp_path / "swa.gguf", "gemma2", {".rope.freq_base_swa": 20000.0})


def test_granite_without_multipliers_and_without_positions(tmp_path: Path) -> None:
    config = config_of(tmp_path / "plain.gguf", "granite", {".embedding_scale": 0.0})
    assert config["attention_multiplier"] == 0.125
    for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
        assert config[key] == 1.0
    with pytest.raises(CheckpointError, match="a Granite without positions"):
        config_of(tmp_path / "nope.gguf", "granite", {".rope.scaling.finetuned": False})


def test_the_largest_gpt_neox_approximates_its_activation(tmp_path: Path) -> None:
    eps = {
        ".attention.layer_norm_epsilon": 1e-5,
        ".attention.layer_norm_rms_epsilon": None,
        ".attention.head_count_kv": None,
    }
    pythia = config_of(tmp_path / "pythia.gguf", "gptneox", eps)
    assert (pythia["hidden_act"], pythia["rotary_pct"]) == ("gelu", 1.0)
    large = config_of(tmp_path / "20b.gguf", "gptneox", eps | {".block_count": 44})
    assert large["hidden_act"] == "gelu_pytorch_tanh"
    with pytest.raises(CheckpointError, match="gptneox.attention.head_count_kv is 2"):
        config_of(tmp_path / "kv.gguf", "gptneox", eps | {".attention.head_count_kv": 2})


def test_phi4_has_no_window_and_no_scaling(tmp_path: Path) -> None:
    metadata = {".attention.sliding_window": 0, ".rope.scaling.original_context_length": 128}
    config = config_of(tmp_path / "phi4.gguf", "phi3", metadata)
    assert (config["sliding_window"], config["rope_scaling"]) == (None, None)
    assert config["original_max_position_embeddings"] == 128


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"short": 32}, {}, "one is missing"),
        ({"short": 32, "long": 31}, {}, "rope_factors_long.weight has 31 values, expected 32"),
        ({"short": 32, "long": 32}, {}, "phi3.rope.scaling.attn_factor is missing"),
        ({}, {".rope.dimension_count": 65}, "phi3.rope.dimension_count is 65"),
    ],
)
def test_longrope_of_phi3_is_complete_or_refused(
    tensors: dict[str, int], metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    factors = {f"rope_factors_{k}.weight": np.ones(n, np.float32) for k, n in tensors.items()}
    embedding = {"token_embd.weight": llama_tensors()["token_embd.weight"]}
    source = write_gguf(tmp_path / "m.gguf", "phi3", LLAMA_METADATA | metadata, embedding | factors)
    with pytest.raises(CheckpointError, match=message):
        model_config(GgufFile(source), dtype="float32", tied=True)


def test_the_text_of_qwen3_vl_is_qwen3(tmp_path: Path) -> None:
    head_norms = {f"blk.0.attn_{part}_norm.weight": np.ones(64, np.float32) for part in "qk"}
    tensors = llama_tensors() | head_norms
    plain = write_gguf(tmp_path / "plain.gguf", "qwen3", LLAMA_METADATA, tensors)
    metadata = LLAMA_METADATA | {
        ".rope.dimension_sections": [24, 20, 20, 0], ".n_deepstack_layers": 3,
    }  # fmt: skip
    text = write_gguf(tmp_path / "text.gguf", "qwen3vl", metadata, tensors)
    expected, found = convert(plain), convert(text)
    for name in ("config.json", "model.safetensors"):
        assert (found / name).read_bytes() == (expected / name).read_bytes()


def test_a_granite_of_experts_without_experts_is_dense(tmp_path: Path) -> None:
    known = {".expert_used_count": 2, ".expert_shared_feed_forward_length": 512}
    config = config_of(tmp_path / "m.gguf", "granitemoe", known)
    assert config == config_of(tmp_path / "dense.gguf", "granite", {})


@pytest.mark.parametrize("architecture", ["granite", "olmo2", "gemma2", "phi3", "qwen3moe"])
def test_metadata_of_others_is_refused(architecture: str, tmp_path: Path) -> None:
    known = EXPERTS if architecture == "qwen3moe" else {}
    assert config_of(tmp_path / "known.gguf", architecture, known)["hidden_size"] == 256
    for key in (".leading_dense_block_count", ".attention.temperature_scale", ".ssm.dt_b_c_rms"):
        with pytest.raises(CheckpointError, match=f"metadata {architecture}{key} is 3"):
            config_of(tmp_path / f"m{key}.gguf", architecture, known | {key: 3})


@pytest.mark.parametrize(
    ("architecture", "tensor"),
    [
        ("granite", "rope_factors_long.weight"),
        ("qwen2", "blk.0.attn_qkv.weight"),
        ("gptneox", "rope_freqs.weight"),
        ("granite", "blk.0.ssm_in.weight"),
        ("seed_oss", "blk.0.ffn_norm.weight"),
        ("granite", "blk.0.ffn_up_exps.weight"),
    ],
)
def test_tensors_of_others_have_no_place(architecture: str, tensor: str, tmp_path: Path) -> None:
    metadata = LLAMA_METADATA | {".attention.layer_norm_epsilon": 1e-5}
    if architecture != "gptneox":
        del metadata[".attention.layer_norm_epsilon"]
    else:
        del metadata[".attention.layer_norm_rms_epsilon"], metadata[".attention.head_count_kv"]
    tensors = {"token_embd.weight": llama_tensors()["token_embd.weight"]}
    tensors[tensor] = np.ones((1, 32, 256) if "exps" in tensor else (32,), np.float32)
    source = write_gguf(tmp_path / "m.gguf", architecture, metadata, tensors)
    with pytest.raises(CheckpointError, match=f"tensor {tensor} has no place"):
        convert(source)


@pytest.mark.parametrize(
    ("kind", "message"), [("adapter", "a LoRA adapter"), ("mmproj", "the vision or audio part")]
)
def test_a_file_of_something_else_is_named(kind: str, message: str, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", "clip", {"general.type": kind}, {})
    with pytest.raises(CheckpointError, match=f"general.type is '{kind}': this is {message}"):
        convert(source)
