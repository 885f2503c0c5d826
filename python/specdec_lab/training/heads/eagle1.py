"""EAGLE-1 (arXiv 2401.15077): predicts the target's final hidden state from the final hidden state
of the token before and the next token; the target's LM head scores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.heads import configs
from specdec_lab.training.heads.base import HeadFiles
from specdec_lab.training.heads.eagle import EagleHead
from specdec_lab.training.target import TargetWeights

# EAGLE weights the regression by 1 and the loss of the logits by 0.1.
_REGRESSION = 10.0
_NOISE = 0.1  # relative to a feature's size, uniform in both directions


class Eagle1(EagleHead):
    """The EAGLE-1 head. Its checkpoint has no scoring rows: it uses the target's, restricted by
    `speculative_token_map`."""

    def __init__(
        self, target: TargetWeights, draft_ids: Tensor, max_depth: int, *, num_layers: int = 1
    ) -> None:
        super().__init__(target, draft_ids, max_depth, ["raw"] + ["plain"] * (num_layers - 1))
        size = self.shape.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.register_buffer("_rows", target.lm_head[draft_ids], persistent=False)

    _rows: Tensor

    @classmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        """None: it reads the final hidden state."""
        del num_layers
        return []

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """Small random matrices, and features that pass through."""
        del examples
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.02, generator=generator)
        size = self.shape.hidden_size
        with torch.no_grad():
            self.fc.weight[:, size:] += torch.eye(size, device=self.fc.weight.device)

    @property
    def lm_head_weight(self) -> Tensor:
        """See EagleHead."""
        return self._rows

    def fuse(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """The features; in training with noise, so that the head tolerates its own errors."""
        features = batch.final_hidden[:, :-1]
        if generator is None:
            return features
        noise = torch.rand(features.shape, generator=generator, device=features.device)
        size = features.square().mean(-1, keepdim=True).sqrt()
        return features + (2 * noise - 1) * (_NOISE * size)

    def begin(self, embedded: Tensor, state: Tensor) -> Tensor:
        """See EagleHead."""
        fused: Tensor = self.fc(torch.cat([embedded, state], -1))
        return fused

    def scored(self, state: Tensor) -> Tensor:
        """See EagleHead."""
        return state

    def extra_loss(self, state: Tensor, wanted: Tensor) -> Tensor:
        """The loss of the regression."""
        return _REGRESSION * F.smooth_l1_loss(state.float(), wanted, reduction="none").mean(-1)

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """See TrainableHead."""
        del ids
        return {n: tensor for n, tensor in tensors.items() if not n.startswith("embed_tokens.")}

    def files(self, layout: str) -> HeadFiles:
        """See TrainableHead; speculators has no such heads, so both layouts are the same."""
        del layout
        config = {
            "architectures": ["EagleLlamaForCausalLM"],
            **configs.llama_fields(self.shape, len(self.layers), self.target),
            "bias": False,
        }
        is_cut = len(self.draft_ids) < len(self.target.lm_head)
        return HeadFiles(config, dict(self.named_parameters()), self.draft_ids if is_cut else None)
