"""Maps a GGUF file's hyperparameters to `config.json` as Hugging Face writes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec_native.checkpoints.gguf_families import FAMILIES, GgufFamily
from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_hyperparameters import head_dim
from specdec_native.checkpoints.gguf_tokenizer import unnamed_ends

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


def family_of(file: GgufFile) -> GgufFamily:
    """What is known of the file's architecture. Raises CheckpointError for an unknown one."""
    if file.architecture not in FAMILIES:
        raise file.error(
            f"architecture {file.architecture!r} is not supported; known: {', '.join(FAMILIES)}"
        )
    return FAMILIES[file.architecture]


def model_config(file: GgufFile, *, dtype: str, tied: bool) -> dict[str, Any]:
    """The content of config.json. `dtype`: of the weights to be written; `tied`: one embedding."""
    family = family_of(file)
    config = family.config(file) | {"tie_word_embeddings": tied, "torch_dtype": dtype}
    config |= _special_token_ids(file)
    for key in family.layer_values:  # their tensors are made as weights are
        file.layer_values(key, config["num_hidden_layers"])
    _check_unread(file, family, config)
    return config


def _check_unread(file: GgufFile, family: GgufFamily, config: dict[str, Any]) -> None:
    """Raises CheckpointError for metadata that may change what the model computes."""
    width = head_dim(file)
    scaled_by = max(config.get("query_pre_attn_scalar", width), 1)
    is_sliding = [kind == "sliding_attention" for kind in config.get("layer_types", [])]
    pattern = is_sliding.index(False) + 1 if False in is_sliding else None
    neutral = _NEUTRAL | {
        "attention.scale": (0.0, float(np.float32(scaled_by**-0.5))),
        "attention.key_length_swa": (width,),
        "attention.value_length_swa": (width,),
        "rope.dimension_count_swa": (width,),
        "rope.freq_base_swa": (file.hyperparameter("rope.freq_base", 10000.0),),
        "attention.sliding_window_pattern": (pattern, is_sliding),
        "attention.head_count_kv": (config["num_attention_heads"],),
    }
    for key, value in file.unread_hyperparameters().items():
        allowed = neutral.get(key, ())
        of_layers = value if isinstance(value, list) else [value]
        if key in WITHOUT_EFFECT or key in family.without_effect or value in allowed:
            continue
        if all(one in allowed for one in of_layers):
            continue
        known = " or ".join(str(other) for other in allowed)
        raise file.error(
            f"metadata {file.architecture}.{key} is {value!r:.80}, which may change what the model "
            f"computes and is not implemented{f'; known is only {known}' if known else ''}"
        )


def generation_config(file: GgufFile) -> dict[str, Any]:
    """The content of generation_config.json: the ids that begin, end and pad a sequence, and those
    that must not be drawn."""
    suppressed = file.get("tokenizer.ggml.suppress_tokens", kind=list[int])
    return _special_token_ids(file) | ({"suppress_tokens": suppressed} if suppressed else {})


def _special_token_ids(file: GgufFile) -> dict[str, Any]:
    """bos, pad, and every id that ends an answer: end of sequence, of turn, of message."""
    ids: dict[str, Any] = {}
    for name, key in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        value = file.get(f"tokenizer.ggml.{key}_token_id", kind=int)
        if value is not None:
            ids[name] = int(value)
    ends = [file.get(f"tokenizer.ggml.{key}_token_id", kind=int) for key in ("eos", "eot", "eom")]
    ends += unnamed_ends(file)
    unique = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if unique:
        ids["eos_token_id"] = unique[0] if len(unique) == 1 else unique
    return ids
