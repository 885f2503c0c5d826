"""What DFlash and DSpark heads share: one pass over mask rows drafts a whole span.

The papers (arXiv 2602.06036, 2607.05147) and the checkpoints call a span a block. A span begins at
an anchor, the last token that is known: its rows are the anchor and mask tokens, at the anchor's
position and those after it. Every layer's rows attend to one another, later ones included, and to
the text before the anchor, of which each layer makes keys and values from the same fused states of
the target.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.heads import configs
from specdec_lab.training.heads.base import DepthOutput, HeadFiles, TrainableHead
from specdec_lab.training.heads.eagle import front_rows, random_ranks
from specdec_lab.training.heads.eagle3 import default_taps, sizes_of
from specdec_lab.training.heads.layers import LayerShape, Mlp, Projections
from specdec_lab.training.target import TargetWeights

KeysAndValues = tuple[Tensor, Tensor]
"""Of a text, in one layer: each [examples, kv heads, tokens, head dim]."""

_DRAFTED_ANCHORS = 128  # spans of an example that are drafted at a time, to save memory


class SpanAttention(Projections):
    """Attention of a span's rows to the text before the span, and to all rows of the span."""

    def text(self, context: Tensor) -> KeysAndValues:
        """Keys and values of the text's tokens, whose fused states are `context`."""
        positions = torch.arange(context.shape[1], device=context.device)[None]
        return self.keys_and_values(context, positions)

    def forward(self, x: Tensor, text: KeysAndValues, anchors: Tensor) -> Tensor:
        """The rows' outputs, in the shape of x: [examples, anchors, rows, hidden size].

        `anchors` are the spans' first positions, int64 [examples, anchors].
        """
        num_rows, num_tokens = x.shape[2], text[0].shape[2]
        offsets = torch.arange(num_rows, device=x.device)
        positions = (anchors[..., None] + offsets).flatten(1)
        rows = x.flatten(1, 2)
        q, gates = self.queries(rows, positions)
        own_k, own_v = self.keys_and_values(rows, positions)
        # The queries that share a head of keys, as rows: [examples, kv heads, queries, head dim].
        grouped = q.reshape(*own_k.shape[:2], -1, q.shape[-1]) * self.shape.head_dim**-0.5

        def by_span(t: Tensor) -> Tensor:
            """[examples, kv heads, queries per key, anchors, rows, ...]."""
            return t.view(*own_k.shape[:2], -1, *x.shape[1:3], t.shape[-1])

        is_before = torch.arange(num_tokens, device=x.device) < anchors[..., None]
        scores = by_span(grouped @ text[0].transpose(-1, -2))
        scores = scores.masked_fill(~is_before[:, None, None, :, None], float("-inf"))
        own_scores = by_span(grouped) @ by_span(own_k).transpose(-1, -2)
        weights = torch.cat([scores, own_scores], -1).softmax(-1)
        of_text = weights[..., :num_tokens].reshape(*grouped.shape[:3], num_tokens) @ text[1]
        attended = by_span(of_text) + weights[..., num_tokens:] @ by_span(own_v)
        return self.output(attended.reshape(q.shape), gates).view(x.shape)


