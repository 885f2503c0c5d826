"""P-EAGLE: EAGLE-3 that drafts all tokens in one pass, over mask tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.heads.base import DepthOutput, HeadFiles
from specdec_lab.training.heads.eagle import all_rows, front_rows, random_ranks, wanted_rows
from specdec_lab.training.heads.eagle3 import Eagle3
from specdec_lab.training.heads.layers import StepCache
from specdec_lab.training.target import TargetWeights

# Share of rows that are trained at depth d: this to the power of d, with a minimum.
_KEPT_SHARE = 0.7
_LEAST_SHARE = 0.2


class ParallelEagle(Eagle3):
    """The P-EAGLE head. Row r of depth d > 0 reads the mask token and learned features.

    It attends to the text's rows up to r, and to itself at smaller depths.
    """

    algorithm = "peagle"
    depths_go_on = False
    class_name = "PeagleSpeculator"

    def __init__(
        self,
        target: TargetWeights,
        draft_ids: Tensor,
        max_depth: int,
        *,
        num_layers: int = 1,
        train_lm_head: bool = False,
    ) -> None:
        super().__init__(
            target, draft_ids, max_depth, num_layers=num_layers, train_lm_head=train_lm_head
        )
        # In units of tap_sizes, as fc reads it.
        self.mask_features = nn.Parameter(torch.zeros(self.fc.in_features))
        # The last token is rare or unused in most vocabularies.
        self.mask_token_id = target.embedding.shape[0] - 1

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """As an EAGLE-3 head, with random features for the masks."""
        super().initialise(generator, examples)
        nn.init.normal_(self.mask_features, generator=generator)

    def outputs(self, batch: Batch, generator: torch.Generator) -> Sequence[DepthOutput]:
        """All rows of depth 0; each further depth trains a random part of the rows before."""
        num_tokens = batch.token_ids.shape[1]
        is_scored = batch.is_scored
        rows, is_row = wanted_rows(is_scored, self.max_depth)
        first_rank = random_ranks(is_row, generator)
        counts = is_row.sum(1, keepdim=True)
        example = torch.arange(len(rows), device=rows.device)[:, None]
        cache = [StepCache() for _ in self.layers]
        outputs = []
        for d in range(self.max_depth):
            if d > 0:
                share = max(_KEPT_SHARE**d, _LEAST_SHARE)
                chosen, is_row = front_rows(is_row & (first_rank < (share * counts).ceil()))
                rows, first_rank = rows.gather(1, chosen), first_rank.gather(1, chosen)
                for steps in cache:
                    steps.keep(chosen)
            state = self._at_depth(d, batch, rows, cache)
            positions = (rows + (1 + d)).clamp(max=num_tokens - 1)
            scored = is_row & (rows + (1 + d) < num_tokens) & is_scored.gather(1, positions)
            flat = (example * num_tokens + positions)[scored]
            outputs.append(DepthOutput(self.scored(state[scored]), flat, self.lm_head_weight))
        return outputs

    @torch.no_grad()
    def draft(self, batch: Batch, depth: int) -> Tensor:
        """Drafts each token of a chain without the tokens before it."""
        rows = all_rows(batch.token_ids[:, 1:])
        cache = [StepCache() for _ in self.layers]
        drafts = []
        for d in range(depth):
            state = self._at_depth(d, batch, rows, cache)
            best = F.linear(self.scored(state), self.lm_head_weight).argmax(-1)
            drafts.append(F.pad(self.draft_ids[best], (1, 0)))
        return torch.stack(drafts, -1)

    def files(self, layout: str) -> HeadFiles:
        """See TrainableHead; only speculators has a layout for such heads."""
        del layout
        files = super().files("speculators")
        tensors = dict(files.tensors)
        masks = tensors.pop("mask_features") * self._fc_sizes()
        tensors["mask_hidden"] = masks.reshape(1, 1, -1)
        return HeadFiles({**files.config, "mask_token_id": self.mask_token_id}, tensors)

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """See TrainableHead."""
        weights = super().weights_of(tensors, ids)
        masks = weights.pop("mask_hidden", None)
        if masks is not None:
            weights["mask_features"] = masks.flatten() / self._fc_sizes().to(masks.device)
        return weights

    def _at_depth(self, d: int, batch: Batch, rows: Tensor, cache: list[StepCache]) -> Tensor:
        if d == 0:
            return self.step(batch.token_ids[:, 1:], self.fuse(batch), rows, 0, cache)
        masks = torch.full_like(rows, self.mask_token_id)
        state = self.fc(self.mask_features).expand(*rows.shape, -1)
        return self.step(masks, state, rows, d, cache)
