"""Tiny random checkpoints of every family, made by transformers.

`python make_checkpoints.py VARIANT DIRECTORY` writes one; a variant is always the same bytes.
Weights are far from their usual initial values (norms are not 1, biases not 0), so that a decoder
that leaves any of them out computes something else.
"""

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

VOCAB_SIZE = 160
MAX_POSITIONS = 256
# Weights of norms
LESS_ONE = (
    *("Gemma", "Gemma2", "Gemma3", "VaultGemma", "Nemotron"),
    *("Qwen3Next", "Qwen3_5", "Qwen3_5Moe"),
)


@dataclass(frozen=True)
class Variant:
    """What to build: a transformers class stem ("Llama"), its config, and how to save it."""

    family: str
    config: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    legacy_config: bool = False  # config.json as transformers 4 spells it
    shard_bytes: int | None = None
    stacked_experts: bool = False  # tensors named and shaped as transformers 5 holds them
    text_config: bool = False  # the config class is called "<family>TextConfig"
    base_model: bool = False  # saved without the head and the "model." prefix
    seed: int = 20240601


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **settings}
    return {"rope_parameters": parameters}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
POST_NORM = {"do_layer_norm_before": False, "word_embed_proj_dim": 32}

# Heads are wider than hidden_size / num_attention_heads, and the scale is not theirs. Only the
# second layer is of full attention: the pattern is two.
GEMMA_WINDOWS = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GEMMA = GEMMA_WINDOWS | {
    "head_dim": 32,
    "query_pre_attn_scalar": 20,
    "tie_word_embeddings": True,
}

# Layers of full attention have heads of another shape, and values that are their keys.
GEMMA4 = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
}
# The last two layers read the keys and values of the first two.
GEMMA4_EFFECTIVE = GEMMA4 | {
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
# Gates are sparse in two layers, and a token of the vocabulary has no embeddings of its own there.
GEMMA3N = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB_SIZE - 20,
    "num_kv_shared_layers": 2,
    "laurel_rank": 32,
    "activation_sparsity_pattern": [0.8, 0.0, 0.6, 0.0],
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
}
GEMMA4_MOE = GEMMA4 | {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}

# 12 of the 16 elements of a head are rotated.
LONGROPE = rope(
    "longrope",
    partial_rotary_factor=0.75,
    short_factor=[1.0, 1.1, 1.3, 1.5, 1.9, 2.5],
    long_factor=[1.2, 1.7, 2.4, 3.1, 4.2, 6.0],
)

QWEN3_MOE = {
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
}

GRANITE = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 1.7,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.4,
}

# One layer of attention among three that keep a state.
LFM2 = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
    "tie_word_embeddings": False,
}
LFM2_MOE = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "num_dense_layers": 1,
    "tie_word_embeddings": False,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.7,
}

# Three heads of values to one of keys, of another size. A quarter of attention's heads is rotated.
QWEN3_HYBRID = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 2 + ["full_attention", "linear_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
QWEN3_HYBRID_MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
TWO_HEADS_OF_VALUES = {"linear_num_value_heads": 4, "linear_value_head_dim": 16}
MAMBA = {
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 32,
}

# Windows in layers 0, 1, 2 of four: the pattern of most families.
WINDOWS = {"num_hidden_layers": 4, "sliding_window": 24}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3}
# DeepSeek's router with groups: four of two experts, of which two may be chosen.
GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}
GPT_OSS = EXPERTS | {"head_dim": 32, "sliding_window": 24, "num_hidden_layers": 4}

