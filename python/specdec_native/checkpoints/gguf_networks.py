"""config.json of the networks that GGUF files hold; gguf_expert_networks.py has those with experts,
gguf_gemma.py has Gemma 3n and 4, and gguf_recurrent.py has those whose layers keep states.

Facts that files leave out are the constants below; llama.cpp has them in its code. Each function
reads the metadata and the tensors that its result depends on; the others are refused.
"""

from __future__ import annotations

import math
from typing import Any

from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_hyperparameters import (
    expert_counts,
    has_bias,
    has_bias_anywhere,
    head_dim,
    layer_types,
    named,
    network,
    num_heads,
    require_value,
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
# Layers of these are of full attention, all others have a window: each n-th.
_COHERE2_PATTERN = 4
_EXAONE4_PATTERN = 4
_OLMO3_PATTERN = 4
# EXAONE 4 32B, which has these many layers, has windows; the smaller one has none.
_EXAONE4_32B_LAYERS = 64
_EXAONE4_WINDOW = 4096
# Each fourth layer of SmolLM3 does not rotate its positions.
_SMOLLM3_PATTERN = 4
# All StarCoder2 have this window. llama.cpp computes full attention.
_STARCODER2_WINDOW = 4096
# Of all MiniCPM; older files have none of them.
_MINICPM_EMBEDDING_SCALE = 12.0
_MINICPM_DEPTH = 1.4
_MINICPM_BASE_SIZE = 256


def llama(file: GgufFile) -> dict[str, Any]:
    """Llama, and what GGUF files store as Llama: Mistral and Mixtral."""
    config = rotary_network(file)
    if file.hyperparameter("expert_count", 0):
        return config | {
            **named("Mixtral", "mixtral"),
            **expert_counts(file, "num_local_experts"),
            "sliding_window": window(file),
        }
    if window(file):
        return config | {
            **named("Mistral", "mistral"),
            "sliding_window": window(file),
        }
    if has_bias(file, "attn_q") and not has_bias(file, "attn_output"):
        raise file.error(
            "attention has biases on q, k, v but not on its output, which no Llama checkpoint has"
        )
    return config | {
        **named("Llama", "llama"),
        "attention_bias": has_bias(file, "attn_q"),
        "mlp_bias": has_bias(file, "ffn_gate"),
    }


def _qwen(file: GgufFile, model_type: str) -> dict[str, Any]:
    config = rotary_network(file)
    return config | {
        **named(model_type.capitalize(), model_type),
        "use_sliding_window": window(file) is not None,
        "sliding_window": window(file),
        # Layers from this one on use the window: all of them, or with no window none.
        "max_window_layers": 0 if window(file) else config["num_hidden_layers"],
    }


def qwen2(file: GgufFile) -> dict[str, Any]:
    """Qwen2 and Qwen2.5."""
    return _qwen(file, "qwen2")


def qwen3(file: GgufFile) -> dict[str, Any]:
    """Qwen3 without experts."""
    return _qwen(file, "qwen3") | {"attention_bias": has_bias(file, "attn_q")}


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
        "layer_types": layer_types(num_layers, pattern),
    }


def gemma2(file: GgufFile) -> dict[str, Any]:
    """Gemma 2."""

    def cap(key: str, absent: float) -> float:
        return shortest(file.hyperparameter(f"{key}_logit_softcapping", absent))

    return _gemma(file, _GEMMA2_PATTERN, _GEMMA2_27B_LAYERS) | {
        **named("Gemma2", "gemma2"),
        "sliding_window": file.hyperparameter("attention.sliding_window", _GEMMA2_WINDOW),
        "attn_logit_softcapping": cap("attn", _GEMMA2_ATTENTION_CAP) or None,
        "final_logit_softcapping": cap("final", _GEMMA2_LOGITS_CAP) or None,
    }


def gemma3(file: GgufFile) -> dict[str, Any]:
    """The text of Gemma 3."""
    return _gemma(file, _GEMMA3_PATTERN, _GEMMA3_27B_LAYERS) | {
        **named("Gemma3", "gemma3_text"),
        "sliding_window": file.require_hyperparameter("attention.sliding_window", int),
        "rope_theta": rope_theta(file, _GEMMA3_THETA),
        "rope_local_base_freq": shortest(
            file.hyperparameter("rope.freq_base_swa", _GEMMA3_LOCAL_THETA)
        ),
    }


