"""Medusa (arXiv 2401.10774): a head for each drafted token, all over one hidden state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.heads.base import DepthOutput, HeadFiles, TrainableHead
from specdec_lab.training.target import TargetWeights

# Names in both of its layouts.
_BLOCK = re.compile(r"(?:blocks\.)?(\d+)\.(?:layers\.)?(\d+)\.(?:linear\.)?(weight|bias)")
_ROWS = re.compile(r"lm_heads\.(\d+)\.weight")


class Medusa(TrainableHead):
    """Heads of residual blocks, x + SiLU(W x + b), with scoring rows after the last block.

    The scoring rows are the target's, unless `train_lm_head` gives each head its own.
    """

    def __init__(
        self,
        target: TargetWeights,
        draft_ids: Tensor,
        max_depth: int,
        *,
        num_layers: int = 1,
        train_lm_head: bool = False,
    ) -> None:
        super().__init__(target, draft_ids, max_depth)
        size = target.hidden_size
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(size, size) for _ in range(num_layers))
            for _ in range(max_depth)
        )
        rows = target.lm_head[draft_ids]
        self.register_buffer("target_rows", rows, persistent=False)
        self.lm_heads = nn.ParameterList(
            nn.Parameter(rows.clone()) for _ in range(max_depth if train_lm_head else 0)
        )

    target_rows: Tensor

    @classmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        """None: it reads only the final hidden state."""
        return []

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """Blocks that compute the identity, and the target's scoring rows."""
        with torch.no_grad():
            for parameter in self.blocks.parameters():
                parameter.zero_()
            for rows in self.lm_heads:
                rows.copy_(self.target_rows)

    def state(self, final_hidden: Tensor, depth: int) -> Tensor:
        """The input of a depth's scoring rows, from final hidden states [..., hidden size]."""
        x = final_hidden
        for layer in self._layers(depth):
            x = x + F.silu(layer(x))
        return x

    def _layers(self, depth: int) -> list[nn.Linear]:
        return cast("list[nn.Linear]", list(cast("nn.ModuleList", self.blocks[depth])))

    def _rows(self, depth: int) -> Tensor:
        return self.lm_heads[depth] if len(self.lm_heads) else self.target_rows

    def outputs(self, batch: Batch, generator: torch.Generator) -> Sequence[DepthOutput]:
        """One head per depth."""
        num_tokens = batch.token_ids.shape[1]
        outputs = []
        for depth in range(self.max_depth):
            # The state at i predicts the token at i + 2 + depth, whose place is i + 1 + depth.
            scored = batch.is_scored[:, 1 + depth :]
            example, i = scored.nonzero(as_tuple=True)
            hidden = self.state(batch.final_hidden[example, i], depth)
            positions = example * num_tokens + i + 1 + depth
            outputs.append(DepthOutput(hidden, positions, self._rows(depth)))
        return outputs

    @torch.no_grad()
    def draft(self, batch: Batch, depth: int) -> Tensor:
        """The best token of each head; zeros at depths without a head."""
        drafts = torch.zeros(*batch.token_ids.shape, depth, dtype=torch.int64)
        drafts = drafts.to(batch.token_ids.device)
        hidden = batch.final_hidden[:, :-1]
        for d in range(min(depth, self.max_depth)):
            logits = F.linear(self.state(hidden, d), self._rows(d))
            drafts[:, 1:, d] = self.draft_ids[logits.argmax(-1)]
        return drafts

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """See TrainableHead."""
        weights: dict[str, Tensor] = {f"lm_heads.{d}": rows for d, rows in enumerate(self.lm_heads)}
        for name, tensor in tensors.items():
            block = _BLOCK.fullmatch(name)
            rows = _ROWS.fullmatch(name)
            if block is not None:
                weights["blocks.{}.{}.{}".format(*block.groups())] = tensor
            elif rows is not None and f"lm_heads.{rows[1]}" in weights:
                own = self.lm_heads[int(rows[1])]
                weights[f"lm_heads.{rows[1]}"] = self.rows_of(own, tensor, ids)
            elif name != "token_map":
                weights[name] = tensor
        return weights

    def files(self, layout: str) -> HeadFiles:
        """The blocks, as Medusa's "version 2", where the rows are the target's; else vLLM's names.

        A draft vocabulary goes into `token_map`. Raises TrainingError for the layout of
        speculators, which has no Medusa.
        """
        if layout != "common":
            raise TrainingError(f"layout: {layout!r} has no Medusa heads; write them as 'common'")
        vocab_size, size = self.target.lm_head.shape
        num_layers = len(self._layers(0))
        tensors: dict[str, Tensor] = {}
        config: dict[str, Any] = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": size,
            "vocab_size": vocab_size,
        }
        if len(self.lm_heads):
            config |= {
                "num_heads": self.max_depth,
                "num_hidden_layers": num_layers,
                "medusa_fc_bias": True,
            }
        else:
            config |= {
                "medusa_num_heads": self.max_depth,
                "medusa_num_layers": num_layers,
                "version": "2",
            }
        for d in range(self.max_depth):
            for i, layer in enumerate(self._layers(d)):
                name = f"blocks.{d}.layers.{i}" if len(self.lm_heads) else f"{d}.{i}.linear"
                tensors |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
            if len(self.lm_heads):
                tensors[f"lm_heads.{d}.weight"] = self.lm_heads[d]
        if len(self.draft_ids) < vocab_size:
            config["truncated_vocab_size"] = len(self.draft_ids)
            tensors["token_map"] = self.draft_ids
        return HeadFiles(config, {name: tensor.detach() for name, tensor in tensors.items()})
