"""Decoder layers: attention whose rows may continue from their own output (EAGLE's training-time
test), and its parts, which other heads put together in their own way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.errors import TrainingError


@dataclasses.dataclass(frozen=True)
class LayerShape:
    """Sizes of a Llama layer, and what a layer of other families has beside.

    Attributes:
        hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim: as in config.json.
        rms_norm_eps: epsilon of the norms.
        rope_theta: the base of the rotation.
        rotary_dim: the first elements of each head that are rotated; 0: all.
        has_qkv_bias: whether queries, keys and values have biases (Qwen2).
        has_qk_norm: whether each head's query and key are normalised (Qwen3).
        has_output_gate: whether a second half of q_proj, beside each head's query, gates the head's
            output (Qwen3-Next).
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int = 0
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_output_gate: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LayerShape:
        """The target's layer shape. Raises TrainingError where its layers have no such shape."""
        if not isinstance(config.get("intermediate_size"), int):
            raise TrainingError(
                "intermediate_size: the target's config.json has none, and the layers of an EAGLE "
                "head need its size; give --method medusa or mlp_speculator"
            )
        rope = config.get("rope_parameters") or {}
        hidden_size, num_heads = config["hidden_size"], config["num_attention_heads"]
        return cls(
            hidden_size=hidden_size,
            intermediate_size=config["intermediate_size"],
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or hidden_size // num_heads,
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        )


class StepCache:
    """Keys and values of one layer: for all rows of the text, and for some rows in later steps."""

    def __init__(self) -> None:
        self._text: tuple[Tensor, Tensor] | None = None  # [examples, kv heads, text rows, head dim]
        self._later: list[tuple[Tensor, Tensor]] = []  # [examples, kv heads, rows, head dim]

    @property
    def is_empty(self) -> bool:
        """Whether step 0 is still to come."""
        return self._text is None

    @property
    def text(self) -> tuple[Tensor, Tensor]:
        """Keys and values of step 0."""
        assert self._text is not None
        return self._text

    @property
    def later(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the steps after step 0, for the remaining rows."""
        return self._later

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Adds a step."""
        if self._text is None:
            self._text = keys, values
        else:
            self._later.append((keys, values))

    def keep(self, rows: Tensor) -> None:
        """Keeps only `rows`, int64 [examples, rows], of the later steps."""
        self._later = [(_take(k, rows), _take(v, rows)) for k, v in self._later]


class Projections(nn.Module):
    """The matrices of attention: queries, keys, values and the output."""

    def __init__(self, shape: LayerShape, input_size: int) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        q_width = 2 * width if shape.has_output_gate else width
        self.q_proj = nn.Linear(input_size, q_width, bias=shape.has_qkv_bias)
        self.k_proj = nn.Linear(input_size, kv_width, bias=shape.has_qkv_bias)
        self.v_proj = nn.Linear(input_size, kv_width, bias=shape.has_qkv_bias)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=False)
        if shape.has_qk_norm:
            self.q_norm = nn.RMSNorm(shape.head_dim, shape.rms_norm_eps)
            self.k_norm = nn.RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Queries and, if any, the logits of the output's gates: [examples, heads, rows, head dim].

        Args:
            x: [examples, rows, input size].
            positions: int64 [examples, rows], or [1, rows] for all examples.
        """
        q, gates = self._heads(self.q_proj(x)), None
        if self.shape.has_output_gate:
            q, gates = q[:, 0::2], q[:, 1::2]
        if self.shape.has_qk_norm:
            q = self.q_norm(q)
        return self._rotate(q, positions), gates

    def keys_and_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Both [examples, kv heads, rows, head dim], for arguments like those of queries()."""
        k = self._heads(self.k_proj(x))
        if self.shape.has_qk_norm:
            k = self.k_norm(k)
        return self._rotate(k, positions), self._heads(self.v_proj(x))

    def output(self, attended: Tensor, gates: Tensor | None) -> Tensor:
        """[examples, rows, hidden size] from what the heads read, in the shape of queries."""
        if gates is not None:
            attended = attended * gates.sigmoid()
        return self.o_proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.shape.head_dim).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, positions, self.shape.rope_theta, self.shape.rotary_dim)


