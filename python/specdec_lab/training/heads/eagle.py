"""The common part of EAGLE heads: layers that continue from their own output, step by step.

The training-time test of EAGLE-3 (arXiv 2503.01840): row r of step 0 reads a token of the text and
the target's states of the token before. In step s it reads the token s places further on in the
text, and its own output of the step before.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.batch import Batch
from specdec_lab.training.heads.base import DepthOutput, TrainableHead
from specdec_lab.training.heads.layers import DecoderLayer, LayerShape, StepCache
from specdec_lab.training.target import TargetWeights


class EagleHead(TrainableHead):
    """An EAGLE head. Its weights are named as in speculators' files.

    Its rows count from 0; row r is row r + 1 of Batch, because the first token has no feature.
    """

    depths_go_on = True

    def __init__(
        self,
        target: TargetWeights,
        draft_ids: Tensor,
        max_depth: int,
        layer_kinds: Sequence[str],
        shape: LayerShape | None = None,
    ) -> None:
        """`shape` of the layers is the target's unless given."""
        super().__init__(target, draft_ids, max_depth)
        self.shape = shape or LayerShape.of(target.config)
        self.layers = nn.ModuleList([DecoderLayer(self.shape, kind) for kind in layer_kinds])

    @abc.abstractmethod
    def fuse(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """The states that step 0 reads: [examples, tokens - 1, hidden size].

        `generator` is given in training, for heads that add noise to features.
        """

    @abc.abstractmethod
    def scored(self, state: Tensor) -> Tensor:
        """The input of `lm_head_weight`, from output states."""

    @property
    @abc.abstractmethod
    def lm_head_weight(self) -> Tensor:
        """The scoring rows: [draft vocabulary, hidden size]."""

    def begin(self, embedded: Tensor, state: Tensor) -> Tensor:
        """The first layer's input state."""
        del embedded
        return state

    def extra_loss(self, state: Tensor, wanted: Tensor) -> Tensor | None:
        """A further loss of each row, beside the loss of its logits, or None.

        Args:
            state: [rows, hidden size], output states.
            wanted: [rows, hidden size], the final hidden states of the target at their places.
        """
        del state, wanted
        return None

    def step(
        self, token_ids: Tensor, state: Tensor, rows: Tensor, step: int, cache: list[StepCache]
    ) -> Tensor:
        """The output states of rows [examples, rows, hidden size], before the final norm.

        Args:
            token_ids: the token that each row reads; in step 0 for all rows of the text, [examples,
                text rows], later for `rows`.
            state: fused features, or the output of the step before, of the same rows.
            rows: int64 [examples, rows].
            step: 0 for the rows of the text itself.
            cache: each layer's cache.
        """
        embedded = F.embedding(token_ids, self.target.embedding)
        state = self.begin(embedded, state)
        text_rows = all_rows(state) if step == 0 else rows
        for layer, steps in zip(self.layers, cache, strict=True):
            # After the last layer only `rows` matter, but its keys are needed for all rows.
            is_last = layer is self.layers[-1]
            state = layer(state, embedded, rows if is_last else text_rows, step, steps)
        return state

    def outputs(self, batch: Batch, generator: torch.Generator) -> Sequence[DepthOutput]:
        """One step of the training-time test per depth."""
        num_tokens = batch.token_ids.shape[1]
        rows, is_row = wanted_rows(batch.is_scored, self.trained_depth)
        example = torch.arange(len(rows), device=rows.device)[:, None]
        final_hidden = batch.final_hidden.flatten(0, 1)
        cache = [StepCache() for _ in self.layers]
        state = self.fuse(batch, generator)
        outputs = []
        for s in range(self.trained_depth):
            # Row r of step s predicts the token at r + 2 + s, so its place is r + 1 + s.
            positions = (rows + (1 + s)).clamp(max=num_tokens - 1)
            token_ids = batch.token_ids[:, 1:] if s == 0 else batch.token_ids.gather(1, positions)
            state = self.step(token_ids, state, rows, s, cache)
            scored = is_row & (rows + (1 + s) < num_tokens) & batch.is_scored.gather(1, positions)
            chosen, flat = state[scored], (example * num_tokens + positions)[scored]
            extra = self.extra_loss(chosen, final_hidden[flat])
            outputs.append(DepthOutput(self.scored(chosen), flat, self.lm_head_weight, extra))
        return outputs

    @torch.no_grad()
    def draft(self, batch: Batch, depth: int) -> Tensor:
        """Chains that embed their own tokens."""
        token_ids = batch.token_ids[:, 1:]
        state = self.fuse(batch)
        rows = all_rows(state)
        cache = [StepCache() for _ in self.layers]
        drafts = []
        for s in range(depth):
            state = self.step(token_ids, state, rows, s, cache)
            best = F.linear(self.scored(state), self.lm_head_weight).argmax(-1)
            token_ids = self.draft_ids[best]
            drafts.append(F.pad(token_ids, (1, 0)))
        return torch.stack(drafts, -1)


def all_rows(state: Tensor) -> Tensor:
    """The indices of all rows of states [examples, rows, ...]: int64 [examples, rows]."""
    return torch.arange(state.shape[1], device=state.device).expand(state.shape[:2])


def wanted_rows(is_scored: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """The rows with a scored step: int64 [examples, rows], and a mask of the valid entries.

    Examples with fewer rows are padded at the end.

    Args:
        is_scored: bool [examples, tokens], of places.
        max_depth: steps; row r of step s is scored where place r + 1 + s is.
    """
    is_wanted = torch.zeros_like(is_scored[:, 1:])
    for s in range(min(max_depth, is_wanted.shape[1])):
        is_wanted[:, : is_wanted.shape[1] - s] |= is_scored[:, 1 + s :]
    return front_rows(is_wanted)


def front_rows(is_wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of the wanted rows of each example, rising, and a mask of the valid indices.

    Both are [examples, the most rows of an example]; `is_wanted` is bool [examples, rows].
    """
    counts = is_wanted.sum(1)
    # A stable sort leaves the wanted rows in their order.
    order = torch.argsort(is_wanted.logical_not().to(torch.uint8), dim=1, stable=True)
    width = max(int(counts.max()), 1)
    is_meant = torch.arange(width, device=counts.device) < counts[:, None]
    return order[:, :width], is_meant


def random_ranks(is_row: Tensor, generator: torch.Generator) -> Tensor:
    """A random order of each example's valid rows: int64 [examples, rows]."""
    numbers = torch.rand(is_row.shape, generator=generator, device=is_row.device)
    return numbers.masked_fill(~is_row, 2.0).argsort(1).argsort(1)
