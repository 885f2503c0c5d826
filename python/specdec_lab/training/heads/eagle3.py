"""EAGLE-3 (arXiv 2503.01840): layers over taps of the target and the next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.heads import configs
from specdec_lab.training.heads.base import HeadFiles
from specdec_lab.training.heads.eagle import EagleHead
from specdec_lab.training.target import TargetWeights

# Flags of speculators' files that are written always: readers differ in what a missing one means.
NORM_FLAGS = ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm")


class Eagle3(EagleHead):
    """The EAGLE-3 head. Its first layer reads the embedding beside the fused taps.

    Attributes:
        algorithm, class_name: this kind of head in speculators' files.
    """

    algorithm = "eagle3"
    class_name = "Eagle3Speculator"

    def __init__(
        self,
        target: TargetWeights,
        draft_ids: Tensor,
        max_depth: int,
        *,
        num_layers: int = 1,
        train_lm_head: bool = False,
    ) -> None:
        super().__init__(target, draft_ids, max_depth, ["joined"] + ["plain"] * (num_layers - 1))
        size = self.shape.hidden_size
        self.num_taps = len(self.tap_layers(target.num_layers))
        self.fc = nn.Linear(self.num_taps * size, size, bias=False)
        # Taps divided by these have elements near 1, so that fc learns from all taps alike.
        self.register_buffer("tap_sizes", torch.ones(self.num_taps), persistent=False)
        self.norm = nn.RMSNorm(size, self.shape.rms_norm_eps)
        self.lm_head = nn.Parameter(target.lm_head[draft_ids].clone(), requires_grad=train_lm_head)

    tap_sizes: Tensor

    @classmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        """The default layers that readers assume, as far as a small target has them."""
        return sorted({layer for layer in default_taps(num_layers) if layer >= 0})

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """Random matrices, the last tap as the state, and the target's norm and scoring rows."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.02, generator=generator)
        with torch.no_grad():
            self.norm.weight.copy_(self.target.norm)
            self.lm_head.copy_(self.target.lm_head[self.draft_ids])
            self.fc.weight.mul_(0.5)
            self.fc.weight[:, -self.shape.hidden_size :] += torch.eye(self.shape.hidden_size)
            if examples:
                self.tap_sizes.copy_(sizes_of(examples)[: self.num_taps])

    @property
    def lm_head_weight(self) -> Tensor:
        """See EagleHead."""
        return self.lm_head

    def fuse(self, batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """See EagleHead."""
        del generator
        taps = batch.states[:, :-1, : self.num_taps]
        fused: Tensor = self.fc((taps / self.tap_sizes[:, None]).flatten(2))
        return fused

    def scored(self, state: Tensor) -> Tensor:
        """See EagleHead."""
        normed: Tensor = self.norm(state)
        return normed

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """See TrainableHead."""
        weights: dict[str, Tensor] = {"lm_head": self.lm_head}
        for name, tensor in tensors.items():
            if name == "lm_head.weight":
                weights["lm_head"] = self.rows_of(self.lm_head, tensor, ids)
            elif name == "fc.weight" and tensor.shape == self.fc.weight.shape:
                weights[name] = tensor * self._fc_sizes().to(tensor.device)
            elif name not in ("d2t", "t2d", "embed_tokens.weight"):
                own = name.removeprefix("midlayer.")
                weights[name if own == name else f"layers.0.{own}"] = tensor
        return weights

    def _fc_sizes(self) -> Tensor:
        """The size by which each input of fc is divided: [taps x hidden size]."""
        return self.tap_sizes.repeat_interleave(self.shape.hidden_size)

    def files(self, layout: str) -> HeadFiles:
        """See TrainableHead. Only vLLM and this engine read more than one layer."""
        vocab_size = self.target.embedding.shape[0]
        tensors: dict[str, Tensor] = dict(self.named_parameters())
        tensors["lm_head.weight"] = tensors.pop("lm_head")
        tensors["fc.weight"] = self.fc.weight / self._fc_sizes()
        tensors |= configs.vocabulary_tensors(self.draft_ids, vocab_size)
        layer = configs.llama_fields(self.shape, len(self.layers), self.target)
        draft_vocab_size = {"draft_vocab_size": len(self.draft_ids)}
        taps = self.tap_layers(self.target.num_layers)
        if layout == "speculators":
            tensors["embed_tokens.weight"] = self.target.embedding
            config = {
                **configs.speculators_fields(
                    self.algorithm, self.max_depth, self.target, class_name=self.class_name
                ),
                "transformer_layer_config": layer,
                **draft_vocab_size,
                "target_hidden_size": None,
                "tie_word_embeddings": False,
                configs.TAPS: taps,
                **dict.fromkeys(NORM_FLAGS, False),
            }
            return HeadFiles(config, tensors)
        first = "layers.0."
        tensors = {
            f"midlayer.{name.removeprefix(first)}" if name.startswith(first) else name: tensor
            for name, tensor in tensors.items()
        }
        config = {
            "architectures": ["LlamaForCausalLMEagle3"],
            **layer,
            **draft_vocab_size,
            "norm_before_residual": False,
        }
        if taps != default_taps(self.target.num_layers):
            config[configs.TAPS] = taps
        return HeadFiles(config, tensors)


def default_taps(num_layers: int) -> list[int]:
    """The layers whose inputs a head reads if its checkpoint names none."""
    return [2, num_layers // 2, num_layers - 3]


def sizes_of(examples: Sequence[Example]) -> Tensor:
    """The typical root mean square of each tap's elements, the final hidden state last.

    The median over all tokens, because a text's first token may have states thousands of times
    larger.
    """
    rows = torch.cat([example.states.float().square().mean(-1) for example in examples])
    return rows.median(0).values.sqrt()
