"""config.json of the networks in GGUF files some of whose layers keep a state instead of attending,
as gguf_networks.py."""

from __future__ import annotations

from typing import Any

from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_hyperparameters import (
    expert_counts,
    has_bias_anywhere,
    later_layers,
    named,
    require_value,
    rotary_network,
)
from specdec_native.checkpoints.gguf_networks import granite_scales
from specdec_native.checkpoints.gguf_rope import shortest

# Each fourth layer of Qwen3-Next and Qwen3.5 is attention where a file does not say it.
_QWEN_INTERVAL = 4
_SIGMOID = 2


def lfm2(file: GgufFile) -> dict[str, Any]:
    """LFM2, dense. Sizes of its MLPs are as the model has them."""
    return _short_conv_network(file) | {
        **named("Lfm2", "lfm2"),
        "block_auto_adjust_ff_dim": False,
    }


def lfm2_moe(file: GgufFile) -> dict[str, Any]:
    """LFM2 with experts."""
    require_value(file, "expert_gating_func", (_SIGMOID,))
    has_bias = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)
    return _short_conv_network(file) | {
        **named("Lfm2Moe", "lfm2_moe"),
        **expert_counts(file, "num_experts"),
        "moe_intermediate_size": file.require_hyperparameter("expert_feed_forward_length", int),
        "num_dense_layers": file.hyperparameter("leading_dense_block_count", 0),
        "use_expert_bias": has_bias,
        "norm_topk_prob": bool(file.hyperparameter("expert_weights_norm", True)),
        "routed_scaling_factor": shortest(file.hyperparameter("expert_weights_scale", 0.0) or 1.0),
    }


def _short_conv_network(file: GgufFile) -> dict[str, Any]:
    heads = _kv_heads(file)
    config = rotary_network(file, num_kv_heads=max(heads))
    config["norm_eps"] = config.pop("rms_norm_eps")
    del config["hidden_act"]  # no LFM2 has it
    return config | {
        "layer_types": ["full_attention" if count else "conv" for count in heads],
        "conv_L_cache": file.require_hyperparameter("shortconv.l_cache", int),
        "conv_bias": has_bias_anywhere(file, "shortconv.conv"),
    }


def qwen35(file: GgufFile) -> dict[str, Any]:
    """Qwen3.5 without experts."""
    return _delta_network(file) | named("Qwen3_5", "qwen3_5_text")


def qwen35_moe(file: GgufFile) -> dict[str, Any]:
    """Qwen3.5 with experts, and Qwen3-Next.

    The two compute the same. Projections are apart in files of both, as they are in Qwen3.5.
    """
    return _delta_network(file, has_mlps=False) | {
        **named("Qwen3_5Moe", "qwen3_5_moe_text"),
        **expert_counts(file, "num_experts"),
        "moe_intermediate_size": file.require_hyperparameter("expert_feed_forward_length", int),
        "shared_expert_intermediate_size": file.require_hyperparameter(
            "expert_shared_feed_forward_length", int
        ),
    }


def _delta_network(file: GgufFile, *, has_mlps: bool = True) -> dict[str, Any]:
    heads = _kv_heads(file)
    config = rotary_network(file, rotates_part=True, num_kv_heads=max(heads), has_mlps=has_mlps)
    num_layers = len(heads) - later_layers(file)
    is_recurrent = _recurrent_layers(file, heads)[:num_layers]
    num_values = _positive(file, "ssm.time_step_rank")
    return config | {
        "num_hidden_layers": num_layers,
        "attention_bias": has_bias_anywhere(file, "attn_q"),
        "layer_types": [
            "linear_attention" if recurrent else "full_attention" for recurrent in is_recurrent
        ],
        "linear_conv_kernel_dim": _positive(file, "ssm.conv_kernel"),
        "linear_num_key_heads": _divisor(file, "ssm.group_count", "ssm.time_step_rank"),
        "linear_num_value_heads": num_values,
        "linear_key_head_dim": _positive(file, "ssm.state_size"),
        "linear_value_head_dim": _quotient(file, "ssm.inner_size", "ssm.time_step_rank"),
    }


