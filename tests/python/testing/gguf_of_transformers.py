"""Models of transformers as GGUF files have them."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    PreTrainedConfig,
)

# Hugging Face layer names -> GGUF's, written down independently of the converter.
TO_GGUF = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "block_sparse_moe.gate": "ffn_gate_inp",
}  # fmt: skip


GEMMA_TO_GGUF = TO_GGUF | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


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


def gguf_tensors(
    weights: dict[str, torch.Tensor], config: PreTrainedConfig
) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of a Hugging Face checkpoint as a GGUF file has them, experts stacked."""
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    experts: dict[str, list[npt.NDArray[np.float32]]] = {}
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, tensor in sorted(weights.items()):
        values = tensor.float().numpy()
        if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
            values = values + 1
        stem, _, ending = name.rpartition(".")
        if stem in whole:
            tensors[f"{whole[stem]}.{ending}"] = values
        elif match := re.fullmatch(r"model\.layers\.(\d+)\..*experts\.(\d+)\.(w\d)", stem):
            part = {"w1": "gate", "w2": "down", "w3": "up"}[match[3]]
            experts.setdefault(f"blk.{match[1]}.ffn_{part}_exps.weight", []).append(values)
        else:
            match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem)
            assert match is not None
            names = GEMMA_TO_GGUF if config.model_type == "gemma3_text" else TO_GGUF
            part = names[match[2]]
            if part in ("attn_q", "attn_k") and config.model_type in ("llama", "mixtral"):
                is_query = part == "attn_q"
                heads = config.num_attention_heads if is_query else config.num_key_value_heads
                values = interleave(values, heads)
            tensors[f"blk.{match[1]}.{part}.{ending}"] = values
    return tensors | {name: np.stack(parts) for name, parts in experts.items()}


def gguf_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    is_gemma = config.model_type == "gemma3_text"
    metadata = {
        ".block_count": config.num_hidden_layers,
        ".context_length": config.max_position_embeddings,
        ".embedding_length": config.hidden_size,
        ".feed_forward_length": config.intermediate_size,
        ".attention.head_count": config.num_attention_heads,
        ".attention.head_count_kv": config.num_key_value_heads,
        ".attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        ".rope.freq_base": 1e6 if is_gemma else float(config.rope_parameters["rope_theta"]),
        "tokenizer.ggml.bos_token_id": config.bos_token_id,
        "tokenizer.ggml.eos_token_id": config.eos_token_id,
        "tokenizer.ggml.padding_token_id": config.pad_token_id,
    }
    if is_gemma:
        metadata |= {".attention.sliding_window": 8, ".rope.freq_base_swa": 2e4}
    if config.model_type == "qwen3" or is_gemma:
        metadata |= {".attention.key_length": 32, ".attention.value_length": 32}
    if config.model_type == "mixtral":
        metadata |= {".expert_count": 4, ".expert_used_count": 2}
    return metadata