def phi3(file: GgufFile) -> dict[str, Any]:
    """Phi-3, Phi-3.5 and Phi-4."""
    config = rotary_network(file, rotates_part=True)
    part = rotary_part(file)
    positions = config["max_position_embeddings"]
    longrope = longrope_scaling(file, round(config["head_dim"] * part) // 2)
    return config | {
        **named("Phi3", "phi3"),
        "rope_scaling": longrope or config["rope_scaling"],
        "original_max_position_embeddings": file.hyperparameter(
            "rope.scaling.original_context_length", positions
        ),
        "sliding_window": window(file),
    }


def granite_scales(
    file: GgufFile, *, num_kv_heads: int | None = None, has_positions: bool = True
) -> dict[str, Any]:
    """What all Granites have.

    num_kv_heads: of layers that have any, where others have none.
    has_positions: files that say that they have none are refused.
    """
    config = rotary_network(file, num_kv_heads=num_kv_heads)
    if has_positions and not file.hyperparameter("rope.scaling.finetuned", True):
        raise file.error(
            f"metadata {file.architecture}.rope.scaling.finetuned is False: a Granite without "
            "positions, which is not implemented"
        )

    def multiplier(key: str, absent: float) -> float:
        return shortest(file.hyperparameter(key, 0.0) or absent)

    return config | {
        "attention_bias": has_bias_anywhere(file, "attn_q"),
        "attention_multiplier": multiplier("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": multiplier("embedding_scale", 1.0),
        "residual_multiplier": multiplier("residual_scale", 1.0),
        "logits_scaling": multiplier("logit_scale", 1.0),  # a divisor in both
    }


def granite(file: GgufFile) -> dict[str, Any]:
    """Granite, and Granite 4 without experts where all layers are attention."""
    return (
        granite_scales(file)
        | named("Granite", "granite")
        | {"mlp_bias": has_bias(file, "ffn_gate")}
    )


def olmo2(file: GgufFile) -> dict[str, Any]:
    """OLMo 2, and with windows OLMo 3."""
    config = rotary_network(file) | {"attention_bias": has_bias(file, "attn_q")}
    if not window(file):
        return config | named("Olmo2", "olmo2")
    theta = {"rope_theta": config.pop("rope_theta")}
    scaling = config.pop("rope_scaling") or {"rope_type": "default"}
    return config | {
        **named("Olmo3", "olmo3"),
        "sliding_window": window(file),
        "layer_types": layer_types(config["num_hidden_layers"], _OLMO3_PATTERN),
        "rope_parameters": {  # only layers without a window scale their positions
            "full_attention": scaling | theta,
            "sliding_attention": {"rope_type": "default"} | theta,
        },
    }


def smollm3(file: GgufFile) -> dict[str, Any]:
    """SmolLM3."""
    config = rotary_network(file)
    layers = range(1, config["num_hidden_layers"] + 1)
    return config | {
        **named("SmolLM3", "smollm3"),
        "attention_bias": has_bias(file, "attn_q"),
        "mlp_bias": has_bias(file, "ffn_gate"),
        "no_rope_layers": [int(layer % _SMOLLM3_PATTERN != 0) for layer in layers],  # 1: rotated
        "use_sliding_window": False,
        "sliding_window": None,
    }


def exaone4(file: GgufFile) -> dict[str, Any]:
    """EXAONE 4."""
    config = rotary_network(file)
    num_layers = config["num_hidden_layers"]
    width = window(file) or (_EXAONE4_WINDOW if num_layers == _EXAONE4_32B_LAYERS else None)
    return config | {
        **named("Exaone4", "exaone4"),
        "sliding_window": width,
        "sliding_window_pattern": _EXAONE4_PATTERN if width else None,
        "layer_types": layer_types(num_layers, _EXAONE4_PATTERN if width else 1),
    }


def _cohere(file: GgufFile) -> dict[str, Any]:
    return rotary_network(file, layer_norm_key="layer_norm_eps") | {
        "attention_bias": has_bias(file, "attn_q"),
        "logit_scale": shortest(file.require_hyperparameter("logit_scale", float)),
    }


def cohere(file: GgufFile) -> dict[str, Any]:
    """Command R."""
    return _cohere(file) | named("Cohere", "cohere") | {"use_qk_norm": False}


def cohere2(file: GgufFile) -> dict[str, Any]:
    """Command R7B, whose layers without a window are not rotated."""
    config = _cohere(file)
    return config | {
        **named("Cohere2", "cohere2"),
        "sliding_window": file.require_hyperparameter("attention.sliding_window", int),
        "layer_types": layer_types(config["num_hidden_layers"], _COHERE2_PATTERN),
    }


def mistral3(file: GgufFile) -> dict[str, Any]:
    """Ministral 3, whose queries grow with the position, and Mistral Small."""
    config = rotary_network(file)
    beta = file.hyperparameter("attention.temperature_scale", 0.0)
    if not beta:
        return config | named("Mistral", "mistral") | {"sliding_window": None}
    scaling = config["rope_scaling"] or {}
    length = scaling.get("original_max_position_embeddings", 0)
    if scaling.get("rope_type") != "yarn":
        raise file.error(
            f"metadata {file.architecture}.attention.temperature_scale is {beta} and "
            "rope.scaling.type is not yarn, whose length it needs"
        )
    require_value(file, "attention.temperature_length", (0, length))
    scaling["llama_4_scaling_beta"] = shortest(beta)
    return config | named("Ministral3", "ministral3") | {"sliding_window": None}


def stablelm(file: GgufFile) -> dict[str, Any]:
    """StableLM."""
    return rotary_network(file, layer_norm_key="layer_norm_eps", rotates_part=True) | {
        **named("StableLm", "stablelm"),
        "use_qkv_bias": has_bias(file, "attn_q"),
        # Files of old models say that blocks are parallel where they are not.
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in file.tensors,
        "qk_layernorm": False,
    }


def apertus(file: GgufFile) -> dict[str, Any]:
    """Apertus, which scales positions of its own where config.json says nothing of them."""
    config = rotary_network(file)
    return config | {
        **named("Apertus", "apertus"),
        "hidden_act": "xielu",
        "attention_bias": has_bias(file, "attn_q"),
        "rope_scaling": config["rope_scaling"] or {"rope_type": "default"},
    }


def minicpm(file: GgufFile) -> dict[str, Any]:
    """MiniCPM 1, 2 and 4."""
    config = rotary_network(file)
    depth = math.sqrt(max(config["num_hidden_layers"], 1))
    residual_scale = file.hyperparameter("residual_scale", 0.0) or _MINICPM_DEPTH / depth
    divisor = file.hyperparameter("logit_scale", 0.0)
    longrope = longrope_scaling(file, config["head_dim"] // 2, absent_scale=1.0)
    return config | {
        **named("MiniCPM", "minicpm"),
        "attention_bias": has_bias(file, "attn_q"),
        "rope_scaling": longrope or config["rope_scaling"],
        "scale_emb": shortest(
            file.hyperparameter("embedding_scale", 0.0) or _MINICPM_EMBEDDING_SCALE
        ),
        "scale_depth": shortest(residual_scale * depth),
        "dim_model_base": (
            shortest(config["hidden_size"] / divisor) if divisor else _MINICPM_BASE_SIZE
        ),
    }


def gpt_neox(file: GgufFile) -> dict[str, Any]:
    """GPT-NeoX and Pythia."""
    config = sizes(file)
    head_dim(file)  # which checks the widths of keys and values
    is_20b = config["num_hidden_layers"] == _NEOX_20B_LAYERS
    return config | {
        **named("GPTNeoX", "gpt_neox"),
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


_ATTENTION_BIAS = {"attention_bias": "attn_q"}
_BIASES = _ATTENTION_BIAS | {"mlp_bias": "ffn_up"}

arcee = network("Arcee", "arcee", _BIASES, hidden_act="relu2")
ernie4_5 = network("Ernie4_5", "ernie4_5", {"use_bias": "attn_q"})
gemma = network("Gemma", "gemma", _ATTENTION_BIAS, hidden_act="gelu_pytorch_tanh")
glm4 = network("Glm4", "glm4", _ATTENTION_BIAS, rotates_part=True)
# The base of its frequencies is in the file as the model stretches it.
hunyuan_dense = network("HunYuanDenseV1", "hunyuan_v1_dense", _ATTENTION_BIAS)
nemotron = network(
    "Nemotron",
    "nemotron",
    _BIASES,
    layer_norm_key="norm_eps",
    rotates_part=True,
    hidden_act="relu2",
)
seed_oss = network("SeedOss", "seed_oss", _BIASES | {"attention_out_bias": "attn_output"})
starcoder2 = network(
    "Starcoder2",
    "starcoder2",
    {"use_bias": "attn_q"},
    layer_norm_key="norm_epsilon",
    hidden_act="gelu_pytorch_tanh",
    sliding_window=_STARCODER2_WINDOW,
)
