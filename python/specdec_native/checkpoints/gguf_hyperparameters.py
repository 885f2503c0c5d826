"""Hyperparameters that most architectures of GGUF have, as config.json has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from specdec_native.checkpoints.gguf_file import GgufFile
from specdec_native.checkpoints.gguf_rope import rope_theta, rotary_scaling, shortest


def sizes(file: GgufFile, *, has_mlps: bool = True) -> dict[str, Any]:
    """What every network has. has_mlps: whether some layer has an MLP that is no expert."""
    inner_size = file.hyperparameter("feed_forward_length", kind=int)
    if inner_size is None and has_mlps:
        raise file.error(f"metadata {file.architecture}.feed_forward_length is missing")
    return ({} if inner_size is None else {"intermediate_size": inner_size}) | {
        "vocab_size": vocab_size(file),
        "hidden_size": file.require_hyperparameter("embedding_length", int),
        "num_hidden_layers": file.require_hyperparameter("block_count", int),
        "num_attention_heads": num_heads(file),
        "max_position_embeddings": file.require_hyperparameter("context_length", int),
    }


def rotary_network(
    file: GgufFile,
    *,
    rotates_part: bool = False,
    layer_norm_key: str | None = None,
    num_kv_heads: int | None = None,
    has_mlps: bool = True,
) -> dict[str, Any]:
    """Networks with RMS norms, gated MLPs and rotary positions: Llama's, and those like it.

    rotates_part: whether `rope.dimension_count` may be smaller than a head.
    layer_norm_key: norms are layer norms, and this is what config.json calls their epsilon.
    num_kv_heads: of layers that have any, where others have none.
    has_mlps: whether some layer has an MLP that is no expert.
    """
    width = head_dim(file)
    if not rotates_part:
        refuse_other_width(file, "rope.dimension_count", width)
    heads = num_heads(file)
    epsilon = (
        "attention.layer_norm_epsilon" if layer_norm_key else "attention.layer_norm_rms_epsilon"
    )
    if num_kv_heads is None:
        num_kv_heads = file.hyperparameter("attention.head_count_kv", heads)
    return (
        sizes(file, has_mlps=has_mlps)
        | ({"partial_rotary_factor": rotary_part(file)} if rotates_part else {})
        | {
            "num_key_value_heads": num_kv_heads,
            "head_dim": width,
            layer_norm_key or "rms_norm_eps": shortest(file.require_hyperparameter(epsilon, float)),
            "rope_theta": rope_theta(file),
            "rope_scaling": rotary_scaling(file),
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "use_cache": True,
        }
    )


def num_heads(file: GgufFile) -> int:
    """The number of heads of queries."""
    heads: int = file.require_hyperparameter("attention.head_count", int)
    if heads <= 0:
        raise file.error(f"metadata {file.architecture}.attention.head_count must be positive")
    return heads


def head_dim(file: GgufFile) -> int:
    """The width of a head, of keys and values alike."""
    hidden_size = file.require_hyperparameter("embedding_length", int)
    width: int = file.hyperparameter("attention.key_length", hidden_size // num_heads(file))
    refuse_other_width(file, "attention.value_length", width)
    return width


def refuse_other_width(file: GgufFile, key: str, width: int) -> None:
    """Raises CheckpointError if the metadata `key` is there and is not `width`."""
    other = file.hyperparameter(key, width)
    if other != width:
        raise file.error(
            f"metadata {file.architecture}.{key} is {other} but heads are {width} wide; "
            "only equal widths are supported"
        )


def rotary_part(file: GgufFile) -> float:
    """The part of a head that is rotated."""
    width = head_dim(file)
    rotated = file.hyperparameter("rope.dimension_count", width)
    if not 0 < rotated <= width:
        raise file.error(
            f"metadata {file.architecture}.rope.dimension_count is {rotated}, but heads are "
            f"{width} wide"
        )
    return float(rotated / width)


def expert_counts(file: GgufFile, count_key: str) -> dict[str, Any]:
    """The experts of a layer, which config.json counts as `count_key`, and those of a token."""
    return {
        count_key: file.require_hyperparameter("expert_count", int),
        "num_experts_per_tok": file.require_hyperparameter("expert_used_count", int),
    }


def later_layers(file: GgufFile) -> int:
    """How many layers behind the last predict later tokens; `block_count` counts them."""
    num_stored: int = file.require_hyperparameter("block_count", int)
    count: int = file.hyperparameter("nextn_predict_layers", 0)
    if not 0 <= count < num_stored:
        raise file.error(
            f"metadata {file.architecture}.nextn_predict_layers is {count}, but the file has "
            f"{num_stored} layers in all"
        )
    return count


def require_value(file: GgufFile, key: str, known: tuple[int, ...]) -> None:
    """Raises CheckpointError unless the metadata `key` is one of these, or absent."""
    value = file.hyperparameter(key, known[0])
    if value not in known:
        raise file.error(
            f"metadata {file.architecture}.{key} is {value}; known is only "
            + " or ".join(str(other) for other in known)
        )


def window(file: GgufFile) -> int | None:
    """The sliding window of attention, None without one."""
    return file.hyperparameter("attention.sliding_window", 0) or None


def has_bias(file: GgufFile, part: str) -> bool:
    """Whether the matrices `part` of layers have biases."""
    return f"blk.0.{part}.bias" in file.tensors


def has_bias_anywhere(file: GgufFile, part: str) -> bool:
    """Whether the matrices `part` have biases, in whatever layers have such matrices."""
    return any(name.endswith(f".{part}.bias") for name in file.tensors)


def named(stem: str, model_type: str) -> dict[str, Any]:
    """What config.json calls a network."""
    return {"architectures": [f"{stem}ForCausalLM"], "model_type": model_type}


def network(
    stem: str,
    model_type: str,
    biases: Mapping[str, str],
    *,
    layer_norm_key: str | None = None,
    rotates_part: bool = False,
    experts_key: str | None = None,
    **constants: Any,
) -> Callable[[GgufFile], dict[str, Any]]:
    """config.json of a network all of whose metadata are those that most have.

    biases: keys of config.json that say whether matrices have biases, and the matrices in the file
        that show it.
    experts_key: how many experts a layer has; None: none.
    constants: what is the same in all models.
    """

    def config(file: GgufFile) -> dict[str, Any]:
        return (
            rotary_network(file, layer_norm_key=layer_norm_key, rotates_part=rotates_part)
            | named(stem, model_type)
            | (expert_counts(file, experts_key) if experts_key else {})
            | {key: has_bias(file, matrix) for key, matrix in biases.items()}
            | constants
        )

    return config


def layer_types(num_layers: int, pattern: int) -> list[str]:
    """layer_types where all layers but each `pattern`-th have a window."""
    return [
        "sliding_attention" if layer % pattern else "full_attention"
        for layer in range(1, num_layers + 1)
    ]


def vocab_size(file: GgufFile) -> int:
    """The number of rows of the embedding."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise file.error("tensor token_embd.weight is missing or not a matrix")
    return embedding.shape[0]
