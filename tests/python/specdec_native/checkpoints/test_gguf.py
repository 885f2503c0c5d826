"""GGUF files become checkpoints with the same weights and hyperparameters."""

import json
import os
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from gguf_of_transformers import architecture_of, gguf_metadata, gguf_tensors, interleave
from make_gguf import LLAMA_METADATA, encode, llama_tensors, write_gguf
from specdec_native.checkpoints import safetensors_writer
from specdec_native.checkpoints.errors import CheckpointError
from specdec_native.checkpoints.gguf_config import WITHOUT_EFFECT
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_rope import llama3_divisors
from specdec_native.checkpoints.safetensors_writer import float32_to_bfloat16

SUPPORTED = [
    Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1,
    Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4,
    Type.NVFP4, Type.TQ1_0, Type.TQ2_0, Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS,
    Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S,
]  # fmt: skip

TINY: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def make_model(config: PreTrainedConfig) -> Any:
    factory: Any = AutoModelForCausalLM
    return factory.from_config(config).float().eval()


def load_model(directory: Path) -> Any:
    factory: Any = AutoModelForCausalLM
    return factory.from_pretrained(directory).eval()


def convert(source: Path, **options: Any) -> Path:
    directory = source.with_suffix("")
    directory.mkdir()
    convert_gguf(source, directory, **options)
    return directory


def read_config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**TINY, rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    "llama-tied-biased": LlamaConfig(
        **TINY, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "qwen2": Qwen2Config(**TINY, rms_norm_eps=1e-6),
    "qwen3": Qwen3Config(**TINY, head_dim=32, tie_word_embeddings=True),
    "gemma3": Gemma3TextConfig(
        **(TINY | {"num_hidden_layers": 7}),
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=8,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
        dtype=torch.float32,
    ),
    "mixtral": MixtralConfig(**TINY, num_local_experts=4, num_experts_per_tok=2),
}


@pytest.mark.parametrize("variant", CONFIGS)
def test_model_equals_the_transformers_checkpoint_it_was_made_from(
    variant: str, tmp_path: Path
) -> None:
    config = CONFIGS[variant]
    torch.manual_seed(0)
    model = make_model(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):  # ones and zeros would hide a mix-up
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "original")
    original = load_file(tmp_path / "original" / "model.safetensors")
    source = write_gguf(
        tmp_path / "model.gguf",
        architecture_of(config),
        gguf_metadata(config),
        gguf_tensors(original, config),
    )

    directory = convert(source)

    converted = load_file(directory / "model.safetensors")
    assert sorted(converted) == sorted(original)
    for name, tensor in original.items():
        # Gemma's norms are stored with one added, which rounds what is small beside it.
        rounding = 5e-7 if config.model_type == "gemma3_text" and tensor.dim() == 1 else 0.0
        assert torch.allclose(converted[name], tensor, rtol=0, atol=rounding), name
    reloaded = load_model(directory)
    assert type(reloaded) is type(model)
    tokens = torch.arange(1, 33).reshape(2, 16)
    with torch.no_grad():
        found, expected = reloaded(tokens).logits, model(tokens).logits
    assert torch.allclose(found, expected, rtol=0, atol=1e-5 if "gemma" in variant else 0.0)


@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_supported_type_decodes_and_rounds_once(
    kind: Type, dtype: str, tmp_path: Path
) -> None:
    tensors = llama_tensors()
    matrices = [name for name, values in tensors.items() if values.ndim == 2]
    source = write_gguf(
        tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors, dict.fromkeys(matrices, kind)
    )

    converted = load_file(convert(source, dtype=dtype) / "model.safetensors")

    values = gguf.dequantize(encode(tensors["blk.0.ffn_down.weight"], kind), kind)
    expected = torch.from_numpy(np.array(values)).to(getattr(torch, dtype))
    assert torch.equal(converted["model.layers.0.mlp.down_proj.weight"], expected)
    query = gguf.dequantize(encode(tensors["blk.0.attn_q.weight"], kind), kind)
    assert torch.equal(
        torch.from_numpy(interleave(converted_query(converted), 4)),
        torch.from_numpy(np.array(query)).to(getattr(torch, dtype)).float(),
    )


def converted_query(converted: dict[str, torch.Tensor]) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = (
        converted["model.layers.0.self_attn.q_proj.weight"].float().numpy()
    )
    return values


