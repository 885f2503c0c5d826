"""Models of transformers as GGUF files have them."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedConfig

# Hugging Face layer names -> GGUF's, written down independently of the converter.
TO_GGUF = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip
NORMS_OF_OUTPUTS = TO_GGUF | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
WHOLE = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
}  # fmt: skip
EXPERT_PARTS = {
    "w1": "gate", "w2": "down", "w3": "up",
    "gate_proj": "gate", "down_proj": "down", "up_proj": "up",
}  # fmt: skip
ARCHITECTURES = {
    "mixtral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe", "gpt_neox": "gptneox",
}  # fmt: skip


def architecture_of(config: PreTrainedConfig) -> str:
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


def gguf_tensors(
    weights: dict[str, torch.Tensor], config: PreTrainedConfig
) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of a Hugging Face checkpoint as a GGUF file has them, experts stacked."""
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    experts: dict[str, list[npt.NDArray[np.float32]]] = {}
    kind = config.model_type
    for name in sorted(weights, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]):
        values = weights[name].float().numpy()
        if kind in ("gemma2", "gemma3_text") and name.endswith("norm.weight"):
            values = values + 1
        stem, _, ending = name.rpartition(".")
        if stem in WHOLE:
            tensors[f"{WHOLE[stem]}.{ending}"] = values
        elif match := re.fullmatch(r"model\.layers\.(\d+)\..*experts\.(\d+)\.(\w+)", stem):
            part = EXPERT_PARTS[match[3]]
            experts.setdefault(f"blk.{match[1]}.ffn_{part}_exps.weight", []).append(values)
        else:
            match = re.fullmatch(r"(?:model|gpt_neox)\.layers\.(\d+)\.(.*)", stem)
            assert match is not None
            of_outputs = kind in ("gemma2", "gemma3_text", "olmo2")
            part = (NORMS_OF_OUTPUTS if of_outputs else TO_GGUF)[match[2]]
            if part in ("attn_q", "attn_k") and kind in ("llama", "mixtral", "granite"):
                is_query = part == "attn_q"
                heads = config.num_attention_heads if is_query else config.num_key_value_heads
                values = interleave(values, heads)
            if kind == "gpt_neox" and part == "attn_qkv":
                values = heads_apart(values, config.num_attention_heads)
            tensors[f"blk.{match[1]}.{part}.{ending}"] = values
    tensors |= {name: np.stack(parts) for name, parts in experts.items()}
    if config.rope_parameters.get("rope_type") == "longrope":
        for kind in ("short", "long"):
            factors = np.array(config.rope_parameters[f"{kind}_factor"], np.float32)
            tensors[f"rope_factors_{kind}.weight"] = factors
    return tensors


def gguf_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    kind = config.model_type
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    metadata = {
        ".block_count": config.num_hidden_layers,
        ".context_length": config.max_position_embeddings,
        ".embedding_length": config.hidden_size,
        ".feed_forward_length": config.intermediate_size,
        ".attention.head_count": config.num_attention_heads,
        ".rope.freq_base": (
            1e6 if kind == "gemma3_text" else float(config.rope_parameters["rope_theta"])
        ),
        "tokenizer.ggml.bos_token_id": config.bos_token_id,
        "tokenizer.ggml.eos_token_id": config.eos_token_id,
        "tokenizer.ggml.padding_token_id": config.pad_token_id,
    }
    if kind == "gpt_neox":
        return metadata | {
            ".attention.layer_norm_epsilon": float(config.layer_norm_eps),
            ".rope.dimension_count": int(width * config.rope_parameters["partial_rotary_factor"]),
            ".use_parallel_residual": config.use_parallel_residual,
        }
    metadata[".attention.head_count_kv"] = config.num_key_value_heads
    metadata[".attention.layer_norm_rms_epsilon"] = float(config.rms_norm_eps)
    if kind == "gemma3_text":
        metadata |= {".attention.sliding_window": 8, ".rope.freq_base_swa": 2e4}
    if kind in ("qwen3", "qwen3_moe", "gemma2", "gemma3_text"):
        metadata |= {".attention.key_length": width, ".attention.value_length": width}
    return metadata | _metadata_of_family(config, width)


def _metadata_of_family(config: PreTrainedConfig, width: int) -> dict[str, Any]:
    kind = config.model_type
    if kind == "mixtral":
        return {
            ".expert_count": config.num_local_experts,
            ".expert_used_count": config.num_experts_per_tok,
        }
    if kind == "qwen3_moe":
        return {
            ".expert_count": config.num_experts,
            ".expert_used_count": config.num_experts_per_tok,
            ".expert_feed_forward_length": config.moe_intermediate_size,
        }
    if kind == "gemma2":
        return {
            ".attn_logit_softcapping": float(config.attn_logit_softcapping),
            ".final_logit_softcapping": float(config.final_logit_softcapping),
            ".attention.sliding_window": config.sliding_window,
        }
    if kind == "granite":
        return {
            ".attention.scale": config.attention_multiplier,
            ".embedding_scale": config.embedding_multiplier,
            ".residual_scale": config.residual_multiplier,
            ".logit_scale": config.logits_scaling,
            ".vocab_size": config.vocab_size,
            ".rope.dimension_count": width,
        }
    if kind == "phi3":
        return _phi3_metadata(config, width)
    return {}


def _phi3_metadata(config: PreTrainedConfig, width: int) -> dict[str, Any]:
    rope = config.rope_parameters
    original = config.original_max_position_embeddings
    metadata = {
        ".rope.dimension_count": int(width * rope["partial_rotary_factor"]),
        ".rope.scaling.original_context_length": original,
        ".attention.sliding_window": config.sliding_window or 0,
    }
    if rope["rope_type"] == "longrope":
        stretch = config.max_position_embeddings / original
        attention = np.sqrt(1 + np.log(stretch) / np.log(original)) if stretch > 1 else 1.0
        metadata[".rope.scaling.attn_factor"] = float(attention)
    return metadata
