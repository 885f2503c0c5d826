"""The interface between the trainer and a head."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.target import TargetWeights


@dataclasses.dataclass(frozen=True)
class DepthOutput:
    """A head's output at one depth, for some places of a batch.

    Attributes:
        hidden: [rows, hidden size], the input of `lm_head_weight`.
        positions: int64 [rows], rising: p as an index into the flattened [examples, tokens]; the
            row predicts the token at p + 1.
        lm_head_weight: [draft vocabulary, hidden size].
        extra_loss: [rows], added to the loss of each row, where the method's loss has a term beside
            that of the scores.
        added: a second product that is added to the scores: its inputs [rows, rank], and its matrix
            [draft vocabulary, rank].
        confidence: [rows], the logits of the chance that each row's draft is accepted, for heads
            that learn to foretell it.
    """

    hidden: Tensor
    positions: Tensor
    lm_head_weight: Tensor
    extra_loss: Tensor | None = None
    added: tuple[Tensor, Tensor] | None = None
    confidence: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class HeadFiles:
    """A head's checkpoint.

    Attributes:
        config: the content of config.json.
        tensors: the tensors of model.safetensors by name.
        token_map: int64, the tokens that it was trained to draft, if the tensors do not say so;
            written as token_map.json, which this engine finds beside config.json.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    token_map: Tensor | None = None


class TrainableHead(nn.Module, abc.ABC):
    """A draft head over a target whose weights do not change.

    Attributes:
        target: the target's parts that the head borrows.
        draft_ids: int64 [draft vocabulary], rising: the target's token id of each token that the
            head scores.
        max_depth: the most tokens of a draft.
        trained_depth: number of depths that outputs() returns; 1 to max_depth where `depths_go_on`.
        depths_go_on: whether a depth continues from the one before with the same weights, so that
            training the first depth trains all of them.
        rate_factor: by which the default learning rate is multiplied.
    """

    draft_ids: Tensor
    depths_go_on = False
    rate_factor = 1.0

    def __init__(self, target: TargetWeights, draft_ids: Tensor, max_depth: int) -> None:
        super().__init__()
        self.target = target
        self.max_depth = max_depth
        self.trained_depth = max_depth
        self.register_buffer("draft_ids", draft_ids, persistent=False)

    @classmethod
    @abc.abstractmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        """The layers of the target whose inputs the head reads; the final hidden state comes last
        in Example.states without being named here."""

    @abc.abstractmethod
    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """Sets all weights, from the target's where that helps.

        `examples` are a few examples that show the size of states.
        """

    @abc.abstractmethod
    def outputs(self, batch: Batch, generator: torch.Generator) -> Sequence[DepthOutput]:
        """The head's outputs, with gradients, for the scored places at each trained depth.

        `generator` is for heads that draw which rows to train.
        """

    @abc.abstractmethod
    def draft(self, batch: Batch, depth: int) -> Tensor:
        """The most likely chains, in the target's token ids: int64 [examples, tokens, depth].

        Row j is the draft with the token at j as the root, given the true tokens up to j. The
        content of row 0, which has no feature, is arbitrary, and so is that of roots outside of
        answers.
        """

    @abc.abstractmethod
    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """A checkpoint's weights by the names of this head's parameters: the inverse of files().

        Args:
            tensors: a checkpoint's tensors by name, of any layout.
            ids: int64, the token of each row that the checkpoint's head scores.
        Tensors without a parameter keep their names, and shapes are not checked.
        """

    def rows_of(self, mine: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
        """`mine`, which has a row for each of draft_ids, with those rows whose tokens are in `ids`
        replaced by that token's row of `rows`."""
        place = torch.full((len(self.target.lm_head),), -1, device=mine.device)
        place[ids.to(mine.device)] = torch.arange(len(ids), device=mine.device)
        found = place[self.draft_ids]
        replaced = mine.detach().clone()
        replaced[found >= 0] = rows.to(replaced)[found[found >= 0]]
        return replaced

    @abc.abstractmethod
    def files(self, layout: str) -> HeadFiles:
        """The checkpoint in a layout: "common", which every reader accepts, or "speculators"."""
