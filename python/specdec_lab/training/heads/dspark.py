"""DSpark (arXiv 2607.05147): DFlash with an anchor that drafts, too, with two small heads beside.

The Markov head adds to the scores of a row what the token before it says, so that a draft takes the
draft before it into account. The confidence head foretells a draft's chance of being accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.batch import Example
from specdec_lab.training.heads.base import DepthOutput, HeadFiles
from specdec_lab.training.heads.span import SpanHead
from specdec_lab.training.target import TargetWeights


class DSpark(SpanHead):
    """The DSpark head, with the vanilla Markov head: two matrices of a rank, from token to token.

    Attributes:
        markov_rank: 0: there is no Markov head.
    """

    algorithm = "dspark"
    class_name = "DSparkDraftModel"
    samples_from_anchor = True

    def __init__(
        self,
        target: TargetWeights,
        draft_ids: Tensor,
        max_depth: int,
        *,
        num_layers: int = 3,
        train_lm_head: bool = False,
        anchor_share: float = 1.0,
        markov_rank: int = 64,
    ) -> None:
        super().__init__(
            target,
            draft_ids,
            max_depth,
            num_layers=num_layers,
            train_lm_head=train_lm_head,
            anchor_share=anchor_share,
        )
        self.markov_rank = markov_rank
        if markov_rank:
            self.markov_head = nn.ModuleDict(
                {
                    "markov_w1": nn.Embedding(len(target.embedding), markov_rank),
                    "markov_w2": nn.Linear(markov_rank, len(draft_ids), bias=False),
                }
            )
        inputs = self.shape.hidden_size + markov_rank
        self.confidence_head = nn.ModuleDict({"proj": nn.Linear(inputs, 1)})

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """See SpanHead; the two heads say nothing, and tokens that the target embeds alike are
        alike to the Markov head."""
        super().initialise(generator, examples)
        with torch.no_grad():
            for parameter in self.confidence_head.parameters():
                parameter.zero_()
            if self.markov_rank:
                self._w1.normal_(0.0, self.markov_rank**-0.5, generator=generator)
                found = _principal_components(self.target.embedding, self.markov_rank)
                self._w1[:, : found.shape[1]] = found * self.markov_rank**-0.5
                self._w2.zero_()

    @property
    def _w1(self) -> Tensor:
        return cast("Tensor", self.markov_head["markov_w1"].weight)

    @property
    def _w2(self) -> Tensor:
        return cast("Tensor", self.markov_head["markov_w2"].weight)

    def output(self, hidden: Tensor, previous: Tensor, positions: Tensor) -> DepthOutput:
        """See SpanHead. The confidence head learns without changing what it reads."""
        if not self.markov_rank:
            confidence = self.confidence_head["proj"](hidden.detach())[:, 0]
            return DepthOutput(hidden, positions, self.lm_head, confidence=confidence)
        embedded = F.embedding(previous, self._w1)
        read = torch.cat([hidden.detach(), embedded.detach().to(hidden.dtype)], -1)
        confidence = self.confidence_head["proj"](read)[:, 0]
        added = (embedded, self._w2)
        return DepthOutput(hidden, positions, self.lm_head, added=added, confidence=confidence)

    def logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """See SpanHead."""
        logits: Tensor = F.linear(hidden, self.lm_head)
        if self.markov_rank:
            logits = logits + F.linear(F.embedding(previous, self._w1), self._w2)
        return logits

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """See TrainableHead."""
        weights = super().weights_of(tensors, ids)
        name = "markov_head.markov_w2.weight"
        if self.markov_rank and name in weights:
            weights[name] = self.rows_of(self._w2, weights[name], ids)
        return weights

    def files(self, layout: str) -> HeadFiles:
        """See TrainableHead. The common layout is that of DeepSpec's checkpoints."""
        fields: dict[str, Any] = {
            "markov_rank": self.markov_rank,
            **({"markov_head_type": "vanilla"} if self.markov_rank else {}),
            "enable_confidence_head": True,
            "confidence_head_with_markov": self.markov_rank > 0,
        }
        if layout == "speculators":
            return self.speculators_files(**fields)
        config = {
            "architectures": ["Qwen3DSparkModel"],
            **self.common_fields(),
            "target_layer_ids": self.target_layer_ids(),
            "mask_token_id": self.mask_token_id,
            "sample_from_anchor": True,
            **fields,
        }
        return HeadFiles(config, self.tensors(with_vocabulary=False))


def _principal_components(rows: Tensor, count: int) -> Tensor:
    """The coordinates of rows [rows, size] along their main directions, each of variance 1.

    [rows, count], or [rows, size] where `count` is larger.
    """
    centred = (rows - rows.mean(0)).double()
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(rows))
    size = min(count, rows.shape[1])
    scale = variances[-size:].clamp_min(1e-12).rsqrt()
    found: Tensor = centred @ (directions[:, -size:] * scale)
    return found.float()
