"""DFlash (arXiv 2602.06036): a head whose mask rows predict the tokens at their positions,
independently of one another."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from specdec_lab.training.heads.base import DepthOutput, HeadFiles
from specdec_lab.training.heads.span import SpanHead


class DFlash(SpanHead):
    """The DFlash head."""

    algorithm = "dflash"
    class_name = "DFlashDraftModel"
    samples_from_anchor = False

    def output(self, hidden: Tensor, previous: Tensor, positions: Tensor) -> DepthOutput:
        """See SpanHead."""
        del previous
        return DepthOutput(hidden, positions, self.lm_head)

    def logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """See SpanHead."""
        del previous
        return F.linear(hidden, self.lm_head)

    def files(self, layout: str) -> HeadFiles:
        """See TrainableHead. The common layout is that of z-lab's checkpoints."""
        if layout == "speculators":
            return self.speculators_files()
        config = {
            "architectures": [self.class_name],
            **self.common_fields(),
            "dflash_config": {
                "target_layer_ids": self.target_layer_ids(),
                "mask_token_id": self.mask_token_id,
            },
        }
        return HeadFiles(config, self.tensors(with_vocabulary=False))
