"""What a pass of a model reads and computes, from config.json alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from specdec_native.checkpoints.draft_config import DraftConfig
from specdec_native.checkpoints.errors import CheckpointError

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# Of a weight of a layer and of the output head; int4 holds the head in 8 bits.
_QUANTIZED = {
    "int8": (1.0, 1.0),
    "int4": (0.5 + 2 / 32, 1.0 + 2 / 32),
    "fp8": (1.0, 2.0),
}
_PLAIN_MLP = ("gpt_neox", "opt")  # families with two matrices in an MLP; others have three


class PassShape(Protocol):
    """Bytes and floating-point operations of a pass over `num_rows` rows of `batch` requests, each
    of which reads the keys and values of `context` tokens."""

    def pass_bytes(self, num_rows: float, batch: int, context: int) -> float:
        """Bytes of weights and KV cache; activations stay in caches."""

    def pass_flops(self, num_rows: float, context: int) -> float:
        """A multiplication and an addition are two."""


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """A transformer's sizes.

    Attributes:
        num_layers, num_heads, num_kv_heads, head_dim: of attention.
        layer_weights: elements of a layer's matrices that every row is multiplied by.
        head_weights: elements of the output head.
        weight_bytes: of an element of a layer's matrices.
        head_bytes: of an element of the output head.
        kv_bytes: of an element of the KV cache.
        num_experts, experts_per_token: of a layer with experts; 0 without.
        expert_weights: elements of an expert's matrices.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layer_weights: float
    head_weights: float
    weight_bytes: float
    head_bytes: float
    kv_bytes: float
    num_experts: int = 0
    experts_per_token: int = 0
    expert_weights: float = 0.0

    def pass_bytes(self, num_rows: float, batch: int, context: int) -> float:
        """Weights once, of experts those that some row needs if rows choose at random; the keys
        and values of each request once, and those of new rows."""
        experts = 0.0
        if self.num_experts:
            spared = (1 - self.experts_per_token / self.num_experts) ** num_rows
            experts = self.num_experts * (1 - spared) * self.expert_weights
        layers = self.num_layers * (self.layer_weights + experts) * self.weight_bytes
        token = 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.kv_bytes
        return layers + self.head_weights * self.head_bytes + token * (batch * context + num_rows)

    def pass_flops(self, num_rows: float, context: int, num_scored: float | None = None) -> float:
        """Products with weights, and those of attention. Only `num_scored` rows run the output
        head, all if left out: of a prompt, the last."""
        weights = self.layer_weights + self.experts_per_token * self.expert_weights
        attention = 4 * self.num_layers * self.num_heads * self.head_dim * context
        scored = num_rows if num_scored is None else num_scored
        return num_rows * (2 * self.num_layers * weights + attention) + (
            2 * scored * self.head_weights
        )


def model_shape(
    config: Mapping[str, Any],
    *,
    dtype: str = "auto",
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
) -> ModelShape:
    """The sizes that config.json states. Raises CheckpointError that names a missing key."""
    hidden = _count(config, "hidden_size")
    heads = _count(config, "num_attention_heads")
    layers = _count(config, "num_hidden_layers")
    kv_heads = _optional(config, "num_key_value_heads") or heads
    head_dim = _optional(config, "head_dim") or hidden // heads
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    experts = _optional(config, "num_local_experts") or _optional(config, "num_experts") or 0
    element = _bytes_of_dtype(config, dtype)
    weight, head = _QUANTIZED.get(quantization, (element, element))
    shape = ModelShape(
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layer_weights=attention,
        head_weights=hidden * _count(config, "vocab_size"),
        weight_bytes=weight,
        head_bytes=head,
        kv_bytes=1.0 + 4 / head_dim if kv_cache_dtype == "int8" else element,
    )
    if experts:
        inner = _optional(config, "moe_intermediate_size") or _count(config, "intermediate_size")
        return dataclasses.replace(
            shape,
            layer_weights=attention + hidden * experts,
            num_experts=experts,
            experts_per_token=_count(config, "num_experts_per_tok"),
            expert_weights=3 * hidden * inner,
        )
    inner = _optional(config, "ffn_dim") or _count(config, "intermediate_size")
    matrices = 2 if config.get("model_type") in _PLAIN_MLP else 3
    return dataclasses.replace(shape, layer_weights=attention + matrices * hidden * inner)


def head_shape(
    config: DraftConfig, method: str, target: Mapping[str, Any], *, quantization: str = "int8"
) -> ModelShape:
    """A draft head's pass for one level; of Medusa's, for all levels.

    EAGLE's heads are a layer or more behind a matrix that takes in the target's states. A head
    without an output matrix of its own reads the target's.
    """
    values = {**target, **config.layers, **config.values}
    hidden = _count(values, "hidden_size")
    vocab = next(
        (
            n
            for n in (
                _optional(config.values, key)
                for key in ("draft_vocab_size", "truncated_vocab_size")
            )
            if n
        ),
        _count(values, "vocab_size"),
    )
    scored = {"vocab_size": vocab}
    if method in ("eagle", "eagle3"):
        layer = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": hidden}
        shape = model_shape({**layer, **values, **scored}, quantization=quantization)
        inputs = 3 if method == "eagle3" else 2
        attention = shape.head_dim * (shape.num_heads + 2 * shape.num_kv_heads)
        extra = inputs * hidden * hidden + (hidden * attention if method == "eagle3" else 0)
        per_layer = extra / shape.num_layers
        return dataclasses.replace(shape, layer_weights=shape.layer_weights + per_layer)
    element, _ = _QUANTIZED.get(quantization, (2.0, 2.0))
    if method == "medusa":
        levels = _optional(values, "medusa_num_heads") or _count(values, "num_heads")
        blocks = levels * (_optional(values, "medusa_num_layers") or 1) * hidden * hidden
        return _without_attention(blocks, levels * hidden * vocab, element)
    inner = _optional(values, "inner_dim") or hidden
    return _without_attention(hidden * inner, inner * vocab, element)


def _without_attention(weights: float, head: float, element: float) -> ModelShape:
    return ModelShape(1, 0, 0, 0, weights, head, element, element, element)


def _bytes_of_dtype(config: Mapping[str, Any], dtype: str) -> float:
    name = dtype if dtype != "auto" else config.get("dtype") or config.get("torch_dtype")
    return _BYTES.get(str(name), 2.0)


def _count(config: Mapping[str, Any], key: str) -> int:
    value = _optional(config, key)
    if not value:
        raise CheckpointError(f"config.json has no {key}, without which no cost can be computed")
    return value


def _optional(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