class SpanLayer(nn.Module):
    """A Qwen3 layer over the rows of spans."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = SpanAttention(shape, shape.hidden_size)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, state: Tensor, text: KeysAndValues, anchors: Tensor) -> Tensor:
        """See SpanAttention."""
        state = state + self.self_attn(self.input_layernorm(state), text, anchors)
        out: Tensor = state + self.mlp(self.post_attention_layernorm(state))
        return out


class SpanHead(TrainableHead):
    """A head that drafts in spans. Its weights are named as in published checkpoints.

    Depth d of a span at the anchor a predicts the token at a + 1 + d, so its place is a + d.

    Attributes:
        algorithm, class_name: this kind of head in speculators' files.
        samples_from_anchor: whether the anchor's own row drafts, the token after it; else a row
            drafts the token at its own position, and the anchor's row drafts none.
    """

    algorithm: str
    class_name: str
    samples_from_anchor: bool

    def __init__(
        self,
        target: TargetWeights,
        draft_ids: Tensor,
        max_depth: int,
        *,
        num_layers: int = 3,
        train_lm_head: bool = False,
        anchor_share: float = 1.0,
    ) -> None:
        """`anchor_share` is the share of possible spans that are trained, drawn each time."""
        super().__init__(target, draft_ids, max_depth)
        self.shape = dataclasses.replace(LayerShape.of(target.config), has_qk_norm=True)
        size = self.shape.hidden_size
        self.anchor_share = anchor_share
        self.num_taps = len(self.tap_layers(target.num_layers))
        self.fc = nn.Linear(self.num_taps * size, size, bias=False)
        # Taps divided by these have elements near 1, so that fc learns from all taps alike.
        self.register_buffer("tap_sizes", torch.ones(self.num_taps), persistent=False)
        self.hidden_norm = nn.RMSNorm(size, self.shape.rms_norm_eps)
        self.layers = nn.ModuleList([SpanLayer(self.shape) for _ in range(num_layers)])
        self.norm = nn.RMSNorm(size, self.shape.rms_norm_eps)
        self.lm_head = nn.Parameter(target.lm_head[draft_ids].clone(), requires_grad=train_lm_head)
        # The last token is rare or unused in most vocabularies.
        self.mask_token_id = target.embedding.shape[0] - 1

    tap_sizes: Tensor

    @classmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        """EAGLE-3's, so that heads of both kinds can be trained on the same examples."""
        return sorted({layer for layer in default_taps(num_layers) if layer >= 0})

    @property
    def block_size(self) -> int:
        """Rows of a span."""
        return self.max_depth if self.samples_from_anchor else self.max_depth + 1

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """The target's last layers, the last tap as the context, and the target's norm and rows."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.02, generator=generator)
        first = self.target.num_layers - len(self.layers)
        with torch.no_grad():
            for i, layer in enumerate(self.layers):
                copy_fitting(self.target.layer(max(first + i, 0)), layer)
            self.norm.weight.copy_(self.target.norm)
            self.lm_head.copy_(self.target.lm_head[self.draft_ids])
            self.fc.weight.mul_(0.5)
            self.fc.weight[:, -self.shape.hidden_size :] += torch.eye(self.shape.hidden_size)
            if examples:
                self.tap_sizes.copy_(sizes_of(examples)[: self.num_taps])

    def text(self, batch: Batch) -> list[KeysAndValues]:
        """Each layer's keys and values of the batch's tokens."""
        taps = batch.states[:, :, : self.num_taps] / self.tap_sizes[:, None]
        context = self.hidden_norm(self.fc(taps.flatten(2)))
        return [cast("SpanLayer", layer).self_attn.text(context) for layer in self.layers]

    def hidden(self, batch: Batch, text: Sequence[KeysAndValues], anchors: Tensor) -> Tensor:
        """The inputs of the scoring rows: [examples, anchors, depth, hidden size].

        `anchors` are int64 [examples, anchors], each at least 1.
        """
        token_ids = anchors.new_full((*anchors.shape, self.block_size), self.mask_token_id)
        token_ids[..., 0] = batch.token_ids.gather(1, anchors)
        state = F.embedding(token_ids, self.target.embedding)
        for layer, keys_and_values in zip(self.layers, text, strict=True):
            state = layer(state, keys_and_values, anchors)
        normed: Tensor = self.norm(state[:, :, -self.max_depth :])
        return normed

    @abc.abstractmethod
    def output(self, hidden: Tensor, previous: Tensor, positions: Tensor) -> DepthOutput:
        """What rows say at one depth.

        Args:
            hidden: [rows, hidden size], of hidden().
            previous: int64 [rows], the token before the one that is predicted.
            positions: as in DepthOutput.
        """

    @abc.abstractmethod
    def logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The scores [..., draft vocabulary] of rows, for arguments like those of output()."""

    def outputs(self, batch: Batch, generator: torch.Generator) -> Sequence[DepthOutput]:
        """A part of the spans, each up to the end of the answer that it begins in."""
        num_tokens = batch.token_ids.shape[1]
        anchors, is_span = front_rows(self._drawn(batch, generator))
        hidden = self.hidden(batch, self.text(batch), anchors)
        example = torch.arange(len(anchors), device=anchors.device)[:, None]
        outputs = []
        for d in range(self.max_depth):
            positions = (anchors + d).clamp(max=num_tokens - 1)
            is_span = is_span & (anchors + d < num_tokens)
            is_span = is_span & batch.is_scored.gather(1, positions)
            flat = (example * num_tokens + positions)[is_span]
            previous = batch.token_ids.flatten()[flat]
            outputs.append(self.output(hidden[:, :, d][is_span], previous, flat))
        return outputs

    @torch.no_grad()
    def draft(self, batch: Batch, depth: int) -> Tensor:
        """See TrainableHead; zeros beyond `max_depth` and at roots that no answer has."""
        drafts = batch.token_ids.new_zeros((*batch.token_ids.shape, depth))
        text = self.text(batch)
        anchors, is_span = front_rows(_possible(batch))
        for some, is_some in zip(
            *(torch.split(t, _DRAFTED_ANCHORS, 1) for t in (anchors, is_span)), strict=True
        ):
            hidden = self.hidden(batch, text, some)[is_some]
            example, _ = is_some.nonzero(as_tuple=True)
            previous = batch.token_ids[example, some[is_some]]
            for d in range(min(depth, self.max_depth)):
                best = self.logits(hidden[:, d], previous).argmax(-1)
                previous = drafts[example, some[is_some], d] = self.draft_ids[best]
        return drafts

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """See TrainableHead."""
        weights: dict[str, Tensor] = {"lm_head": self.lm_head}
        for name, tensor in tensors.items():
            if name == "lm_head.weight":
                weights["lm_head"] = self.rows_of(self.lm_head, tensor, ids)
            elif name == "fc.weight" and tensor.shape == self.fc.weight.shape:
                weights[name] = tensor * self._fc_sizes().to(tensor.device)
            elif name not in ("d2t", "t2d", "embed_tokens.weight"):
                weights[name] = tensor
        return weights

    def _fc_sizes(self) -> Tensor:
        """The size by which each input of fc is divided: [taps x hidden size]."""
        return self.tap_sizes.repeat_interleave(self.shape.hidden_size)

    def _drawn(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """The tokens whose spans are trained: bool [examples, tokens]."""
        is_possible = _possible(batch)
        wanted = (self.anchor_share * is_possible.sum(1, keepdim=True)).ceil()
        return is_possible & (random_ranks(is_possible, generator) < wanted)

    def tensors(self, *, with_vocabulary: bool) -> dict[str, Tensor]:
        """The tensors of a checkpoint; the vocabulary's where they differ from the target's, too,
        or in any case."""
        tensors: dict[str, Tensor] = dict(self.named_parameters())
        rows = tensors.pop("lm_head")
        tensors["fc.weight"] = self.fc.weight / self._fc_sizes()
        is_cut = len(self.draft_ids) < len(self.target.lm_head)
        if with_vocabulary or is_cut or rows.requires_grad:
            tensors["lm_head.weight"] = rows
        if with_vocabulary or is_cut:
            vocab_size = len(self.target.embedding)
            tensors |= configs.vocabulary_tensors(self.draft_ids, vocab_size)
        if with_vocabulary:
            tensors["embed_tokens.weight"] = self.target.embedding
        return tensors

    def common_fields(self) -> dict[str, Any]:
        """The fields of config.json that DFlash's and DSpark's checkpoints share."""
        return {
            **configs.qwen3_fields(self.shape, len(self.layers), self.target),
            "num_target_layers": self.target.num_layers,
            "block_size": self.block_size,
            "draft_vocab_size": len(self.draft_ids),
        }

    def target_layer_ids(self) -> list[int]:
        """The tapped layers as these checkpoints name them: by their outputs; -1: the embedding."""
        return [layer - 1 for layer in self.tap_layers(self.target.num_layers)]

    def speculators_files(self, **fields: Any) -> HeadFiles:
        """The checkpoint in speculators' layout; `fields` are added to config.json."""
        config = {
            **configs.speculators_fields(
                self.algorithm, self.max_depth, self.target, class_name=self.class_name
            ),
            "transformer_layer_config": configs.qwen3_fields(
                self.shape, len(self.layers), self.target
            ),
            "draft_vocab_size": len(self.draft_ids),
            "target_hidden_size": None,
            "tie_word_embeddings": False,
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "aux_hidden_state_layer_ids": self.tap_layers(self.target.num_layers),
            "sample_from_anchor": self.samples_from_anchor,
            **fields,
        }
        return HeadFiles(config, self.tensors(with_vocabulary=True))


def copy_fitting(tensors: dict[str, Tensor], module: nn.Module) -> None:
    """Copies tensors into a module's parameters of the same name and shape."""
    for name, parameter in module.named_parameters():
        tensor = tensors.get(name)
        if tensor is not None and tensor.shape == parameter.shape:
            parameter.copy_(tensor)


def _possible(batch: Batch) -> Tensor:
    """The tokens of answers that another follows, which can be roots: bool [examples, tokens]."""
    is_possible = batch.is_answer & batch.is_scored
    is_possible[:, 0] = False
    return is_possible
