"""config.json of Gemma 3n and 4 in GGUF files, whose layers differ from each other."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_hyperparameters import (
    has_bias,
    head_dim,
    named,
    num_heads,
    refuse_other_width,
    vocab_size,
)
from specdec_native.checkpoints.gguf_rope import rope_theta, shortest

# What files divide the frequencies of planes by that do not turn; converters write 1e30.
_UNTURNED = 1e20
# The bases of Gemma 3n's positions where a file does not say them.
_GEMMA3N_THETA = 1e6
_GEMMA3N_SLIDING_THETA = 1e4
# The rows of Gemma 3n's embedding, and of its table of layers, which converters pad with zeros.
_GEMMA3N_ROWS = 262400
_GEMMA3N_TABLE_ROWS = 262144


def gemma3n(file: GgufFile) -> dict[str, Any]:
    """The text of Gemma 3n."""
    is_sliding = _windows(file)
    num_layers = len(is_sliding)
    file.require_hyperparameter("attention.shared_kv_layers", int)
    num_streams: int = file.require_hyperparameter("altup.num_inputs", int)
    for name in ("altup_proj.weight", "altup_unembd_proj.weight"):
        stack = file.tensors.get(name)
        if stack is None or len(stack.shape) != 3 or stack.shape[0] != num_streams - 1:
            raise file.error(
                f"tensor {name} is missing or not {num_streams - 1} matrices, one less than "
                f"{file.architecture}.altup.num_inputs"
            )
    low_rank = file.tensors.get("blk.0.laurel_l.weight")
    if low_rank is None or len(low_rank.shape) != 2:
        raise file.error("tensor blk.0.laurel_l.weight is missing or not a matrix")
    width = head_dim(file)
    refuse_other_width(file, "rope.dimension_count", width)
    heads = num_heads(file)
    return {
        **named("Gemma3n", "gemma3n_text"),
        **_network(file, is_sliding, absent_cap=30.0),
        "num_key_value_heads": file.hyperparameter("attention.head_count_kv", heads),
        "head_dim": width,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": rope_theta(file, _GEMMA3N_THETA),
            },
            "sliding_attention": _sliding_rope(file, _GEMMA3N_SLIDING_THETA),
        },
        "intermediate_size": file.of_layers("feed_forward_length", num_layers, int),
        "activation_sparsity_pattern": _sparse_parts(file, num_layers),
        "altup_num_inputs": num_streams,
        "altup_active_idx": file.require_hyperparameter("altup.active_idx", int),
        "altup_correct_scale": _are_outputs_scaled(file, num_layers),
        "laurel_rank": low_rank.shape[0],
        **_padded_embeddings(file, num_layers),
    }


def gemma4(file: GgufFile) -> dict[str, Any]:
    """The text of Gemma 4, with and without experts or embeddings of layers."""
    is_sliding = _windows(file)
    if is_sliding[-1]:
        raise file.error(
            f"metadata {file.architecture}.attention.sliding_window_pattern gives the last layer a "
            "window; the last layer of a Gemma 4 is of full attention"
        )
    num_layers = len(is_sliding)
    network = _network(file, is_sliding, absent_cap=0.0)
    num_shared = network["num_kv_shared_layers"]
    return {
        **named("Gemma4", "gemma4_text"),
        **network,
        "attention_k_eq_v": _values_are_keys(file, is_sliding[: num_layers - num_shared]),
        **_heads(file, is_sliding),
        **_inner_sizes(file, num_layers, num_shared),
        **_layer_embeddings(file, num_layers),
        **_experts(file),
    }


def _windows(file: GgufFile) -> list[bool]:
    """Whether each layer has a window."""
    num_layers: int = file.require_hyperparameter("block_count", int)
    if num_layers < 1:
        raise file.error(f"metadata {file.architecture}.block_count must be positive")
    return file.of_layers("attention.sliding_window_pattern", num_layers, bool, must_be_list=True)


def _network(file: GgufFile, is_sliding: list[bool], absent_cap: float) -> dict[str, Any]:
    """What Gemma 3n and 4 have alike. absent_cap: of logits, where a file says none; 0: no cap."""
    num_layers = len(is_sliding)
    num_shared = file.hyperparameter("attention.shared_kv_layers", 0)
    if not 0 <= num_shared < num_layers:
        raise file.error(
            f"metadata {file.architecture}.attention.shared_kv_layers is {num_shared}, but the "
            f"file has {num_layers} layers"
        )
    file.hyperparameter("attention.scale", 1.0)  # it is 1, whatever a file says
    cap = file.hyperparameter("final_logit_softcapping", absent_cap)
    return {
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
    }


def _sliding_rope(file: GgufFile, absent: float) -> dict[str, Any]:
    """The positions of layers with a window. absent: the base where a file does not say it."""
    base = file.hyperparameter("rope.freq_base_swa", absent, float)
    return {"rope_type": "default", "rope_theta": shortest(base)}


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
            "sliding_attention": _sliding_rope(file, rope_theta(file)),
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


def _padded_embeddings(file: GgufFile, num_layers: int) -> dict[str, Any]:
    """The embeddings of Gemma 3n's layers.

    Tokens past the table read its first row. Rows that a converter added are zeros, and are not of
    the table.
    """
    sizes = _layer_embeddings(file, num_layers)
    num_rows = sizes.get("vocab_size_per_layer_input")
    if num_rows is None:
        raise file.error(
            f"metadata {file.architecture}.embedding_length_per_layer_input is missing or 0; every "
            "Gemma 3n has embeddings of layers"
        )
    if num_rows != _GEMMA3N_ROWS:
        return sizes
    table = file.tensors["per_layer_token_embd.weight"]
    added = table.rows(np.arange(_GEMMA3N_TABLE_ROWS, num_rows))
    if any(rows.any() for rows in added):
        return sizes
    return sizes | {"vocab_size_per_layer_input": _GEMMA3N_TABLE_ROWS}


def _are_outputs_scaled(file: GgufFile, num_layers: int) -> bool:
    """Whether layers scale what their per-layer block reads."""
    names = [f"blk.{layer}.altup_correct_scale.weight" for layer in range(num_layers)]
    missing = [name for name in names if name not in file.tensors]
    if 0 < len(missing) < num_layers:
        raise file.error(f"tensor {missing[0]} is missing, and other layers have theirs")
    return not missing


def _sparse_parts(file: GgufFile, num_layers: int) -> list[float]:
    """The part of each layer's gates that becomes 0. A file has how many deviations above their
    mean a gate must be, and minus infinity for layers that keep all."""
    deviations = file.of_layers(
        "activation_sparsity_scale", num_layers, float, may_be_infinite=True
    )
    return [0.0 if value == -math.inf else _part_below(file, value) for value in deviations]


def _part_below(file: GgufFile, deviations: float) -> float:
    """The shortest probability whose normal quantile is `deviations` in float32."""
    probability = math.erfc(-deviations / math.sqrt(2)) / 2
    for num_digits in range(1, 18):
        shorter = float(f"{probability:.{num_digits}g}")
        if not 0 < shorter < 1:
            continue
        if np.float32(NormalDist().inv_cdf(shorter)) == np.float32(deviations):
            return shorter
    raise file.error(
        f"metadata {file.architecture}.activation_sparsity_scale has {deviations}, which is so far "
        "from 0 that no probability gives it"
    )


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
