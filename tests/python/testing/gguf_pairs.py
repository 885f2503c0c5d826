"""Checkpoints of transformers beside what their GGUF files are converted to."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

import make_checkpoints
from gguf_of_transformers import architecture_of, gguf_metadata, gguf_tensors, xielu_metadata
from logprobs import engine_logprobs, random_tokens
from make_checkpoints import MAX_POSITIONS, VARIANTS, VOCAB_SIZE, Variant, build, rope
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native.checkpoints.gguf_config import model_config
from specdec_native.checkpoints.gguf_convert import convert_gguf
from specdec_native.checkpoints.gguf_file import GgufFile


def changed(variant: str, **config: Any) -> Variant:
    original = VARIANTS[variant]
    return dataclasses.replace(original, config=original.config | config)


# The parameters that all files with Llama 3's scaling have.
LLAMA3 = rope("llama3", **(make_checkpoints.LLAMA3 | {"original_max_position_embeddings": 8192}))

# A file has no scale of Gemma's queries: it is that of the heads' width. Nor has it what all models
# of a family have: the window of StarCoder2, the range of gpt-oss' positions. Of Gemma 3n it has no
# size of the table of layers, and of LFM2 the size of MLPs as it is after all adjustments.
MODELS = {
    "granite": VARIANTS["granite"],
    "granite_biases": VARIANTS["granite_biases"],
    "olmo2": VARIANTS["olmo2"],
    "olmo2_biases": VARIANTS["olmo2_biases"],
    "gemma": VARIANTS["gemma"],
    "gemma2": changed(
        "gemma2", query_pre_attn_scalar=32, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gemma3n": changed("gemma3n", vocab_size_per_layer_input=VOCAB_SIZE),
    "gemma3n_other_active": changed(
        "gemma3n_other_active",
        vocab_size_per_layer_input=VOCAB_SIZE,
        altup_correct_scale=True,
        intermediate_size=[96, 64, 96, 128],
        activation_sparsity_pattern=[0.0, 0.95, 0.0, 0.5],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    ),
    "gemma4": VARIANTS["gemma4"],
    "gemma4_effective": VARIANTS["gemma4_effective"],
    "gemma4_moe": VARIANTS["gemma4_moe"],
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
    "granite_mamba": changed("granite_mamba", position_embedding_type="nope", intermediate_size=80),
    "granite_mamba_moe": VARIANTS["granite_mamba_moe"],
    "lfm2": VARIANTS["lfm2"],
    "lfm2_biases": changed(
        "lfm2_biases", block_auto_adjust_ff_dim=False, block_ffn_dim_multiplier=1.0
    ),
    "lfm2_moe": changed("lfm2_moe", tie_word_embeddings=True),
    "qwen3_next": VARIANTS["qwen3_next"],
    "qwen3_5": VARIANTS["qwen3_5"],
    "qwen3_5_half_rotated": VARIANTS["qwen3_5_half_rotated"],
    "qwen3_5_moe": VARIANTS["qwen3_5_moe"],
    "seed_oss": VARIANTS["seed_oss"],
    "exaone4": VARIANTS["exaone4"],
    "exaone4_full": changed("exaone4_full", **LLAMA3),
    "glm4": VARIANTS["glm4"],
    "glm4_moe": VARIANTS["glm4_moe"],
    "glm4_moe_air": changed("glm4_moe", use_qk_norm=False, n_group=1, topk_group=1),
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


def same_logprobs(pair: Pair, tolerance: float = 1e-5) -> bool:
    tokens = random_tokens(MAX_POSITIONS // 4 + 8, seed=3)  # past Phi's original context
    options = {"dtype": "float32", "max_model_len": MAX_POSITIONS}
    expected = engine_logprobs(pair.original, tokens, **options)
    found = engine_logprobs(pair.converted, tokens, **options)
    return np.allclose(found, expected, rtol=0, atol=tolerance)


def config_of(path: Path, architecture: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """config.json for LLAMA_METADATA with `metadata`, where None leaves a key out."""
    kept = {key: value for key, value in (LLAMA_METADATA | metadata).items() if value is not None}
    embedding = {"token_embd.weight": llama_tensors()["token_embd.weight"]}
    file = GgufFile(write_gguf(path, architecture, kept, embedding))
    return model_config(file, dtype="float32", tied=True)
