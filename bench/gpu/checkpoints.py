"""Shapes that are measured: a config.json each. Every engine makes weights up on the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": _ROPE,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
_LLAMA_1B: dict[str, Any] = _LLAMA | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
_TINY: dict[str, Any] = _LLAMA | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rope_scaling": None,
    "tie_word_embeddings": True,
}


def _eagle3_head(target: dict[str, Any], draft_vocab_size: int, taps: list[int]) -> dict[str, Any]:
    """An EAGLE-3 head: a layer over the inputs of three layers of the target."""
    return target | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": taps,
        "tie_word_embeddings": False,
    }


_LLAMA_8B: dict[str, Any] = _LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_scaling": _ROPE | {"factor": 8.0},
    "tie_word_embeddings": False,
}
_QWEN3_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
# config.json by name of the shape.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": _LLAMA_1B,
    "llama-3.1-8b": _LLAMA_8B,
    # A draft as cheap as an EAGLE head: one layer of the 1B and its vocabulary.
    "llama-one-layer": _LLAMA_1B | {"num_hidden_layers": 1},
    "qwen3-30b-a3b": _QWEN3_30B,
    "tiny": _TINY,
    "tiny-draft": _TINY | {"num_hidden_layers": 1},
    "llama-3.2-1b-eagle3": _eagle3_head(_LLAMA_1B, 32000, [2, 8, 13]),
    "llama-3.1-8b-eagle3": _eagle3_head(_LLAMA_8B, 32000, [2, 16, 29]),
    "tiny-eagle3": _eagle3_head(_TINY, 64, [0, 1, 2]),
}


def write(name: str, directory: Path) -> Path:
    """Writes config.json of that shape; returns its folder."""
    target = directory / name
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(SHAPES[name], indent=1) + "\n")
    return target
