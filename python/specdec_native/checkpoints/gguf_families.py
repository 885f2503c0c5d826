"""The architectures of GGUF files: names of tensors, order of rows, and config.json of each.

Facts that files leave out are the constants below; llama.cpp has them in its code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_hyperparameters import (
    has_bias,
    head_dim,
    num_heads,
    rotary_network,
    rotary_part,
    sizes,
    window,
)
from specdec_native.checkpoints.gguf_rope import longrope_scaling, rope_theta, shortest

# Every sixth layer of Gemma 3, and every second of Gemma 2, attends to the whole context.
_GEMMA3_PATTERN = 6
_GEMMA2_PATTERN = 2
# The largest Gemma 2 and Gemma 3, which have these many layers, scale queries by
# hidden_size / num_heads instead of head_dim.
_GEMMA2_27B_LAYERS = 46
_GEMMA3_27B_LAYERS = 62
# What Gemma 2 has where its file does not say otherwise.
_GEMMA2_WINDOW = 4096
_GEMMA2_ATTENTION_CAP = 50.0
_GEMMA2_LOGITS_CAP = 30.0
# The base of Gemma 3's rotary frequencies in layers without and with a window.
_GEMMA3_THETA = 1e6
_GEMMA3_LOCAL_THETA = 1e4
# GPT-NeoX-20B has this many layers and approximates GELU by tanh; later models of the family, such
# as Pythia, compute it exactly.
_NEOX_20B_LAYERS = 44

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_HEAD_NORM_NAMES = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_INPUT_NORM_NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_MLP_NAMES = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA_NAMES = _INPUT_NORM_NAMES | _ATTENTION_NAMES | _MLP_NAMES
_QWEN3_NAMES = _LLAMA_NAMES | _HEAD_NORM_NAMES
_GEMMA_NAMES = (
    _QWEN3_NAMES
    | {"post_attention_norm": "post_attention_layernorm"}
    | {"ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
)
_OLMO2_NAMES = (
    _ATTENTION_NAMES
    | _HEAD_NORM_NAMES
    | _MLP_NAMES
    | {"post_attention_norm": "post_attention_layernorm"}
    | {"post_ffw_norm": "post_feedforward_layernorm"}
)
_PHI3_NAMES = _INPUT_NORM_NAMES | {
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_NEOX_NAMES = _INPUT_NORM_NAMES | {
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_NEOX_TOP_NAMES = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
}


@dataclass(frozen=True)
class Experts:
    """Names of a layer's experts."""

    prefix: str
    parts: Mapping[str, str]


_MIXTRAL_EXPERTS = Experts(
    "block_sparse_moe.experts", {"ffn_gate": "w1", "ffn_down": "w2", "ffn_up": "w3"}
)
_QWEN_EXPERTS = Experts(
    "mlp.experts", {"ffn_gate": "gate_proj", "ffn_down": "down_proj", "ffn_up": "up_proj"}
)


@dataclass(frozen=True)
class GgufFamily:
    """How files of an architecture become checkpoints."""

    config: Callable[[GgufFile], dict[str, Any]]
    """config.json but what all architectures have. It reads the metadata and the tensors that it
    depends on; others are refused."""

    layer_names: Mapping[str, str]
    """Hugging Face's names, by those in the file; both without the layer and "weight" or "bias"."""

    top_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(_TOP_NAMES))
    layers: str = "model.layers"
    experts: Experts | None = None

    interleaves_pairs: bool = False
    """Row 2i of a head of q and k turns with row 2i + 1; in Hugging Face, with i + head_dim / 2."""

    fuses_all_heads: bool = False
    """attn_qkv holds all heads of q, then k, then v; in Hugging Face, q, k and v of each head."""

    norm_offset: float = 0.0
    """What Hugging Face adds to the weights of norms as the model runs, and the file has added."""

    without_effect: frozenset[str] = frozenset()
    """Metadata that changes nothing about text."""


def _llama(file: GgufFile) -> dict[str, Any]:
    """Llama, and what GGUF files store as Llama: Mistral and Mixtral."""
    config = rotary_network(file)
    num_experts = file.hyperparameter("expert_count", 0)
    if num_experts:
        return config | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": num_experts,
            "num_experts_per_tok": file.require_hyperparameter("expert_used_count", int),
            "sliding_window": window(file),
        }
    if window(file):
        return config | {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": window(file),
        }
    if has_bias(file, "attn_q") and not has_bias(file, "attn_output"):
        raise file.error(
            "attention has biases on q, k, v but not on its output, which no Llama checkpoint has"
        )
    return config | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": has_bias(file, "attn_q"),
        "mlp_bias": has_bias(file, "ffn_gate"),
    }


def _qwen(file: GgufFile, model_type: str) -> dict[str, Any]:
    config = rotary_network(file)
    return config | {
        "architectures": [f"{model_type.capitalize()}ForCausalLM"],
        "model_type": model_type,
        "use_sliding_window": window(file) is not None,
        "sliding_window": window(file),
        # Layers from this one on use the window: all of them, or with no window none.
        "max_window_layers": 0 if window(file) else config["num_hidden_layers"],
    }


def _qwen2(file: GgufFile) -> dict[str, Any]:
    return _qwen(file, "qwen2")


def _qwen3(file: GgufFile) -> dict[str, Any]:
    return _qwen(file, "qwen3") | {"attention_bias": has_bias(file, "attn_q")}


