"""Models of transformers as GGUF files have them."""

import re
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedConfig

from gguf_of_recurrent import is_recurrent, recurrent_metadata, recurrent_parts

EXPERT_PARTS = {
    "w1": "gate", "w2": "down", "w3": "up",
    "gate_proj": "gate", "down_proj": "down", "up_proj": "up",
}  # fmt: skip
# What llama.cpp's converter calls otherwise than the model does.
RENAMED = {
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "altup.correct_output_scale": "altup_correct_scale.weight",
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
ARCHITECTURES = {
    "mixtral": "llama", "gemma3_text": "gemma3", "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4", "qwen3_moe": "qwen3moe", "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss", "olmo3": "olmo2", "granitemoeshared": "granitemoe",
    "qwen2_moe": "qwen2moe", "ernie4_5_moe": "ernie4_5-moe", "cohere": "command-r",
    "ministral3": "mistral3", "hunyuan_v1_dense": "hunyuan-dense", "glm4_moe": "glm4moe",
    "lfm2_moe": "lfm2moe", "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}  # fmt: skip
# Families whose rows of q and k llama.cpp's converter puts in pairs.
PAIRED = (
    "llama", "mixtral", "granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "smollm3",
    "mistral", "ministral3", "arcee", "minicpm",
)  # fmt: skip
NORMS_PLUS_ONE = (
    *("gemma", "gemma2", "gemma3_text", "nemotron"),
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
)


def architecture_of(config: PreTrainedConfig) -> str:
    if config.model_type == "granitemoehybrid":
        if any(is_recurrent(config)):
            return "granitehybrid"
        return "granitemoe" if config.num_local_experts else "granite"
    return ARCHITECTURES.get(config.model_type, config.model_type)


def interleave(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """A llama projection with its rows in GGUF's order, one row at a time."""
    head_dim = len(weight) // num_heads
    rows = [
        weight[head * head_dim + half * head_dim // 2 + pair]
        for head in range(num_heads)
        for pair in range(head_dim // 2)
        for half in range(2)
    ]
    return np.stack(rows)


def heads_apart(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """GPT-NeoX's fused projection as all of q, then k, then v."""
    head_dim = len(weight) // num_heads // 3
    parts = [
        weight[(3 * head + part) * head_dim : (3 * head + part + 1) * head_dim]
        for part in range(3)
        for head in range(num_heads)
    ]
    return np.concatenate(parts)


def taken_apart(
    part: str, values: npt.NDArray[np.float32], has_experts: bool
) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors in a file that one of the layer's is, where its name alone does not say it."""
    if part in RENAMED:
        is_row = values.ndim > 1 and values.shape[0] == 1
        return {RENAMED[part]: values.squeeze(0) if is_row else values}
    if part == "mlp.experts.down_proj":
        return {"ffn_down_exps.weight": values.swapaxes(1, 2)}
    if part.startswith("mlp.experts.gate_up_proj"):  # gate, up, gate, up, ...
        kind = "bias" if part.endswith("bias") else "weight"
        rows = values if kind == "bias" else values.swapaxes(1, 2)
        return {f"ffn_{side}_exps.{kind}": rows[:, i::2] for i, side in enumerate(("gate", "up"))}
    block, _, matrix = part.partition(".")
    if matrix not in ("input_linear.weight", "output_linear.weight"):
        return {}
    ending = "_shexp" if has_experts else ""
    if block == "block_sparse_moe":
        ending = "_exps"
    if matrix == "output_linear.weight":
        return {f"ffn_down{ending}.weight": values}
    gate, up = np.split(values, 2, axis=-2)  # all gates, and all ups behind them
    return {f"ffn_gate{ending}.weight": gate, f"ffn_up{ending}.weight": up}


def gguf_tensors(
    weights: dict[str, torch.Tensor], config: PreTrainedConfig, architecture: str | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of a Hugging Face checkpoint as a GGUF file has them, experts stacked.

    The gguf package knows most names.
    """
    known = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    architecture = architecture or architecture_of(config)
    names = gguf.get_tensor_name_map(known[architecture], config.num_hidden_layers)
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    stacks: dict[str, list[npt.NDArray[np.float32]]] = {}
    kind = config.model_type
    has_experts = bool(getattr(config, "num_local_experts", 0))
    for name in sorted(weights, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]):
        values = weights[name].float().numpy()
        is_norm = name.endswith("norm.weight") and "linear_attn" not in name
        if kind in NORMS_PLUS_ONE and is_norm:
            values = values + 1
        layer = re.fullmatch(r"(?:model|gpt_neox)\.layers\.(\d+)\.(.*)", name)
        expert = re.fullmatch(r".*experts\.\d+\.(\w+)\.weight", name)
        if layer and layer[2].startswith("mlp.act_fn."):
            continue  # numbers of the metadata
        if layer and expert:
            stack = f"blk.{layer[1]}.ffn_{EXPERT_PARTS[expert[1]]}_exps.weight"
            stacks.setdefault(stack, []).append(values)
            continue
        parts = recurrent_parts(layer[2], values, config) if layer else {}
        if layer and not parts:
            parts = taken_apart(layer[2], values, has_experts)
        if layer and parts:
            tensors |= {
                f"blk.{layer[1]}.{part}": part_values for part, part_values in parts.items()
            }
            continue
        of_stack = re.sub(r"(altup_\w*projections)\.\d+", r"\1", name)
        own_name = names.get_name(of_stack, try_suffixes=(".weight", ".bias"))
        assert own_name is not None, name
        if of_stack != name:
            stacks.setdefault(own_name, []).append(values)
            continue
        if kind in PAIRED and re.search(r"attn_[qk]\.", own_name):
            is_query = "attn_q." in own_name
            heads = config.num_attention_heads if is_query else config.num_key_value_heads
            values = interleave(values, heads)
        if "attn_qkv" in own_name and kind == "gpt_neox":
            values = heads_apart(values, config.num_attention_heads)
        if own_name == "per_layer_token_embd.weight":  # rows of zeros for tokens past the table
            values = np.pad(values, ((0, config.vocab_size - len(values)), (0, 0)))
        tensors[own_name] = values
    tensors |= {name: np.stack(parts) for name, parts in stacks.items()}
    return tensors | _rope_tensors(config)


def _rope_tensors(config: PreTrainedConfig) -> dict[str, npt.NDArray[np.float32]]:
    rope = config.rope_parameters
    if config.model_type == "gemma4_text":
        half = full_head_width(config) // 2
        num_turned = int(half * rope["full_attention"]["partial_rotary_factor"])
        divisors = [1.0] * num_turned + [1e30] * (half - num_turned)
        return {"rope_freqs.weight": np.array(divisors, np.float32)}
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32)
            for kind in ("short", "long")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    width = head_width(config)
    original, low, high = (
        rope[key]
        for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    factors = []
    for plane in range(width // 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * plane / width)
        smooth = (original / wavelength - low) / (high - low)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


# Where config.json has what GGUF has, in all architectures.
COMMON = {
    "max_position_embeddings": ".context_length",
    "hidden_size": ".embedding_length",
    "intermediate_size": ".feed_forward_length",
    "num_attention_heads": ".attention.head_count",
    "num_key_value_heads": ".attention.head_count_kv",
    "rms_norm_eps": ".attention.layer_norm_rms_epsilon",
    "layer_norm_eps": ".attention.layer_norm_epsilon",
    "norm_epsilon": ".attention.layer_norm_epsilon",
    "num_local_experts": ".expert_count",
    "num_experts": ".expert_count",
    "num_experts_per_tok": ".expert_used_count",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
NO_HEAD_WIDTH = ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "phi3")


def head_width(config: PreTrainedConfig) -> int:
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)


def full_head_width(config: PreTrainedConfig) -> int:
    """The width of heads in the layers of Gemma 4 with full attention."""
    return int(config.per_layer_config[config.layer_types.index("full_attention")].head_dim)


def gguf_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    kind = config.model_type
    values = config.to_dict()
    metadata = {own: values[key] for key, own in COMMON.items() if values.get(key) is not None}
    metadata[".block_count"] = config.num_hidden_layers
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    metadata[".rope.freq_base"] = 1e6 if kind == "gemma3_text" else float(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        metadata |= {
            ".rope.scaling.type": "yarn",
            ".rope.scaling.factor": float(rope["factor"]),
            ".rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    if values.get("head_dim") and kind not in NO_HEAD_WIDTH:
        width = values["head_dim"]
        metadata |= {".attention.key_length": width, ".attention.value_length": width}
    if "partial_rotary_factor" in rope and rope["rope_type"] != "proportional":
        part = rope["partial_rotary_factor"]
        metadata[".rope.dimension_count"] = int(head_width(config) * part)
    return metadata | (OF_FAMILIES[kind](config) if kind in OF_FAMILIES else {})


def is_sliding(config: PreTrainedConfig) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.layer_types]


def _window_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    return {".attention.sliding_window": config.sliding_window}


def _pattern_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    if not config.sliding_window:
        return {}
    return _window_metadata(config) | {".attention.sliding_window_pattern": is_sliding(config)}


def _rotated_whole(config: PreTrainedConfig) -> dict[str, Any]:
    return {".vocab_size": config.vocab_size, ".rope.dimension_count": head_width(config)}


def _expert_size(config: PreTrainedConfig) -> dict[str, Any]:
    return {".expert_feed_forward_length": config.moe_intermediate_size}


def _residual_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    return {".use_parallel_residual": config.use_parallel_residual}


def _gemma2_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    return _window_metadata(config) | {
        ".attn_logit_softcapping": float(config.attn_logit_softcapping),
        ".final_logit_softcapping": float(config.final_logit_softcapping),
    }


def _gemma3_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    del config
    return {".attention.sliding_window": 8, ".rope.freq_base_swa": 2e4}


def _gemma3n_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    sliding_rope = config.rope_parameters["sliding_attention"]
    return _pattern_metadata(config) | {
        ".activation_sparsity_scale": [
            NormalDist().inv_cdf(part) if part else -np.inf
            for part in config.activation_sparsity_pattern
        ],
        ".altup.active_idx": config.altup_active_idx,
        ".altup.num_inputs": config.altup_num_inputs,
        ".attention.shared_kv_layers": config.num_kv_shared_layers,
        ".embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        ".final_logit_softcapping": float(config.final_logit_softcapping),
        ".rope.freq_base_swa": float(sliding_rope["rope_theta"]),
    }


def _gemma4_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    num_layers, num_shared = config.num_hidden_layers, config.num_kv_shared_layers
    full_width, width = full_head_width(config), config.to_dict()["head_dim"]
    metadata = _pattern_metadata(config) | {
        ".attention.shared_kv_layers": num_shared,
        ".embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        ".final_logit_softcapping": float(config.final_logit_softcapping),
        ".rope.freq_base_swa": float(config.rope_parameters["sliding_attention"]["rope_theta"]),
    }
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        metadata |= {f".{key}": full_width, f".{key}_swa": width}
    if config.use_double_wide_mlp:
        size = config.intermediate_size
        sizes = [size] * (num_layers - num_shared) + [2 * size] * num_shared
        metadata[".feed_forward_length"] = sizes
    if config.attention_k_eq_v:
        counts = [config.per_layer_config[i].num_key_value_heads for i in range(num_layers)]
        metadata[".attention.head_count_kv"] = counts
    if config.enable_moe_block:
        metadata |= _expert_size(config) | {".expert_used_count": config.top_k_experts}
    return metadata


def _gpt_oss_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    size = {".expert_feed_forward_length": config.intermediate_size}
    return _window_metadata(config) | size


def _ministral3_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    return _rotated_whole(config) | {
        ".rope.scaling.yarn_log_multiplier": config.rope_parameters["mscale_all_dim"],
        ".attention.temperature_scale": config.rope_parameters["llama_4_scaling_beta"],
    }


def _nemotron_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    epsilon = float(config.norm_eps)
    names = ("layer_norm_epsilon", "layer_norm_rms_epsilon")
    return {f".attention.{name}": epsilon for name in names} | {".rope.scaling.type": "none"}


def _granite_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    metadata = {
        ".attention.scale": config.attention_multiplier,
        ".embedding_scale": config.embedding_multiplier,
        ".residual_scale": config.residual_multiplier,
        ".logit_scale": config.logits_scaling,
        **_rotated_whole(config),
    }
    shared_size = getattr(config, "shared_intermediate_size", 0)
    if shared_size:
        metadata[".expert_shared_feed_forward_length"] = shared_size
    if config.model_type == "granitemoehybrid":
        metadata |= recurrent_metadata(config)
    if config.model_type == "granitemoehybrid" and not config.num_local_experts:
        metadata[".feed_forward_length"] = shared_size
    return metadata


def _lfm2_moe_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    return (
        recurrent_metadata(config)
        | _expert_size(config)
        | {
            ".leading_dense_block_count": config.num_dense_layers,
            ".expert_gating_func": 2,
            ".expert_weights_scale": config.routed_scaling_factor,
        }
    )


def _qwen35_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    sections = config.rope_parameters.get("mrope_section", [11, 11, 10])
    return recurrent_metadata(config) | {".rope.dimension_sections": [*sections, 0]}


def _qwen35_moe_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    return _qwen35_metadata(config) | _qwen2_moe_metadata(config)


def _qwen3_next_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    return recurrent_metadata(config) | _qwen2_moe_metadata(config)


def _cohere_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    metadata = {".logit_scale": float(config.logit_scale), ".rope.scaling.type": "none"}
    if config.model_type == "cohere2":
        metadata |= _window_metadata(config) | _rotated_whole(config)
    return metadata


def _qwen2_moe_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    shared_size = config.shared_expert_intermediate_size
    return _expert_size(config) | {".expert_shared_feed_forward_length": shared_size}


def _ernie_moe_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    num_shared = config.moe_num_shared_experts
    return _expert_size(config) | {
        ".expert_count": config.moe_num_experts,
        ".expert_used_count": config.moe_k,
        ".interleave_moe_layer_step": config.moe_layer_interval,
        ".leading_dense_block_count": config.moe_layer_start_index,
        ".expert_shared_count": num_shared,
        ".expert_shared_feed_forward_length": config.moe_intermediate_size * num_shared,
    }


def _glm4_moe_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    return _expert_size(config) | {
        ".expert_count": config.n_routed_experts,
        ".expert_shared_count": config.n_shared_experts,
        ".leading_dense_block_count": config.first_k_dense_replace,
        ".expert_gating_func": 2,
        ".expert_weights_scale": config.routed_scaling_factor,
        ".expert_weights_norm": config.norm_topk_prob,
        ".expert_group_count": config.n_group,
        ".expert_group_used_count": config.topk_group,
    }


def xielu_metadata(weights: dict[str, torch.Tensor], num_layers: int) -> dict[str, list[float]]:
    """Apertus' constants of activations: of each layer, as they are stored."""
    return {
        f"xielu.{part}": [
            float(weights[f"model.layers.{layer}.mlp.act_fn.{part}"].item())
            for layer in range(num_layers)
        ]
        for part in ("alpha_p", "alpha_n", "beta", "eps")
    }


def _phi3_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    rope = config.rope_parameters
    original = config.original_max_position_embeddings
    metadata = {
        ".rope.scaling.original_context_length": original,
        ".attention.sliding_window": config.sliding_window or 0,
    }
    if rope["rope_type"] == "longrope":
        stretch = config.max_position_embeddings / original
        attention = np.sqrt(1 + np.log(stretch) / np.log(original)) if stretch > 1 else 1.0
        metadata[".rope.scaling.attn_factor"] = float(attention)
    return metadata


OF_FAMILIES: dict[str, Callable[[PreTrainedConfig], dict[str, Any]]] = {
    "cohere": _cohere_metadata,
    "cohere2": _cohere_metadata,
    "ernie4_5_moe": _ernie_moe_metadata,
    "exaone4": _pattern_metadata,
    "gemma2": _gemma2_metadata,
    "gemma3_text": _gemma3_metadata,
    "gemma3n_text": _gemma3n_metadata,
    "gemma4_text": _gemma4_metadata,
    "glm4_moe": _glm4_moe_metadata,
    "gpt_neox": _residual_metadata,
    "gpt_oss": _gpt_oss_metadata,
    "granite": _granite_metadata,
    "granitemoe": _granite_metadata,
    "granitemoeshared": _granite_metadata,
    "granitemoehybrid": _granite_metadata,
    "lfm2": recurrent_metadata,
    "lfm2_moe": _lfm2_moe_metadata,
    "ministral3": _ministral3_metadata,
    "nemotron": _nemotron_metadata,
    "olmo3": _pattern_metadata,
    "phi3": _phi3_metadata,
    "qwen2_moe": _qwen2_moe_metadata,
    "qwen3_5_moe_text": _qwen35_moe_metadata,
    "qwen3_5_text": _qwen35_metadata,
    "qwen3_moe": _expert_size,
    "qwen3_next": _qwen3_next_metadata,
    "smollm3": _rotated_whole,
    "stablelm": _residual_metadata,
}
