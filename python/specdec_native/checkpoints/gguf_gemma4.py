"""config.json of Gemma 4 in GGUF files, whose layers differ from each other."""

from __future__ import annotations

from typing import Any

from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_hyperparameters import (
    has_bias,
    named,
    num_heads,
    refuse_other_width,
    vocab_size,
)
from specdec_native.checkpoints.gguf_rope import rope_theta, shortest

# What files divide the frequencies of planes by that do not turn; converters write 1e30.
_UNTURNED = 1e20


def gemma4(file: GgufFile) -> dict[str, Any]:
    """The text of Gemma 4, with and without experts or embeddings of layers."""
    num_layers: int = file.require_hyperparameter("block_count", int)
    is_sliding: list[bool] = file.of_layers(
        "attention.sliding_window_pattern", num_layers, bool, must_be_list=True
    )
    if not is_sliding or is_sliding[-1]:
        raise file.error(
            f"metadata {file.architecture}.attention.sliding_window_pattern gives the last layer a "
            "window; the last layer of a Gemma 4 is of full attention"
        )
    num_shared = file.hyperparameter("attention.shared_kv_layers", 0)
    if not 0 <= num_shared < num_layers:
        raise file.error(
            f"metadata {file.architecture}.attention.shared_kv_layers is {num_shared}, but the "
            f"file has {num_layers} layers"
        )
    file.hyperparameter("attention.scale", 1.0)  # it is 1, whatever a file says
    cap = file.hyperparameter("final_logit_softcapping", 0.0)
    return {
        **named("Gemma4", "gemma4_text"),
        "vocab_size": vocab_size(file),
        "hidden_size": file.require_hyperparameter("embedding_length", int),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads(file),
        "max_position_embeddings": file.require_hyperparameter("context_length", int),
        "rms_norm_eps": shortest(
            file.require_hyperparameter("attention.layer_norm_rms_epsilon", float)
        ),
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": has_bias(file, "attn_q"),
        "attention_dropout": 0.0,
        "use_cache": True,
        "final_logit_softcapping": shortest(cap) if cap else None,
        "sliding_window": file.require_hyperparameter("attention.sliding_window", int),
        "layer_types": [
            "sliding_attention" if sliding else "full_attention" for sliding in is_sliding
        ],
        "num_kv_shared_layers": num_shared,
        "attention_k_eq_v": _values_are_keys(file, is_sliding[: num_layers - num_shared]),
        **_heads(file, is_sliding),
        **_inner_sizes(file, num_layers, num_shared),
        **_layer_embeddings(file, num_layers),
        **_experts(file),
    }


def _values_are_keys(file: GgufFile, is_sliding: list[bool]) -> bool:
    """Whether layers of full attention have no matrices of values. is_sliding: of all layers that
    have keys and values of their own."""
    without = [i for i in range(len(is_sliding)) if f"blk.{i}.attn_v.weight" not in file.tensors]
    if without and without != [i for i, sliding in enumerate(is_sliding) if not sliding]:
        raise file.error(
            f"tensor blk.{without[0]}.attn_v.weight is missing, and not just in all layers of "
            "full attention, where it may be"
        )
    return bool(without)


def _heads(file: GgufFile, is_sliding: list[bool]) -> dict[str, Any]:
    """Heads and rotary positions, of layers with and without a window."""
    num_kv_heads = file.of_layers("attention.head_count_kv", len(is_sliding), int)
    usual = num_kv_heads[is_sliding.index(True) if True in is_sliding else 0]
    full_width: int = file.require_hyperparameter("attention.key_length", int)
    width: int = file.require_hyperparameter("attention.key_length_swa", int)
    for key in ("attention.value_length", "rope.dimension_count"):
        refuse_other_width(file, key, full_width)
        refuse_other_width(file, f"{key}_swa", width)
    layers: dict[str, dict[str, int]] = {}
    for i, (sliding, count) in enumerate(zip(is_sliding, num_kv_heads, strict=True)):
        own = ({} if sliding else {"head_dim": full_width}) | (
            {"num_key_value_heads": count} if count != usual else {}
        )
        if own:
            layers[str(i)] = own
    return {
        "num_key_value_heads": usual,
        "head_dim": width,
        "per_layer_config": layers,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": _turned_part(file, full_width),
                "rope_theta": rope_theta(file),
            },
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": shortest(
                    file.hyperparameter("rope.freq_base_swa", rope_theta(file), float)
                ),
            },
        },
    }


def _turned_part(file: GgufFile, width: int) -> float:
    """The part of a head's planes that turn in layers of full attention: those ahead."""
    divisors = file.vector("rope_freqs.weight")
    if divisors is None:
        raise file.error("tensor rope_freqs.weight is missing, which says what part is rotated")
    if divisors.size != width // 2:
        raise file.error(
            f"tensor rope_freqs.weight has {divisors.size} values, expected {width // 2}, half of "
            "a head"
        )
    num_turned = int((divisors == 1.0).sum())
    if not (divisors[:num_turned] == 1.0).all() or not (divisors[num_turned:] > _UNTURNED).all():
        raise file.error(
            "tensor rope_freqs.weight is not ones and then values that stop a plane, such as "
            "1e30, which is all that is known of Gemma 4"
        )
    return 2 * num_turned / width


def _inner_sizes(file: GgufFile, num_layers: int, num_shared: int) -> dict[str, Any]:
    """The sizes of the MLPs: those of layers without own keys and values may be twice as wide."""
    sizes: list[int] = file.of_layers("feed_forward_length", num_layers, int)
    first = sizes[0]
    num_own = num_layers - num_shared
    doubles = sizes[-1] == 2 * first and num_shared > 0
    expected = [first] * num_own + [2 * first if doubles else first] * num_shared
    if sizes != expected:
        raise file.error(
            f"metadata {file.architecture}.feed_forward_length differs between layers; known is "
            f"only twice the first in the last attention.shared_kv_layers, which is {num_shared}"
        )
    return {"intermediate_size": first, "use_double_wide_mlp": doubles}


def _layer_embeddings(file: GgufFile, num_layers: int) -> dict[str, Any]:
    width: int = file.hyperparameter("embedding_length_per_layer_input", 0)
    sizes = {"hidden_size_per_layer_input": width}
    if not width:
        return sizes
    table = file.tensors.get("per_layer_token_embd.weight")
    if table is None or len(table.shape) != 2 or table.shape[1] != num_layers * width:
        raise file.error(
            "tensor per_layer_token_embd.weight is missing or not a matrix of "
            f"{num_layers} x {width} columns"
        )
    return sizes | {"vocab_size_per_layer_input": table.shape[0]}


def _experts(file: GgufFile) -> dict[str, Any]:
    count = file.hyperparameter("expert_count", 0)
    if not count:
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "num_experts": count,
        "top_k_experts": file.require_hyperparameter("expert_used_count", int),
        "moe_intermediate_size": file.require_hyperparameter("expert_feed_forward_length", int),
    }