def _qwen3_moe(file: GgufFile) -> dict[str, Any]:
    config = rotary_network(file)
    per_token = file.require_hyperparameter("expert_used_count", int)
    return config | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": has_bias(file, "attn_q"),
        "num_experts": file.require_hyperparameter("expert_count", int),
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": file.require_hyperparameter("expert_feed_forward_length", int),
        # All layers have experts, and the weights of those chosen add up to 1.
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def _gemma(file: GgufFile, pattern: int, layers_of_27b: int) -> dict[str, Any]:
    config = rotary_network(file)
    num_layers = config["num_hidden_layers"]
    is_27b = num_layers == layers_of_27b
    return config | {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": (
            config["hidden_size"] // num_heads(file) if is_27b else config["head_dim"]
        ),
        "layer_types": [
            "sliding_attention" if layer % pattern else "full_attention"
            for layer in range(1, num_layers + 1)
        ],
    }


def _gemma2(file: GgufFile) -> dict[str, Any]:
    def cap(key: str, absent: float) -> float:
        return shortest(file.hyperparameter(f"{key}_logit_softcapping", absent))

    return _gemma(file, _GEMMA2_PATTERN, _GEMMA2_27B_LAYERS) | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "sliding_window": file.hyperparameter("attention.sliding_window", _GEMMA2_WINDOW),
        "attn_logit_softcapping": cap("attn", _GEMMA2_ATTENTION_CAP) or None,
        "final_logit_softcapping": cap("final", _GEMMA2_LOGITS_CAP) or None,
    }


def _gemma3(file: GgufFile) -> dict[str, Any]:
    return _gemma(file, _GEMMA3_PATTERN, _GEMMA3_27B_LAYERS) | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "sliding_window": file.require_hyperparameter("attention.sliding_window", int),
        "rope_theta": rope_theta(file, _GEMMA3_THETA),
        "rope_local_base_freq": shortest(
            file.hyperparameter("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)
        ),
    }


def _phi3(file: GgufFile) -> dict[str, Any]:
    config = rotary_network(file, rotates_part=True)
    part = rotary_part(file)
    positions = config["max_position_embeddings"]
    longrope = longrope_scaling(file, round(config["head_dim"] * part) // 2)
    return config | {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "partial_rotary_factor": part,
        "rope_scaling": longrope or config["rope_scaling"],
        "original_max_position_embeddings": file.hyperparameter(
            "rope.scaling.original_context_length", positions
        ),
        "sliding_window": window(file),
    }


def _granite(file: GgufFile) -> dict[str, Any]:
    config = rotary_network(file)
    if not file.hyperparameter("rope.scaling.finetuned", True):
        raise file.error(
            "metadata granite.rope.scaling.finetuned is False: a Granite without positions, which "
            "is not implemented"
        )

    def multiplier(key: str, absent: float) -> float:
        return shortest(file.hyperparameter(key, 0.0) or absent)

    return config | {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_bias": has_bias(file, "attn_q"),
        "mlp_bias": has_bias(file, "ffn_gate"),
        "attention_multiplier": multiplier("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": multiplier("embedding_scale", 1.0),
        "residual_multiplier": multiplier("residual_scale", 1.0),
        "logits_scaling": multiplier("logit_scale", 1.0),  # a divisor in both
    }


def _olmo2(file: GgufFile) -> dict[str, Any]:
    return rotary_network(file) | {
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "attention_bias": has_bias(file, "attn_q"),
    }


def _gpt_neox(file: GgufFile) -> dict[str, Any]:
    config = sizes(file)
    head_dim(file)  # which checks the widths of keys and values
    is_20b = config["num_hidden_layers"] == _NEOX_20B_LAYERS
    return config | {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_act": "gelu_pytorch_tanh" if is_20b else "gelu",
        "layer_norm_eps": shortest(
            file.require_hyperparameter("attention.layer_norm_epsilon", float)
        ),
        "rotary_pct": rotary_part(file),
        "rotary_emb_base": rope_theta(file),
        "use_parallel_residual": bool(file.hyperparameter("use_parallel_residual", True)),
        "attention_bias": has_bias(file, "attn_qkv"),
        "use_cache": True,
    }


_ROUTER = {"ffn_gate_inp": "mlp.gate"}
# Positions of text are equal in all sections, and images alone reach the layers that these name.
_OF_IMAGES = frozenset({"rope.dimension_sections", "n_deepstack_layers"})
_QWEN3 = GgufFamily(_qwen3, _QWEN3_NAMES, without_effect=_OF_IMAGES)
_QWEN3_MOE = GgufFamily(
    _qwen3_moe, _QWEN3_NAMES | _ROUTER, experts=_QWEN_EXPERTS, without_effect=_OF_IMAGES
)

FAMILIES = {
    "llama": GgufFamily(
        _llama,
        _LLAMA_NAMES | {"ffn_gate_inp": "block_sparse_moe.gate"},
        experts=_MIXTRAL_EXPERTS,
        interleaves_pairs=True,
    ),
    "qwen2": GgufFamily(_qwen2, _LLAMA_NAMES),
    "qwen3": _QWEN3,
    "qwen3vl": _QWEN3,
    "qwen3moe": _QWEN3_MOE,
    "qwen3vlmoe": _QWEN3_MOE,
    "gemma2": GgufFamily(_gemma2, _GEMMA_NAMES, norm_offset=1.0),
    "gemma3": GgufFamily(_gemma3, _GEMMA_NAMES, norm_offset=1.0),
    "phi3": GgufFamily(_phi3, _PHI3_NAMES),
    "granite": GgufFamily(_granite, _LLAMA_NAMES, interleaves_pairs=True),
    "olmo2": GgufFamily(_olmo2, _OLMO2_NAMES),
    "gptneox": GgufFamily(
        _gpt_neox,
        _NEOX_NAMES,
        top_names=_NEOX_TOP_NAMES,
        layers="gpt_neox.layers",
        fuses_all_heads=True,
    ),
}
"""By `general.architecture`."""
