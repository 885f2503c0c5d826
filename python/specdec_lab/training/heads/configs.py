"""Makes config.json of heads, in the spellings that readers know."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdec_lab.training.heads.layers import LayerShape
from specdec_lab.training.target import TargetWeights

TAPS = "eagle_aux_hidden_state_layer_ids"
"""The config.json key for the layers whose inputs a head reads."""

_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def llama_fields(shape: LayerShape, num_layers: int, target: TargetWeights) -> dict[str, Any]:
    """A Llama config for a head's layers, with every field that readers have no default for."""
    config = target.config
    special = {key: config[key] for key in _SPECIAL_TOKENS if config.get(key) is not None}
    return {
        "model_type": "llama",
        "vocab_size": target.embedding.shape[0],
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": config.get("max_position_embeddings", 2048),
        "initializer_range": config.get("initializer_range", 0.02),
        "tie_word_embeddings": False,
        "use_cache": True,
        **special,
    }


def qwen3_fields(shape: LayerShape, num_layers: int, target: TargetWeights) -> dict[str, Any]:
    """As llama_fields(), for layers with normalised queries and keys."""
    fields = llama_fields(shape, num_layers, target)
    del fields["mlp_bias"]
    return {**fields, "model_type": "qwen3", "layer_types": ["full_attention"] * num_layers}


def speculators_fields(
    algorithm: str, num_tokens: int, target: TargetWeights, *, class_name: str
) -> dict[str, Any]:
    """The fields of speculators' config.json beside layers and flags.

    Args:
        algorithm: "eagle3", "peagle", ...
        num_tokens: number of tokens that it proposes to draft.
        target: the model it drafts for.
        class_name: the class of speculators' model.
    """
    return {
        "architectures": [class_name],
        "speculators_model_type": algorithm,
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": algorithm,
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": num_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": target.name,
                "architectures": list(target.config.get("architectures") or []),
            },
        },
    }


def vocabulary_tensors(draft_ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """The two maps of a draft vocabulary.

    "d2t" int64 [draft vocabulary] is added to an index to get the target's token id; "t2d" bool
    [vocabulary] marks the tokens in the draft vocabulary.
    """
    is_drafted = torch.zeros(vocab_size, dtype=torch.bool, device=draft_ids.device)
    is_drafted[draft_ids] = True
    offsets = draft_ids - torch.arange(len(draft_ids), device=draft_ids.device)
    return {"d2t": offsets, "t2d": is_drafted}
