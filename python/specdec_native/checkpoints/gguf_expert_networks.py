"""config.json of the networks with experts that GGUF files hold, as gguf_networks.py."""

from __future__ import annotations

from typing import Any

from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_hyperparameters import (
    expert_counts,
    has_bias,
    later_layers,
    layer_types,
    named,
    network,
    require_value,
    rotary_network,
)
from specdec_native.checkpoints.gguf_networks import granite, granite_scales
from specdec_native.checkpoints.gguf_rope import shortest

# Each second layer of gpt-oss is of full attention, the others have a window.
_GPT_OSS_PATTERN = 2


def qwen3_moe(file: GgufFile) -> dict[str, Any]:
    """Qwen3 with experts."""
    config = rotary_network(file)
    return config | {
        **named("Qwen3Moe", "qwen3_moe"),
        "attention_bias": has_bias(file, "attn_q"),
        **expert_counts(file, "num_experts"),
        "moe_intermediate_size": file.require_hyperparameter("expert_feed_forward_length", int),
        # All layers have experts, and the weights of those chosen add up to 1.
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def qwen2_moe(file: GgufFile) -> dict[str, Any]:
    """Qwen1.5 and Qwen2 with experts, and an MLP beside them."""
    config = rotary_network(file)
    return config | {
        **named("Qwen2Moe", "qwen2_moe"),
        **expert_counts(file, "num_experts"),
        "qkv_bias": has_bias(file, "attn_q"),
        "moe_intermediate_size": file.require_hyperparameter("expert_feed_forward_length", int),
        "shared_expert_intermediate_size": file.hyperparameter(
            "expert_shared_feed_forward_length", config["intermediate_size"]
        ),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": False,
        "use_sliding_window": False,
    }


def granite_moe(file: GgufFile) -> dict[str, Any]:
    """Granite with experts."""
    shared_size = file.hyperparameter("expert_shared_feed_forward_length", 0)
    if not file.hyperparameter("expert_count", 0):
        file.hyperparameter("expert_used_count", 0)
        return granite(file)
    config = granite_scales(file) | expert_counts(file, "num_local_experts")
    if not shared_size:
        return config | named("GraniteMoe", "granitemoe")
    return (
        config
        | named("GraniteMoeShared", "granitemoeshared")
        | {"shared_intermediate_size": shared_size}
    )


def gpt_oss(file: GgufFile) -> dict[str, Any]:
    """gpt-oss, whose positions are stretched without rounding the range that is."""
    config = rotary_network(file)
    scaling = config["rope_scaling"] or {"rope_type": "default"}  # with none, gpt-oss has its own
    return config | {
        **named("GptOss", "gpt_oss"),
        "rope_scaling": scaling | {"truncate": False},
        **expert_counts(file, "num_local_experts"),
        "intermediate_size": file.require_hyperparameter("expert_feed_forward_length", int),
        "attention_bias": has_bias(file, "attn_q"),
        "sliding_window": file.require_hyperparameter("attention.sliding_window", int),
        "layer_types": layer_types(config["num_hidden_layers"], _GPT_OSS_PATTERN),
    }


def glm4_moe(file: GgufFile) -> dict[str, Any]:
    """GLM-4.5, whose layers behind the last predict later tokens."""
    config = rotary_network(file, rotates_part=True)
    require_value(file, "expert_gating_func", (0, 2))  # sigmoids, whether it says so or not
    num_later = later_layers(file)
    return config | {
        **named("Glm4Moe", "glm4_moe"),
        **expert_counts(file, "n_routed_experts"),
        "num_hidden_layers": config["num_hidden_layers"] - num_later,
        "attention_bias": has_bias(file, "attn_q"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        "moe_intermediate_size": file.require_hyperparameter("expert_feed_forward_length", int),
        "n_shared_experts": file.hyperparameter("expert_shared_count", 0),
        "first_k_dense_replace": file.hyperparameter("leading_dense_block_count", 0),
        "norm_topk_prob": bool(file.hyperparameter("expert_weights_norm", True)),
        "routed_scaling_factor": shortest(file.hyperparameter("expert_weights_scale", 0.0) or 1.0),
        "n_group": file.hyperparameter("expert_group_count", 0) or 1,
        "topk_group": file.hyperparameter("expert_group_used_count", 0) or 1,
    }


def ernie4_5_moe(file: GgufFile) -> dict[str, Any]:
    """ERNIE 4.5 with experts."""
    config = rotary_network(file)
    inner_size = file.require_hyperparameter("expert_feed_forward_length", int)
    num_shared = file.hyperparameter("expert_shared_count", 0)
    require_value(file, "expert_shared_feed_forward_length", (0, inner_size * num_shared))
    return config | {
        **named("Ernie4_5_Moe", "ernie4_5_moe"),
        "use_bias": has_bias(file, "attn_q"),
        "moe_num_experts": file.require_hyperparameter("expert_count", int),
        "moe_k": file.require_hyperparameter("expert_used_count", int),
        "moe_intermediate_size": inner_size,
        "moe_num_shared_experts": num_shared,
        "moe_layer_start_index": file.hyperparameter("leading_dense_block_count", 0),
        "moe_layer_end_index": config["num_hidden_layers"] - 1,
        "moe_layer_interval": file.hyperparameter("interleave_moe_layer_step", 1),
    }


olmoe = network(
    "Olmoe",
    "olmoe",
    {"attention_bias": "attn_q"},
    experts_key="num_experts",
    norm_topk_prob=False,
    clip_qkv=None,
)