VARIANTS: dict[str, Variant] = {
    "llama": Variant("Llama"),
    "llama_tied": Variant("Llama", {"tie_word_embeddings": True}),
    "llama_biases": Variant("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_head_dim": Variant("Llama", {"head_dim": 32, "num_key_value_heads": 1}),
    "llama_no_gqa": Variant("Llama", {"num_key_value_heads": 4}),
    "llama_gelu": Variant("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama_linear": Variant("Llama", rope("linear", factor=2.5)),
    "llama_dynamic": Variant("Llama", rope("dynamic", factor=2.0)),
    "llama_llama3": Variant("Llama", rope("llama3", **LLAMA3)),
    "llama_yarn": Variant("Llama", rope("yarn", **YARN)),
    "llama_yarn_mscale": Variant(
        "Llama", rope("yarn", mscale=0.7, mscale_all_dim=0.9, truncate=False, **YARN)
    ),
    "llama_legacy": Variant("Llama", rope("llama3", **LLAMA3), legacy_config=True),
    "llama_sharded": Variant("Llama", shard_bytes=100_000),
    "llama_base": Variant("Llama", {"tie_word_embeddings": True}, base_model=True),
    "llama_bfloat16": Variant("Llama", dtype=torch.bfloat16),
    "llama_float16": Variant("Llama", dtype=torch.float16),
    "mistral": Variant("Mistral", {"sliding_window": 24}),
    "mistral_full": Variant("Mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": Variant("Qwen2", {"tie_word_embeddings": True}),
    "qwen2_window": Variant(
        "Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
    ),
    "qwen2_yarn": Variant("Qwen2", rope("yarn", **YARN), legacy_config=True),
    "qwen3": Variant("Qwen3", {"head_dim": 32}),
    "qwen3_biases": Variant("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "opt": Variant("OPT"),
    "opt_post_norm": Variant("OPT", POST_NORM),
    "opt_no_bias": Variant("OPT", {"enable_bias": False}),
    "opt_no_final_norm": Variant("OPT", {"_remove_final_layer_norm": True}),
    "opt_untied": Variant("OPT", {"tie_word_embeddings": False}),
    # Caps low enough to bend these scores and logits.
    "gemma2": Variant(
        "Gemma2", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    ),
    "gemma2_no_caps": Variant(
        "Gemma2", GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    "gemma3": Variant("Gemma3", GEMMA, text_config=True),
    "gemma3_ropes": Variant(
        "Gemma3",
        GEMMA
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        text_config=True,
    ),
    "phi3": Variant("Phi3", {"sliding_window": 24}),
    "phi3_longrope": Variant("Phi3", LONGROPE | {"original_max_position_embeddings": 64}),
    # Sequences cannot be longer than the original context: the short factors.
    "phi3_longrope_short": Variant(
        "Phi3", LONGROPE | {"original_max_position_embeddings": MAX_POSITIONS}
    ),
    "granite": Variant("Granite", GRANITE),
    # With the scale of its heads, the multipliers of MiniCPM.
    "minicpm": Variant("Granite", GRANITE | {"attention_multiplier": 0.25}),
    "granite_biases": Variant(
        "Granite", GRANITE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
    "olmo2": Variant("Olmo2"),
    "olmo2_biases": Variant("Olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
    "gpt_neox": Variant("GPTNeoX"),
    "gpt_neox_serial": Variant("GPTNeoX", {"use_parallel_residual": False}),
    "gpt_neox_no_bias": Variant("GPTNeoX", {"attention_bias": False, "tie_word_embeddings": True}),
    "gpt_neox_base": Variant("GPTNeoX", {"tie_word_embeddings": True}, base_model=True),
    "mixtral": Variant("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral_top3": Variant("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 3}),
    "mixtral_stacked": Variant("Mixtral", {"num_local_experts": 4}, stacked_experts=True),
    "qwen3_moe": Variant("Qwen3Moe", QWEN3_MOE),
    "qwen3_moe_renormalized": Variant("Qwen3Moe", QWEN3_MOE | {"norm_topk_prob": True}),
    "qwen3_moe_stacked": Variant("Qwen3Moe", QWEN3_MOE, stacked_experts=True),
    "qwen3_moe_dense_layers": Variant(
        "Qwen3Moe", QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [0]}
    ),
    "smollm3": Variant("SmolLM3", {"num_hidden_layers": 4}),
    "smollm3_window": Variant(
        "SmolLM3",
        {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": True, "attention_bias": True}
        | WINDOWS,
    ),
    "olmo3": Variant("Olmo3", WINDOWS),
    "olmo3_yarn": Variant(
        "Olmo3",
        WINDOWS
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "rope_theta": 5e5} | YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            }
        },
    ),
    "olmoe": Variant("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3}),
    "exaone4": Variant("Exaone4", WINDOWS),
    "exaone4_full": Variant(
        "Exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3} | rope("llama3", **LLAMA3),
    ),
    "seed_oss": Variant("SeedOss", {"head_dim": 32, "attention_out_bias": True}),
    "cwm": Variant("Cwm", WINDOWS | {"head_dim": 16} | rope("llama3", **LLAMA3)),
    "starcoder2": Variant("Starcoder2", {"sliding_window": 24}),
    "stablelm": Variant("StableLm", {"use_qkv_bias": True}),
    "stablelm_parallel": Variant("StableLm", {"use_parallel_residual": True}),
    "cohere": Variant("Cohere", {"attention_bias": True, "logit_scale": 0.25}),
    "cohere2": Variant("Cohere2", WINDOWS | {"logit_scale": 0.25}),
    "nemotron": Variant("Nemotron", {"attention_bias": True, "mlp_bias": True}),
    "arcee": Variant("Arcee", rope("yarn", **YARN)),
    "jais2": Variant("Jais2"),
    "apertus": Variant("Apertus", rope("llama3", **LLAMA3)),
    "hunyuan_dense": Variant(
        "HunYuanDenseV1", {"head_dim": 32} | rope("dynamic", alpha=50.0, factor=1.0)
    ),
    "helium": Variant("Helium", {"head_dim": 16, "attention_bias": True}),
    "ernie4_5": Variant("Ernie4_5", {"head_dim": 32, "use_bias": True}),
    "ernie4_5_moe": Variant(
        "Ernie4_5_Moe",
        {"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 32, "num_hidden_layers": 4},
    ),
    "glm": Variant("Glm", {"head_dim": 16}),
    "glm4": Variant("Glm4", {"head_dim": 16}),
    "glm4_moe": Variant("Glm4Moe", GROUPED | {"attention_bias": True, "use_qk_norm": True}),
    "solar_open": Variant("SolarOpen", GROUPED | {"head_dim": 16}),
    "dots1": Variant(
        "Dots1", GROUPED | {"sliding_window": 24, "max_window_layers": 1, "norm_topk_prob": False}
    ),
    "gpt_oss": Variant("GptOss", GPT_OSS),
    "gpt_oss_stacked": Variant("GptOss", GPT_OSS, stacked_experts=True),
    "granite_moe": Variant("GraniteMoe", GRANITE | EXPERTS),
    "granite_moe_shared": Variant(
        "GraniteMoeShared", GRANITE | EXPERTS | {"shared_intermediate_size": 48}
    ),
    "granite_hybrid_dense": Variant(
        "GraniteMoeHybrid",
        GRANITE
        | {
            "num_local_experts": 0,
            "shared_intermediate_size": 80,
            "layer_types": ["full_attention"] * 3,
            "position_embedding_type": "rope",
        },
    ),
    "granite_hybrid_moe": Variant(
        "GraniteMoeHybrid",
        GRANITE | EXPERTS | {"shared_intermediate_size": 48, "layer_types": ["full_attention"] * 3},
    ),
    "granite_mamba": Variant(
        "GraniteMoeHybrid",
        GRANITE | MAMBA | {"num_local_experts": 0, "shared_intermediate_size": 80},
    ),
    "granite_mamba_moe": Variant(
        "GraniteMoeHybrid",
        GRANITE
        | MAMBA
        | EXPERTS
        | {
            "shared_intermediate_size": 48,
            "mamba_n_groups": 1,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "mamba_d_conv": 3,
            "position_embedding_type": "rope",
        },
    ),
    "granite_swa": Variant(
        "GraniteSWA", GRANITE | WINDOWS | {"layer_rope_theta": [0, 1e4, 1e4, 3e4]}
    ),
    "granite_moe_swa": Variant("GraniteMoeSWA", GRANITE | WINDOWS | EXPERTS),
    "hyperclovax": Variant("HyperCLOVAX", GRANITE),
    "hyperclovax_input_norms": Variant("HyperCLOVAX", GRANITE | {"use_post_norm": False}),
    "gemma": Variant("Gemma", {"head_dim": 32, "tie_word_embeddings": True}),
    "vaultgemma": Variant(
        "VaultGemma", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    ),
    "gemma3n": Variant("Gemma3n", GEMMA3N, text_config=True),
    "gemma3n_other_active": Variant(
        "Gemma3n",
        GEMMA3N | {"altup_active_idx": 2, "altup_correct_scale": False, "altup_num_inputs": 3},
        text_config=True,
    ),
    "gemma4": Variant("Gemma4", GEMMA4, text_config=True),
    "gemma4_effective": Variant("Gemma4", GEMMA4_EFFECTIVE, text_config=True),
    # Another seed, since the usual one gives a network that makes much of small changes.
    "gemma4_moe": Variant("Gemma4", GEMMA4_MOE, text_config=True, seed=5),
    "gemma4_unified": Variant("Gemma4Unified", GEMMA4, text_config=True),
    "ministral": Variant("Ministral", {"head_dim": 32} | GEMMA_WINDOWS),
    "ministral3": Variant(
        "Ministral3",
        {"head_dim": 16}
        | rope("yarn", mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3, **YARN),
    ),
    "lfm2": Variant("Lfm2", LFM2),
    "lfm2_biases": Variant(
        "Lfm2",
        LFM2
        | {"conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": True}
        # The inner size is 256.
        | {"block_ff_dim": 300, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.2},
    ),
    "lfm2_moe": Variant("Lfm2Moe", LFM2_MOE),
    "lfm2_moe_stacked": Variant(
        "Lfm2Moe", LFM2_MOE | {"use_expert_bias": False}, stacked_experts=True
    ),
    "mellum": Variant(
        "Mellum",
        QWEN3_MOE
        | GEMMA_WINDOWS
        | {"mlp_layer_types": ["sparse", "dense", "sparse"], "norm_topk_prob": True},
    ),
    "qwen3_next": Variant("Qwen3Next", QWEN3_HYBRID | QWEN3_HYBRID_MOE),
    "qwen3_next_dense_layers": Variant(
        "Qwen3Next",
        QWEN3_HYBRID
        | QWEN3_HYBRID_MOE
        | TWO_HEADS_OF_VALUES
        | {"mlp_only_layers": [0], "decoder_sparse_step": 2, "norm_topk_prob": False},
    ),
    "qwen3_5": Variant("Qwen3_5", QWEN3_HYBRID, text_config=True),
    "qwen3_5_half_rotated": Variant(
        "Qwen3_5",
        QWEN3_HYBRID
        | TWO_HEADS_OF_VALUES
        | rope(
            "default",
            partial_rotary_factor=0.5,
            mrope_section=[2, 1, 1],
            mrope_interleaved=True,
        )
        | {"tie_word_embeddings": True, "linear_conv_kernel_dim": 3},
        text_config=True,
    ),
    "qwen3_5_moe": Variant("Qwen3_5Moe", QWEN3_HYBRID | QWEN3_HYBRID_MOE, text_config=True),
    "qwen3_5_moe_stacked": Variant(
        "Qwen3_5Moe",
        QWEN3_HYBRID | QWEN3_HYBRID_MOE,
        text_config=True,
        stacked_experts=True,
    ),
    "qwen2_moe": Variant(
        "Qwen2Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 80,
        },
    ),
}

ONE_OF_EACH = list({variant.family: name for name, variant in reversed(VARIANTS.items())}.values())
"""The first variant of every family."""

# Models that draft, one without the target's last tokens, and a target of more layers than most.
DRAFTING = {
    "llama_small_vocab": Variant("Llama", {"vocab_size": VOCAB_SIZE - 20}),
    "llama_other_seed": Variant("Llama", seed=7),
    "llama_deep": Variant("Llama", {"num_hidden_layers": 8}),
}


# Of sizes that two ranks can share.
WIDE = {"hidden_size": 128, "intermediate_size": 256}
SHARED = {
    f"{name}_wide": replace(VARIANTS[name], config=VARIANTS[name].config | WIDE | sizes)
    for name, sizes in {
        "gpt_oss": {},
        "cohere2": {},
        "qwen2_moe": {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 256},
        "glm4_moe": {"moe_intermediate_size": 128},
        "granite_moe_shared": {"shared_intermediate_size": 128},
        "gemma3n": {},
        "gemma4": {"head_dim": 32, "global_head_dim": 64},
        "gemma4_effective": {"head_dim": 32, "global_head_dim": 64},
        "gemma4_moe": {"head_dim": 32, "global_head_dim": 64, "moe_intermediate_size": 128},
    }.items()
}


def build(variant: Variant) -> Any:
    """The model of a variant with its random weights, in float32."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }
    if variant.family == "OPT":
        sizes["ffn_dim"] = 96
    else:
        sizes["intermediate_size"] = 96
    if variant.family not in ("OPT", "GPTNeoX"):
        sizes["num_key_value_heads"] = 2
    text = "Text" if variant.text_config else ""
    config = getattr(transformers, f"{variant.family}{text}Config")(**(sizes | variant.config))
    model: Any = getattr(transformers, f"{variant.family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(variant.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if name.endswith("bias"):
                values *= 0.2
            elif name.endswith("A_log"):  # heads that forget soon and late
                values = 1.5 * values - 1
            elif parameter.dim() == 1:  # some are stored less one
                less_one = variant.family in LESS_ONE and "linear_attn" not in name
                values = 0.2 * values + (0 if less_one else 1)
            elif "embed" not in name:
                values *= parameter.shape[-1] ** -0.5
            parameter.copy_(values if "lm_head" not in name else 2 * values)
        for name, buffer in model.named_buffers():
            if name.endswith(
                ("correction_bias", "expert_bias")
            ):  # moves choices of a router's probabilities
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("layer_scalar"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
        if config.tie_word_embeddings:
            model.get_input_embeddings().weight.mul_(0.25)
    return model


def use_legacy_spelling(directory: Path) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))


def make(variant: str, directory: Path) -> Path:
    """Writes the checkpoint of a variant and returns its directory."""
    settings = (VARIANTS | DRAFTING | SHARED)[variant]
    model: Any = build(settings).to(settings.dtype)
    directory.mkdir(parents=True, exist_ok=True)
    if settings.base_model:
        model = model.base_model
    shards = {} if settings.shard_bytes is None else {"max_shard_size": settings.shard_bytes}
    model.save_pretrained(directory, **shards)
    if settings.stacked_experts:
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    if settings.legacy_config:
        use_legacy_spelling(directory)
    return directory


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