def _recurrent_layers(file: GgufFile, kv_heads: list[int]) -> list[bool]:
    """Which of a Qwen's layers are recurrent. kv_heads: of all layers, 0 in recurrent ones, or in
    older files the same number in all."""
    interval: int = file.hyperparameter("full_attention_interval", _QWEN_INTERVAL)
    if interval < 1:
        raise file.error(f"metadata {file.architecture}.full_attention_interval is {interval}")
    key = "attention.recurrent_layers"
    if file.get(f"{file.architecture}.{key}", kind=list[bool]) is not None:
        return file.of_layers(key, len(kv_heads), bool, must_be_list=True)
    if 0 in kv_heads:
        return [count == 0 for count in kv_heads]
    return [(layer + 1) % interval != 0 for layer in range(len(kv_heads))]


def granite_hybrid(file: GgufFile) -> dict[str, Any]:
    """Granite 4, with layers of Mamba 2 or without."""
    heads = _kv_heads(file)
    has_positions = bool(file.hyperparameter("rope.scaling.finetuned", True))
    config = granite_scales(file, num_kv_heads=max(heads), has_positions=has_positions)
    shared_size = file.hyperparameter("expert_shared_feed_forward_length", 0)
    num_experts = file.hyperparameter("expert_count", 0)
    num_used = file.hyperparameter("expert_used_count", 0)
    return config | {
        **named("GraniteMoeHybrid", "granitemoehybrid"),
        "num_local_experts": num_experts,
        "num_experts_per_tok": num_used,
        "shared_intermediate_size": shared_size if num_experts else config["intermediate_size"],
        "position_embedding_type": "rope" if has_positions else "nope",
        "layer_types": ["attention" if count else "mamba" for count in heads],
        **(_mamba(file, config["hidden_size"]) if 0 in heads else {}),
    }


def _mamba(file: GgufFile, hidden_size: int) -> dict[str, Any]:
    inner_size = _positive(file, "ssm.inner_size")
    if inner_size % max(hidden_size, 1):
        raise file.error(
            f"metadata {file.architecture}.ssm.inner_size is {inner_size}, which is no multiple "
            f"of embedding_length, {hidden_size}"
        )
    return {
        "mamba_n_heads": _positive(file, "ssm.time_step_rank"),
        "mamba_d_head": _quotient(file, "ssm.inner_size", "ssm.time_step_rank"),
        "mamba_n_groups": _divisor(file, "ssm.group_count", "ssm.time_step_rank"),
        "mamba_d_state": _positive(file, "ssm.state_size"),
        "mamba_d_conv": _positive(file, "ssm.conv_kernel"),
        "mamba_expand": inner_size // hidden_size,
        "mamba_conv_bias": has_bias_anywhere(file, "ssm_conv1d"),
        "mamba_proj_bias": has_bias_anywhere(file, "ssm_in"),
    }


def _kv_heads(file: GgufFile) -> list[int]:
    """The heads of keys and values of each layer, 0 for those without attention."""
    num_layers: int = file.require_hyperparameter("block_count", int)
    counts: list[int] = file.of_layers("attention.head_count_kv", num_layers, int)
    if len(set(counts) - {0}) != 1 or min(counts) < 0:
        raise file.error(
            f"metadata {file.architecture}.attention.head_count_kv is {counts!r:.80}; known is one "
            "number, and 0 for layers without attention"
        )
    return counts


def _positive(file: GgufFile, key: str) -> int:
    value: int = file.require_hyperparameter(key, int)
    if value < 1:
        raise file.error(f"metadata {file.architecture}.{key} is {value}, and must be positive")
    return value


def _quotient(file: GgufFile, key: str, divisor_key: str) -> int:
    value, divisor = _positive(file, key), _positive(file, divisor_key)
    if value % divisor:
        raise file.error(
            f"metadata {file.architecture}.{key} is {value}, and {divisor_key} is {divisor}, which "
            "does not divide it"
        )
    return value // divisor


def _divisor(file: GgufFile, key: str, dividend_key: str) -> int:
    """The value `key`, which divides the other."""
    _quotient(file, dividend_key, key)
    return _positive(file, key)
