"""Layers of transformers that keep a state, as llama.cpp's converter writes them."""

from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedConfig

Array = npt.NDArray[np.float32]

RECURRENT = ("linear_attention", "mamba", "conv")


def is_recurrent(config: PreTrainedConfig) -> list[bool]:
    return [kind in RECURRENT for kind in getattr(config, "layer_types", None) or []]


def recurrent_parts(part: str, values: Array, config: PreTrainedConfig) -> dict[str, Array]:
    """The tensors in a file that one of a layer's is; none where its name says it."""
    block, _, name = part.partition(".")
    if part == "conv.conv.weight":
        return {"shortconv.conv.weight": values.squeeze(1)}
    if block == "mamba":
        return _mamba_parts(name, values, config)
    if block != "linear_attn":
        return {}
    if config.model_type == "qwen3_next":
        return _next_parts(name, values, config)
    return _delta_parts(name, _tiled(name, values, config))


def _mamba_parts(name: str, values: Array, config: PreTrainedConfig) -> dict[str, Array]:
    if name == "A_log":
        return {"ssm_a": _rates(values)[:, np.newaxis]}
    if name == "D":
        return {"ssm_d": values[:, np.newaxis]}
    if name == "norm.weight":
        return {"ssm_norm.weight": values.reshape(config.mamba_n_groups, -1)}
    renamed = {"dt_bias": "ssm_dt.bias", "conv1d.weight": "ssm_conv1d.weight"}
    return {renamed[name]: values.squeeze()} if name in renamed else {}


def _rates(logarithms: Array) -> Array:
    rates: Array = (-np.exp(logarithms.astype(np.float64))).astype(np.float32)
    return rates


def _delta_parts(name: str, values: Array) -> dict[str, Array]:
    if name == "A_log":
        return {"ssm_a": _rates(values)}
    renamed = {
        "in_proj_qkv.weight": "attn_qkv.weight", "in_proj_z.weight": "attn_gate.weight",
        "in_proj_b.weight": "ssm_beta.weight", "in_proj_a.weight": "ssm_alpha.weight",
        "in_proj_ba.weight": "ssm_ba.weight", "in_proj_qkvz.weight": "ssm_in.weight",
        "conv1d.weight": "ssm_conv1d.weight", "dt_bias": "ssm_dt.bias",
        "norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight",
    }  # fmt: skip
    return {renamed[name]: values.squeeze()}


def _next_parts(name: str, values: Array, config: PreTrainedConfig) -> dict[str, Array]:
    if name != "in_proj_qkvz.weight":
        return _delta_parts(name, values)
    num_keys, per_key = config.linear_num_key_heads, _values_per_key(config)
    size, width = config.linear_key_head_dim, per_key * config.linear_value_head_dim
    parts: dict[str, list[Array]] = {"q": [], "k": [], "v": [], "z": []}
    for head in np.split(values, num_keys):
        for kind, rows in zip(
            parts, np.split(head, [size, 2 * size, 2 * size + width]), strict=True
        ):
            parts[kind].append(rows)
    return {
        "attn_qkv.weight": np.concatenate(parts["q"] + parts["k"] + parts["v"]),
        "attn_gate.weight": np.concatenate(parts["z"]),
    }


def _values_per_key(config: PreTrainedConfig) -> int:
    return int(config.linear_num_value_heads // config.linear_num_key_heads)


def _tiled(name: str, values: Array, config: PreTrainedConfig) -> Array:
    """With heads of values as Qwen3.5's files have them: the first of each key head, then the
    second of each, and so on."""
    if name == "norm.weight":
        return values
    num_keys, per_key = config.linear_num_key_heads, _values_per_key(config)
    order = [key * per_key + place for place in range(per_key) for key in range(num_keys)]
    if name == "out_proj.weight":
        heads = np.split(values, len(order), axis=1)
        return np.concatenate([heads[head] for head in order], axis=1)
    first = 2 * num_keys * config.linear_key_head_dim if "qkv" in name or "conv" in name else 0
    heads = np.split(values[first:], len(order))
    return np.concatenate([values[:first], *(heads[head] for head in order)])


def recurrent_metadata(config: PreTrainedConfig) -> dict[str, Any]:
    """What says which layers keep a state, and their sizes."""
    recurrent = is_recurrent(config)
    num_kv_heads = [0 if own else config.num_key_value_heads for own in recurrent]
    if config.model_type in ("lfm2", "lfm2_moe"):
        return {
            ".attention.head_count_kv": num_kv_heads,
            ".attention.layer_norm_rms_epsilon": float(config.norm_eps),
            ".shortconv.l_cache": config.conv_L_cache,
            ".vocab_size": config.vocab_size,
        }
    if config.model_type == "granitemoehybrid":
        return {
            ".attention.head_count_kv": num_kv_heads,
            ".rope.scaling.finetuned": config.position_embedding_type == "rope",
            ".ssm.conv_kernel": config.mamba_d_conv,
            ".ssm.state_size": config.mamba_d_state,
            ".ssm.group_count": config.mamba_n_groups,
            ".ssm.inner_size": config.mamba_expand * config.hidden_size,
            ".ssm.time_step_rank": config.mamba_n_heads,
        }
    interval = recurrent.index(False) + 1
    follows = recurrent == [(layer + 1) % interval != 0 for layer in range(len(recurrent))]
    return {
        ".full_attention_interval": interval if follows else 4,
        **({} if follows else {".attention.recurrent_layers": recurrent}),
        ".ssm.conv_kernel": config.linear_conv_kernel_dim,
        ".ssm.state_size": config.linear_key_head_dim,
        ".ssm.group_count": config.linear_num_key_heads,
        ".ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        ".ssm.time_step_rank": config.linear_num_value_heads,
    }