def test_default_dtype_is_bfloat16_unless_the_matrices_are_float32(tmp_path: Path) -> None:
    plain = write_gguf(tmp_path / "plain.gguf", "llama", LLAMA_METADATA, llama_tensors())
    quantised = write_gguf(
        tmp_path / "quantised.gguf",
        "llama",
        LLAMA_METADATA,
        llama_tensors(),
        {"token_embd.weight": Type.Q8_0},
    )
    for source, dtype in ((plain, "float32"), (quantised, "bfloat16")):
        directory = convert(source)
        assert read_config(directory)["torch_dtype"] == dtype
        weights = load_file(directory / "model.safetensors").values()
        assert {tensor.dtype for tensor in weights} == {getattr(torch, dtype)}


def test_bfloat16_rounding_agrees_with_torch_on_every_kind_of_number() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    halfway = (rng.integers(0, 1 << 16, 5_000, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, halfway]).view(np.float32)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, 3.4e38, 1e-45], dtype=np.float32)
    values = np.concatenate([values, edges])
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    rounded = float32_to_bfloat16(values).view(np.int16)
    is_nan = np.isnan(values)
    assert np.array_equal(rounded[~is_nan], expected[~is_nan])
    widened = float32_to_bfloat16(values).astype(np.uint32) << 16
    assert np.isnan(widened[is_nan].view(np.float32)).all()


def test_rows_decoded_in_many_chunks_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"blk.0.attn_k.weight": Type.Q4_K, "token_embd.weight": Type.Q6_K}
    one = write_gguf(tmp_path / "one.gguf", "llama", LLAMA_METADATA, llama_tensors(), kinds)
    many = write_gguf(tmp_path / "many.gguf", "llama", LLAMA_METADATA, llama_tensors(), kinds)
    whole = load_file(convert(one) / "model.safetensors")
    monkeypatch.setattr("specdec_native.checkpoints.gguf_file._CHUNK_ELEMENTS", 7 * 256)
    pieces = load_file(convert(many) / "model.safetensors")
    assert all(torch.equal(pieces[name], tensor) for name, tensor in whole.items())


def test_model_above_the_shard_limit_is_written_in_indexed_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_writer, "MAX_SHARD_BYTES", 600_000)
    tensors = llama_tensors()
    directory = convert(write_gguf(tmp_path / "m.gguf", "llama", LLAMA_METADATA, tensors))
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    files = sorted(directory.glob("*.safetensors"))
    assert len(files) > 2
    assert {file.name for file in files} == set(index["weight_map"].values())
    for name, file in index["weight_map"].items():
        with safe_open(directory / file, "pt") as shard:
            assert name in shard.keys()  # noqa: SIM118 (safe_open is no dictionary)
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in tensors.values())


