"""GGUF files of every architecture become the checkpoints that transformers saved."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import dequantize, quantize
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedConfig

import make_checkpoints
from gguf_of_transformers import architecture_of, gguf_metadata, gguf_tensors, xielu_metadata
from logprobs import engine_logprobs, random_tokens
from make_checkpoints import MAX_POSITIONS, VARIANTS, Variant, build, rope
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_config import model_config
from specdec_native.checkpoints.gguf_convert import convert_gguf, describe_gguf
from specdec_native.checkpoints.gguf_file import GgufFile


def changed(variant: str, **config: Any) -> Variant:
    original = VARIANTS[variant]
    return dataclasses.replace(original, config=original.config | config)


# The parameters that all files with Llama 3's scaling have.
LLAMA3 = rope("llama3", **(make_checkpoints.LLAMA3 | {"original_max_position_embeddings": 8192}))

# A file has no scale of Gemma's queries: it is that of the heads' width. Nor has it what all models
# of a family have: the window of StarCoder2, the range of gpt-oss' positions.
MODELS = {
    "granite": VARIANTS["granite"],
    "granite_biases": VARIANTS["granite_biases"],
    "olmo2": VARIANTS["olmo2"],
    "olmo2_biases": VARIANTS["olmo2_biases"],
    "gemma": VARIANTS["gemma"],
    "gemma2": changed(
        "gemma2", query_pre_attn_scalar=32, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "phi3": VARIANTS["phi3"],
    "phi3_longrope": VARIANTS["phi3_longrope"],
    "phi3_longrope_short": VARIANTS["phi3_longrope_short"],
    "gpt_neox": VARIANTS["gpt_neox"],
    "gpt_neox_serial": VARIANTS["gpt_neox_serial"],
    "gpt_neox_no_bias": VARIANTS["gpt_neox_no_bias"],
    "mixtral_top3": VARIANTS["mixtral_top3"],
    "qwen2_moe": VARIANTS["qwen2_moe"],
    "qwen3_moe": VARIANTS["qwen3_moe_renormalized"],
    "gpt_oss": changed("gpt_oss", **rope("yarn", truncate=False, **make_checkpoints.YARN)),
    "olmo3": VARIANTS["olmo3"],
    "olmo3_yarn": VARIANTS["olmo3_yarn"],
    "olmoe": VARIANTS["olmoe"],
    "smollm3": VARIANTS["smollm3"],
    "granite_moe": VARIANTS["granite_moe"],
    "granite_moe_shared": VARIANTS["granite_moe_shared"],
    "granite_hybrid_dense": changed("granite_hybrid_dense", num_experts_per_tok=0),
    "granite_hybrid_moe": changed("granite_hybrid_moe", position_embedding_type="rope"),
    "seed_oss": VARIANTS["seed_oss"],
    "exaone4": VARIANTS["exaone4"],
    "exaone4_full": changed("exaone4_full", **LLAMA3),
    "glm4": VARIANTS["glm4"],
    "glm4_moe": VARIANTS["glm4_moe"],
    "ernie4_5": VARIANTS["ernie4_5"],
    "ernie4_5_moe": VARIANTS["ernie4_5_moe"],
    "cohere": VARIANTS["cohere"],
    "cohere2": VARIANTS["cohere2"],
    "ministral3": VARIANTS["ministral3"],
    "starcoder2": changed("starcoder2", sliding_window=4096),
    "stablelm": VARIANTS["stablelm"],
    "stablelm_parallel": VARIANTS["stablelm_parallel"],
    "nemotron": VARIANTS["nemotron"],
    "arcee": VARIANTS["arcee"],
    "apertus": changed("apertus", **LLAMA3),
    "hunyuan_dense": changed("hunyuan_dense", **rope("default")),
}
# Converted to a family that computes the same under other names.
RENAMED = ("granite_hybrid_dense", "granite_hybrid_moe")


@dataclasses.dataclass
class Pair:
    """A checkpoint and what its GGUF file was converted to."""

    original: Path
    gguf: Path
    converted: Path


def make_pair(
    directory: Path,
    variant: Variant,
    *,
    architecture: str | None = None,
    more: dict[str, Any] | None = None,
) -> Pair:
    """more: metadata of the file besides those of the model."""
    model = build(variant)
    model.save_pretrained(directory / "original")
    weights = load_file(directory / "original" / "model.safetensors")
    if model.config.model_type == "apertus":
        more = xielu_metadata(weights, model.config.num_hidden_layers)
    architecture = architecture or architecture_of(model.config)
    source = write_gguf(
        directory / "model.gguf",
        architecture,
        gguf_metadata(model.config) | (more or {}),
        gguf_tensors(weights, model.config, architecture),
    )
    return Pair(directory / "original", source, convert(source))


def convert(source: Path) -> Path:
    directory = source.with_suffix("")
    directory.mkdir()
    convert_gguf(source, directory)
    return directory


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


def same_logprobs(pair: Pair, tolerance: float = 1e-5) -> bool:
    tokens = random_tokens(MAX_POSITIONS // 4 + 8, seed=3)  # past Phi's original context
    options = {"dtype": "float32", "max_model_len": MAX_POSITIONS}
    expected = engine_logprobs(pair.original, tokens, **options)
    found = engine_logprobs(pair.converted, tokens, **options)
    return np.allclose(found, expected, rtol=0, atol=tolerance)


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


EXPERTS = {".expert_count": 4, ".expert_used_count": 2, ".expert_feed_forward_length": 32}


@pytest.mark.parametrize(
    ("architecture", "metadata", "message"),
    [
        ("apertus", {}, "metadata xielu.alpha_p is missing"),
        ("apertus", {"xielu.alpha_p": [0.5, 0.5]}, "xielu.alpha_p has 2 values for 1 layers"),
        ("glm4moe", EXPERTS | {".expert_gating_func": 1}, "expert_gating_func is 1; known is only"),
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


def config_of(path: Path, architecture: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """config.json for LLAMA_METADATA with `metadata`, where None leaves a key out."""
    kept = {key: value for key, value in (LLAMA_METADATA | metadata).items() if value is not None}
    embedding = {"token_embd.weight": llama_tensors()["token_embd.weight"]}
    file = GgufFile(write_gguf(path, architecture, kept, embedding))
    return model_config(file, dtype="float32", tied=True)


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
    experts = {".expert_count": 4, ".expert_used_count": 2, ".expert_feed_forward_length": 32}
    known = experts if architecture == "qwen3moe" else {}
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


def test_generation_config_has_the_ids(pairs: Pairs) -> None:
    generation = json.loads((pairs["phi3"].converted / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
