"""Maps a GGUF file's hyperparameters to `config.json` as Hugging Face writes it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from specdec_native.checkpoints.gguf_file import GgufFile

KNOWN_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")

# Metadata of an architecture that changes no result here, and why. Keys that are in neither table
# and are not read may change what the model computes, so they are refused.
WITHOUT_EFFECT = {
    "vocab_size": "the embedding has that many rows",
    "tensor_data_layout": "it names the order of rows that all files of the architecture have",
    "pooling_type": "it is how an embedding is made of hidden states",
    "rope.scaling.finetuned": "it says how the model was trained",
    "rope.scaling.original_context_length": "YaRN has it, and reads it",
    "rope.scaling.yarn_beta_fast": "YaRN has it, and reads it",
    "rope.scaling.yarn_beta_slow": "YaRN has it, and reads it",
}
# Values of metadata that mean the same as leaving the key out.
_NEUTRAL = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),  # the softmax
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_sections": (0,),
    "rope.scale_linear": (0.0, 1.0),
    "rope.scaling.alpha": (0.0, 1.0),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.type": ("none",),
    "rope.scaling.yarn_attn_factor": (0.0, 1.0),
    "rope.scaling.yarn_ext_factor": (0.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "use_parallel_residual": (False,),
}

# How Llama 3.1 and later stretch the rotary embedding. A GGUF file keeps the resulting divisors
# (rope_freqs.weight) and the factor is the largest of them; these parameters are the same
# throughout the family.
_LLAMA3_LOW_FREQ_FACTOR = 1.0
_LLAMA3_HIGH_FREQ_FACTOR = 4.0
_LLAMA3_ORIGINAL_CONTEXT = 8192


def model_config(file: GgufFile, *, dtype: str, tied: bool) -> dict[str, Any]:
    """The content of config.json. `dtype`: of the weights to be written; `tied`: one embedding."""
    if file.architecture not in KNOWN_ARCHITECTURES:
        raise file.error(
            f"architecture {file.architecture!r} is not supported; "
            f"known: {', '.join(KNOWN_ARCHITECTURES)}"
        )
    num_heads = file.require_hyperparameter("attention.head_count", int)
    hidden_size = file.require_hyperparameter("embedding_length", int)
    norm_eps = file.require_hyperparameter("attention.layer_norm_rms_epsilon", float)
    config: dict[str, Any] = {
        "vocab_size": _vocab_size(file),
        "hidden_size": hidden_size,
        "intermediate_size": file.require_hyperparameter("feed_forward_length", int),
        "num_hidden_layers": file.require_hyperparameter("block_count", int),
        "num_attention_heads": num_heads,
        "num_key_value_heads": file.hyperparameter("attention.head_count_kv", num_heads),
        "head_dim": _head_dim(file, hidden_size, num_heads),
        "max_position_embeddings": file.require_hyperparameter("context_length", int),
        "rms_norm_eps": _shortest(norm_eps),
        "rope_theta": _shortest(file.hyperparameter("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(file),
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "use_cache": True,
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
    }
    config |= _special_token_ids(file)
    families = {"llama": _llama_family, "gemma3": _gemma_family}
    config |= families.get(file.architecture, _qwen_family)(file)
    _check_unread(file, config)
    return config


def _check_unread(file: GgufFile, config: dict[str, Any]) -> None:
    """Raises CheckpointError for metadata that may change what the model computes."""
    width = config["head_dim"]
    scaled_by = max(config.get("query_pre_attn_scalar", width), 1)
    is_sliding = [kind == "sliding_attention" for kind in config.get("layer_types", [])]
    neutral = _NEUTRAL | {
        "attention.scale": (0.0, float(np.float32(scaled_by**-0.5))),
        "attention.key_length_swa": (width,),
        "attention.value_length_swa": (width,),
        "rope.dimension_count_swa": (width,),
        "attention.sliding_window_pattern": (_GEMMA3_PATTERN, is_sliding) if is_sliding else (),
    }
    for key, value in file.unread_hyperparameters().items():
        allowed = neutral.get(key, ())
        of_layers = value if isinstance(value, list) else [value]
        if key in WITHOUT_EFFECT or value in allowed or all(one in allowed for one in of_layers):
            continue
        known = " or ".join(str(other) for other in allowed)
        raise file.error(
            f"metadata {file.architecture}.{key} is {value!r:.80}, which may change what the model "
            f"computes and is not implemented{f'; known is only {known}' if known else ''}"
        )


def generation_config(file: GgufFile) -> dict[str, Any]:
    """The content of generation_config.json: the ids that begin, end and pad a sequence."""
    return _special_token_ids(file)


def _llama_family(file: GgufFile) -> dict[str, Any]:
    """Llama, and what GGUF files store as Llama: Mistral and Mixtral."""
    window = file.hyperparameter("attention.sliding_window", 0) or None
    num_experts = file.hyperparameter("expert_count", 0)
    if num_experts:
        return {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": num_experts,
            "num_experts_per_tok": file.require_hyperparameter("expert_used_count", int),
            "sliding_window": window,
        }
    if window:
        return {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": window,
        }
    attention_bias = "blk.0.attn_q.bias" in file.tensors
    if attention_bias and "blk.0.attn_output.bias" not in file.tensors:
        raise file.error(
            "attention has biases on q, k, v but not on its output, which no Llama checkpoint has"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": attention_bias,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }


def _qwen_family(file: GgufFile) -> dict[str, Any]:
    window = file.hyperparameter("attention.sliding_window", 0) or None
    config: dict[str, Any] = {
        "architectures": [f"{file.architecture.capitalize()}ForCausalLM"],
        "model_type": file.architecture,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        # Layers from this one on use the window: all of them, or with no window none.
        "max_window_layers": 0 if window else file.require_hyperparameter("block_count", int),
    }
    if file.architecture == "qwen3":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    return config


# Facts about Gemma 3 that its GGUF files leave out. Each sixth layer attends to the whole context.
# The largest model, which has this many layers, scales queries by hidden_size / num_heads instead
# of head_dim.
_GEMMA3_PATTERN = 6
_GEMMA3_27B_LAYERS = 62


def _gemma_family(file: GgufFile) -> dict[str, Any]:
    num_layers = file.require_hyperparameter("block_count", int)
    num_heads = file.require_hyperparameter("attention.head_count", int)
    hidden_size = file.require_hyperparameter("embedding_length", int)
    is_27b = num_layers == _GEMMA3_27B_LAYERS
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": (
            hidden_size // num_heads if is_27b else _head_dim(file, hidden_size, num_heads)
        ),
        "sliding_window": file.require_hyperparameter("attention.sliding_window", int),
        "layer_types": [
            "sliding_attention" if layer % _GEMMA3_PATTERN else "full_attention"
            for layer in range(1, num_layers + 1)
        ],
        "rope_theta": _shortest(file.hyperparameter("rope.freq_base", 1e6)),
        "rope_local_base_freq": _shortest(file.hyperparameter("rope.freq_base_swa", 10000.0)),
    }


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise file.error("tensor token_embd.weight is missing or not a matrix")
    return embedding.shape[0]


def _head_dim(file: GgufFile, hidden_size: int, num_heads: int) -> int:
    if num_heads <= 0:
        raise file.error(f"metadata {file.architecture}.attention.head_count must be positive")
    head_dim: int = file.hyperparameter("attention.key_length", hidden_size // num_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        other = file.hyperparameter(key, head_dim)
        if other != head_dim:
            raise file.error(
                f"metadata {file.architecture}.{key} is {other} but heads are {head_dim} wide; "
                "only equal widths are supported"
            )
    return head_dim


def _rope_scaling(file: GgufFile) -> dict[str, Any] | None:
    divisors = file.tensors.get("rope_freqs.weight")
    if divisors is not None:
        return _llama3_scaling(file, np.concatenate(list(divisors.rows())).astype(np.float64))
    # Before rope.scaling.* there was one key for the linear factor.
    legacy_factor = file.hyperparameter("rope.scale_linear", 0.0)
    kind = file.hyperparameter("rope.scaling.type", "linear" if legacy_factor else "none")
    factor = _shortest(file.hyperparameter("rope.scaling.factor", legacy_factor))
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn_scaling(file, factor)
    raise file.error(
        f"metadata {file.architecture}.rope.scaling.type is {kind!r}; "
        "supported: none, linear, yarn, and the Llama 3 scaling as the tensor rope_freqs.weight"
    )


def _yarn_scaling(file: GgufFile, factor: float) -> dict[str, Any]:
    original = file.require_hyperparameter("rope.scaling.original_context_length", int)
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    for key in ("beta_fast", "beta_slow"):
        value = file.hyperparameter(f"rope.scaling.yarn_{key}", kind=float)
        if value is not None:
            scaling[key] = _shortest(value)
    # In a GGUF file the attention factor multiplies the one derived from `factor`; in config.json
    # it replaces the derived one.
    attention_factor = float(file.hyperparameter("rope.scaling.attn_factor", 1.0))
    if attention_factor != 1.0:
        scaling["attention_factor"] = attention_factor * (0.1 * math.log(factor) + 1.0)
    return scaling


def _llama3_scaling(file: GgufFile, divisors: npt.NDArray[np.float64]) -> dict[str, Any] | None:
    if np.all(divisors == 1.0):
        return None
    factor = float(divisors.max())
    theta = float(file.hyperparameter("rope.freq_base", 10000.0))
    expected = llama3_divisors(factor, theta, divisors.size)
    if not np.allclose(divisors, expected, rtol=1e-4, atol=0.0):
        raise file.error(
            "tensor rope_freqs.weight is not the Llama 3 scaling (low_freq_factor "
            f"{_LLAMA3_LOW_FREQ_FACTOR}, high_freq_factor {_LLAMA3_HIGH_FREQ_FACTOR}, original "
            f"context {_LLAMA3_ORIGINAL_CONTEXT}), the only one supported"
        )
    return {
        "rope_type": "llama3",
        "factor": _shortest(factor),
        "low_freq_factor": _LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": _LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_CONTEXT,
    }


def llama3_divisors(factor: float, theta: float, num_frequencies: int) -> npt.NDArray[np.float64]:
    """What Llama 3.1's rule divides each rotary frequency by. [num_frequencies]

    Wavelengths under original/high keep their frequency, those over original/low are slowed by
    `factor`, and between the two the frequency is interpolated.
    """
    frequencies = theta ** (-np.arange(num_frequencies) / num_frequencies)
    turns_in_original_context = _LLAMA3_ORIGINAL_CONTEXT * frequencies / (2.0 * math.pi)
    kept = (turns_in_original_context - _LLAMA3_LOW_FREQ_FACTOR) / (
        _LLAMA3_HIGH_FREQ_FACTOR - _LLAMA3_LOW_FREQ_FACTOR
    )
    kept = np.clip(kept, 0.0, 1.0)
    divisors: npt.NDArray[np.float64] = 1.0 / (kept + (1.0 - kept) / factor)
    return divisors


def _special_token_ids(file: GgufFile) -> dict[str, Any]:
    """bos, pad, and every id that ends an answer: end of sequence, of turn, of message."""
    ids: dict[str, Any] = {}
    for name, key in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        value = file.get(f"tokenizer.ggml.{key}_token_id", kind=int)
        if value is not None:
            ids[name] = int(value)
    ends = [file.get(f"tokenizer.ggml.{key}_token_id", kind=int) for key in ("eos", "eot", "eom")]
    unique = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if unique:
        ids["eos_token_id"] = unique[0] if len(unique) == 1 else unique
    return ids


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