class Attention(Projections):
    """Attention of a row to the text's rows before it and to itself at earlier steps.

    Row r of step s attends to rows 0 to r of the text, and to row r of steps 1 to s.
    """

    def forward(self, x: Tensor, rows: Tensor, step: int, cache: StepCache) -> Tensor:
        """The output of `rows`, [examples, rows, hidden size]; adds a step to the cache.

        Args:
            x: [examples, text rows, input size] in step 0, later [examples, rows, input size].
            rows: int64 [examples, rows], rising; the same in all steps, except after cache.keep().
            step: row r has position r + 1 + step.
            cache: the steps before.
        """
        is_text = cache.is_empty
        of_keys = torch.arange(x.shape[1], device=x.device)[None] if is_text else rows
        cache.append(*self.keys_and_values(x, of_keys + (1 + step)))
        read = x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1])) if is_text else x
        q, gates = self.queries(read, rows + (1 + step))
        return self.output(self._attend(q, rows, cache), gates)

    def _attend(self, q: Tensor, rows: Tensor, cache: StepCache) -> Tensor:
        text_k, text_v = cache.text
        text_rows = torch.arange(text_k.shape[2], device=q.device)
        visible = text_rows <= rows[:, None, :, None]
        if not cache.later:
            is_gqa = self.shape.num_kv_heads != self.shape.num_heads
            return F.scaled_dot_product_attention(
                q, text_k, text_v, attn_mask=visible, enable_gqa=is_gqa
            )
        q = q.view(len(q), self.shape.num_kv_heads, -1, *q.shape[2:]) * self.shape.head_dim**-0.5
        scores = q @ text_k.unsqueeze(2).transpose(-1, -2)
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
        own = torch.stack([(q * k.unsqueeze(2)).sum(-1) for k, _ in cache.later], -1)
        weights = torch.cat([scores, own], -1).softmax(-1)
        num_text = len(text_rows)
        out = weights[..., :num_text] @ text_v.unsqueeze(2)
        for i, (_, v) in enumerate(cache.later, start=num_text):
            out = out + weights[..., i : i + 1] * v.unsqueeze(2)
        return out.flatten(1, 2)


class Mlp(nn.Module):
    """Llama's gated MLP."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden size] to the same."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """A Llama layer whose attention may also read the embedding of the row's token.

    Its attention reads, by `kind`:
        "plain": the normalised state.
        "joined": the normalised embedding and the normalised state side by side.
        "raw": the state as it is.
    """

    def __init__(self, shape: LayerShape, kind: str = "plain") -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.kind = kind
        if kind != "raw":
            self.input_layernorm = nn.RMSNorm(size, eps)
        if kind == "joined":
            self.hidden_norm = nn.RMSNorm(size, eps)
        self.self_attn = Attention(shape, 2 * size if kind == "joined" else size)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.mlp = Mlp(shape)

    def forward(
        self, state: Tensor, embedded: Tensor, rows: Tensor, step: int, cache: StepCache
    ) -> Tensor:
        """The states [examples, rows, hidden size] of `rows` after the layer; see Attention.

        Args:
            state: states of all text rows in step 0, later of `rows`.
            embedded: embeddings of the same shape; only a "joined" layer reads them.
            rows, step, cache: see Attention.
        """
        if self.kind == "joined":
            x = torch.cat([self.input_layernorm(embedded), self.hidden_norm(state)], -1)
        else:
            x = state if self.kind == "raw" else self.input_layernorm(state)
        if cache.is_empty:
            state = state.gather(1, rows[..., None].expand(-1, -1, state.shape[-1]))
        state = state + self.self_attn(x, rows, step, cache)
        out: Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return out


def rotate(x: Tensor, positions: Tensor, theta: float, rotary_dim: int = 0) -> Tensor:
    """Rotary embedding of x [examples, heads, rows, head dim].

    `positions` are [examples, rows], or [1, rows] for all examples. `rotary_dim` is the number of
    elements that are rotated; 0: all. Angles are float32.
    """
    rotary_dim = rotary_dim or x.shape[-1]
    half = rotary_dim // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[:, None, :, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:rotary_dim]
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
    return torch.cat([rotated, x[..., rotary_dim:]], -1) if rotary_dim < x.shape[-1] else rotated


def _take(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows of each example of x [examples, heads, rows, head dim]."""
    return x.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