def test_missing_output_projection_means_tied(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tied = convert(write_gguf(tmp_path / "tied.gguf", "llama", LLAMA_METADATA, tensors))
    tensors["output.weight"] = tensors["token_embd.weight"] + 1.0
    untied = convert(write_gguf(tmp_path / "untied.gguf", "llama", LLAMA_METADATA, tensors))
    assert read_config(tied)["tie_word_embeddings"] is True
    assert read_config(untied)["tie_word_embeddings"] is False
    assert "lm_head.weight" in load_file(untied / "model.safetensors")


def test_tie_uses_the_output_projection_for_both(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"] + 1.0
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors)
    directory = convert(source, tie=True)
    weights = load_file(directory / "model.safetensors")
    assert read_config(directory)["tie_word_embeddings"] is True
    assert "lm_head.weight" not in weights
    assert np.array_equal(weights["model.embed_tokens.weight"].numpy(), tensors["output.weight"])


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_scaling_is_recognised_by_its_divisors(factor: float, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model = make_model(LlamaConfig(**(TINY | {"hidden_size": 256}), rope_parameters=scaling))
    scaled = model.model.rotary_emb.inv_freq.double().numpy()
    divisors = 500000.0 ** (-np.arange(32) / 32) / scaled
    assert np.allclose(divisors, llama3_divisors(factor, 500000.0, 32), rtol=1e-5)
    metadata = LLAMA_METADATA | {".rope.freq_base": 500000.0}
    tensors = llama_tensors() | {"rope_freqs.weight": divisors.astype(np.float32)}

    config = read_config(convert(write_gguf(tmp_path / "m.gguf", "llama", metadata, tensors)))

    expected = {key: value for key, value in scaling.items() if key != "rope_theta"}
    assert config["rope_scaling"] == expected
    assert config["rope_theta"] == 500000.0


def test_rope_divisors_of_another_rule_are_refused(tmp_path: Path) -> None:
    divisors = np.linspace(1.0, 8.0, 32, dtype=np.float32)
    tensors = llama_tensors() | {"rope_freqs.weight": divisors}
    with pytest.raises(CheckpointError, match="rope_freqs.weight is not the Llama 3 scaling"):
        convert(write_gguf(tmp_path / "m.gguf", "llama", LLAMA_METADATA, tensors))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({".rope.scaling.type": "none"}, None),
        (
            {".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({".rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                ".rope.scaling.type": "yarn",
                ".rope.scaling.factor": 4.0,
                ".rope.scaling.original_context_length": 32,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_rope_scaling_metadata_is_mapped(
    metadata: dict[str, Any], expected: dict[str, Any] | None, tmp_path: Path
) -> None:
    source = write_gguf(
        tmp_path / "model.gguf", "llama", LLAMA_METADATA | metadata, llama_tensors()
    )
    assert read_config(convert(source))["rope_scaling"] == expected


def test_sliding_window_makes_a_mistral_model(tmp_path: Path) -> None:
    metadata = LLAMA_METADATA | {".attention.sliding_window": 64}
    config = read_config(
        convert(write_gguf(tmp_path / "m.gguf", "llama", metadata, llama_tensors()))
    )
    assert config["architectures"] == ["MistralForCausalLM"]
    assert config["sliding_window"] == 64


def test_every_end_token_reaches_the_generation_config(tmp_path: Path) -> None:
    metadata = LLAMA_METADATA | {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2}
    directory = convert(write_gguf(tmp_path / "m.gguf", "llama", metadata, llama_tensors()))
    generation = json.loads((directory / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 5]
    assert generation["bos_token_id"] == 1


def test_unsupported_type_names_the_supported_ones(tmp_path: Path) -> None:
    source = write_gguf(
        tmp_path / "model.gguf",
        "llama",
        LLAMA_METADATA,
        llama_tensors(),
        {"blk.0.ffn_up.weight": Type.F64},
    )
    with pytest.raises(CheckpointError, match=r"blk.0.ffn_up.weight has type F64.*Q4_K"):
        convert(source)


def test_a_type_that_the_gguf_package_does_not_know_is_named(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, llama_tensors())
    name = b"blk.0.ffn_up.weight"
    content = bytearray(whole.read_bytes())
    kind = content.index(name) + len(name) + 4 + 2 * 8  # past the number of extents and these
    content[kind : kind + 4] = (99).to_bytes(4, "little")
    whole.write_bytes(content)
    with pytest.raises(CheckpointError, match="ffn_up.weight has the type of number 99.*update"):
        convert(whole)


@pytest.mark.parametrize("shape", [(0, 256), (0,), (4, 0)])
def test_a_tensor_without_values_is_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensors = llama_tensors() | {"blk.0.ffn_up.weight": np.zeros(shape, np.float32)}
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors)
    with pytest.raises(CheckpointError, match=r"blk.0.ffn_up.weight has no values"):
        convert(source)


def test_unsupported_architecture_names_the_known_ones(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", "deepseek4", LLAMA_METADATA, llama_tensors())
    with pytest.raises(
        CheckpointError, match="'deepseek4' is not supported.*llama, mistral3, qwen2"
    ):
        convert(source)


def test_missing_hyperparameter_is_named(tmp_path: Path) -> None:
    metadata = {k: v for k, v in LLAMA_METADATA.items() if k != ".embedding_length"}
    source = write_gguf(tmp_path / "model.gguf", "llama", metadata, llama_tensors())
    with pytest.raises(CheckpointError, match="llama.embedding_length is missing"):
        convert(source)


READ = (
    *("attention.head_count_kv", "attention.key_length", "attention.sliding_window"),
    *("attention.value_length", "rope.dimension_count", "rope.scaling.type"),
    *("rope.scaling.factor", "expert_count", "expert_used_count"),
)


def keys_of_gguf() -> list[str]:
    """An architecture's keys in the gguf package, except keys that are read."""
    keys = gguf.Keys
    groups = (keys.LLM, keys.Attention, keys.Attention.Indexer, keys.Rope, keys.SSM, keys.WKV)
    named = [key for group in groups for key in vars(group).values() if isinstance(key, str)]
    own = [key.removeprefix("{arch}") for key in named if key.startswith("{arch}.")]
    read = {*LLAMA_METADATA, *(f".{key}" for key in READ)}
    return [key for key in own if key not in read and "{" not in key]


@pytest.mark.parametrize("key", keys_of_gguf())
def test_metadata_that_is_not_read_is_refused_unless_it_changes_nothing(
    key: str, tmp_path: Path
) -> None:
    metadata = LLAMA_METADATA | {key: 0.3}
    source = write_gguf(tmp_path / "model.gguf", "llama", metadata, llama_tensors())
    if key[1:] in WITHOUT_EFFECT:
        assert read_config(convert(source))["model_type"] == "llama"
        return
    message = rf"metadata llama{re.escape(key)} is 0\.3.*may change"
    with pytest.raises(CheckpointError, match=message):
        convert(source)


@pytest.mark.parametrize(
    "metadata",
    [
        {".attention.causal": True, ".expert_count": 0, ".expert_used_count": 0},
        {".logit_scale": 1.0, ".attention.scale": 0.125, ".residual_scale": 0.0},
        {".rope.scaling.type": "none", ".rope.scaling.attn_factor": 1.0, ".vocab_size": 32},
        {".leading_dense_block_count": 0, ".rope.dimension_sections": [0, 0, 0, 0]},
    ],
)
def test_metadata_that_says_what_is_so_anyway_changes_nothing(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    plain = write_gguf(tmp_path / "plain.gguf", "llama", LLAMA_METADATA, llama_tensors())
    more = write_gguf(tmp_path / "more.gguf", "llama", LLAMA_METADATA | metadata, llama_tensors())
    assert read_config(convert(more)) == read_config(convert(plain))


@pytest.mark.parametrize(
    ("pattern", "is_known"),
    [(6, True), ([True] * 5 + [False, True], True), (4, False), ([True] * 7, False)],
)
def test_the_windows_of_gemma_are_those_it_always_has(
    pattern: Any, is_known: bool, tmp_path: Path
) -> None:
    config = CONFIGS["gemma3"]
    tensors = gguf_tensors(make_model(config).state_dict(), config)
    metadata = gguf_metadata(config) | {".attention.sliding_window_pattern": pattern}
    source = write_gguf(tmp_path / "model.gguf", "gemma3", metadata, tensors)
    if is_known:
        assert read_config(convert(source))["layer_types"].count("full_attention") == 1
        return
    with pytest.raises(CheckpointError, match="gemma3.attention.sliding_window_pattern is"):
        convert(source)


def test_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    tensors = llama_tensors() | {"blk.0.ssm_in.weight": np.zeros((4, 4), np.float32)}
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, tensors)
    with pytest.raises(CheckpointError, match="blk.0.ssm_in.weight has no place"):
        convert(source)


@pytest.mark.parametrize("fraction", [0.0001, 0.001, 0.01, 0.5, 0.999])
def test_truncated_file_is_a_checkpoint_error(fraction: float, tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", "llama", LLAMA_METADATA, llama_tensors())
    content = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(content[: max(5, int(len(content) * fraction))])
    with pytest.raises(CheckpointError, match="truncated") as raised:
        convert(cut)
    assert raised.value.file == str(cut)


def test_file_with_another_magic_is_a_checkpoint_error(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"GGML" + bytes(1000))
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        convert(source)


def test_a_file_that_is_truncated_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, llama_tensors())
    file = GgufFile(path)
    os.truncate(path, path.stat().st_size // 2)
    assert file.get("tokenizer.ggml.eos_token_id", kind=int) == 2
    with pytest.raises(CheckpointError, match="model.gguf: the file was truncated"):
        for tensor in file.tensors.values():
            list(tensor.rows())


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (".block_count", "one", "int"),
        (".context_length", 128.0, "int"),
        (".rope.freq_base", "x", "float"),
        (".rope.freq_base", float("nan"), "float"),
        (".rope.scaling.type", 1, "str"),
        (".attention.head_count", ["a", "a"], "int"),
        ("tokenizer.ggml.eos_token_id", [2], "int"),
        ("split.count", "x", "int"),
    ],
)
def test_metadata_of_another_type_is_named(
    key: str, value: Any, expected: str, tmp_path: Path
) -> None:
    path = write_gguf(
        tmp_path / "model.gguf", "llama", LLAMA_METADATA | {key: value}, llama_tensors()
    )
    name = f"llama{key}" if key.startswith(".") else key
    with pytest.raises(CheckpointError, match=f"model.gguf: metadata {name} is .*{expected}"):
        convert_gguf(path, tmp_path)
