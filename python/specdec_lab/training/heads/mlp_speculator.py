"""IBM's MLP speculator (arXiv 2404.19124): a recurrent network, one step for each drafted token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.heads.base import DepthOutput, HeadFiles, TrainableHead
from specdec_lab.training.target import TargetWeights

_EPS = 1e-6  # of all norms


class MlpSpeculator(TrainableHead):
    """A state that starts as the target's final hidden state and adds a token in each step.

    state = GELU(norm(proj state + c emb token)); the logits of the next token are head state. The
    factor c balances state and embedding for any number of steps. Weights are named as in its
    checkpoints.

    Attributes:
        tie_weights: whether all steps share their weights, apart from the first projection.
        scale_input: whether the target's state is normalised first.
    """

    def __init__(
        self,
        target: TargetWeights,
        draft_ids: Tensor,
        max_depth: int,
        *,
        inner_dim: int = 0,
        tie_weights: bool = True,
        scale_input: bool = True,
    ) -> None:
        """`inner_dim` is the size of a state; 0: the target's hidden size.

        Raises TrainingError where `draft_ids` are not all tokens: files cannot express that.
        """
        super().__init__(target, draft_ids, max_depth)
        vocab_size = target.lm_head.shape[0]
        if len(draft_ids) != vocab_size:
            raise TrainingError(
                f"draft_vocab_size: {len(draft_ids)}, but an MLP speculator scores all "
                f"{vocab_size} tokens; set 0"
            )
        self.tie_weights = tie_weights
        self.scale_input = scale_input
        inner = self.inner_dim = inner_dim or target.hidden_size
        share = 0.5 ** (0.5 / max_depth)
        self._embedding_scale = math.sqrt((1 - share**2) * inner / 2) / share
        num_own = 1 if tie_weights else max_depth
        num_projections = min(2, max_depth) if tie_weights else max_depth
        self.emb = nn.ModuleList(nn.Embedding(vocab_size, inner) for _ in range(num_own))
        self.proj = nn.ModuleList(
            nn.Linear(inner if i else target.hidden_size, inner, bias=False)
            for i in range(num_projections)
        )
        self.ln = nn.ModuleList(_Norm(inner) for _ in range(num_own))
        self.head = nn.ModuleList(nn.Linear(inner, vocab_size, bias=False) for _ in range(num_own))

    @classmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        """None: it reads only the final hidden state."""
        return []

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        """Random weights, scaled so that states and embeddings have the sizes that c expects.

        Where the sizes agree, embeddings and scoring rows start as the target's.
        """
        deviation = self.inner_dim**-0.5
        fits = self.inner_dim == self.target.hidden_size
        embedding = self.target.embedding
        with torch.no_grad():
            for emb in self.emb:
                weight = cast("Tensor", emb.weight)
                nn.init.normal_(weight, 0.0, deviation, generator=generator)
                if fits:
                    weight.copy_(embedding * (deviation / embedding.pow(2).mean().sqrt()))
            for proj in self.proj:
                weight = cast("Tensor", proj.weight)
                nn.init.normal_(weight, 0.0, weight.shape[1] ** -0.5, generator=generator)
            for head in self.head:
                weight = cast("Tensor", head.weight)
                nn.init.normal_(weight, 0.0, deviation, generator=generator)
                if fits:
                    weight.copy_(self.target.lm_head)
            for ln in self.ln:
                cast("Tensor", ln.weight).fill_(1.0)
                cast("Tensor", ln.bias).zero_()

    def initial(self, final_hidden: Tensor) -> Tensor:
        """The state before step 0."""
        if not self.scale_input:
            return final_hidden
        return _normed(final_hidden) / math.sqrt(2.0)

    def step(self, state: Tensor, token_ids: Tensor, depth: int) -> Tensor:
        """The state [..., inner size] after a token: the input of the depth's scoring rows."""
        own = 0 if self.tie_weights else depth
        projection = min(depth, len(self.proj) - 1)
        x = self.proj[projection](state) + self._embedding_scale * self.emb[own](token_ids)
        return F.gelu(self.ln[own](x))

    def _rows(self, depth: int) -> Tensor:
        return cast("Tensor", self.head[0 if self.tie_weights else depth].weight)

    def outputs(self, batch: Batch, generator: torch.Generator) -> Sequence[DepthOutput]:
        """One step per depth, over the text's own tokens."""
        num_tokens = batch.token_ids.shape[1]
        depths = self.max_depth
        is_scored = F.pad(batch.is_scored, (0, depths))
        # scored[example, j - 1, depth]: whether row j is scored at depth; its place is j + depth.
        scored = is_scored[:, 1:].unfold(1, depths, 1)[:, : num_tokens - 1]
        example, i = scored.any(-1).nonzero(as_tuple=True)
        scored = scored[example, i]
        state = self.initial(batch.final_hidden[example, i])
        token_ids = F.pad(batch.token_ids, (0, depths))
        outputs = []
        for depth in range(depths):
            state = self.step(state, token_ids[example, i + 1 + depth], depth)
            counted = scored[:, depth]
            positions = (example * num_tokens + i + 1 + depth)[counted]
            outputs.append(DepthOutput(state[counted], positions, self._rows(depth)))
        return outputs

    @torch.no_grad()
    def draft(self, batch: Batch, depth: int) -> Tensor:
        """Chains that embed their own tokens; zeros beyond the last step."""
        token_ids = batch.token_ids[:, 1:]
        drafts = torch.zeros(*batch.token_ids.shape, depth, dtype=torch.int64)
        drafts = drafts.to(token_ids.device)
        state = self.initial(batch.final_hidden[:, :-1])
        for d in range(min(depth, self.max_depth)):
            state = self.step(state, token_ids, d)
            token_ids = F.linear(state, self._rows(d)).argmax(-1)
            drafts[:, 1:, d] = token_ids
        return drafts

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        """See TrainableHead."""
        del ids
        return {name.removeprefix("speculator."): tensor for name, tensor in tensors.items()}

    def files(self, layout: str) -> HeadFiles:
        """The checkpoint as vLLM reads it. Raises TrainingError for the layout of speculators,
        which has no MLP speculator."""
        if layout != "common":
            raise TrainingError(
                f"layout: {layout!r} has no MLP speculators; write them as 'common'"
            )
        config = {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "vocab_size": self.target.lm_head.shape[0],
            "emb_dim": self.target.hidden_size,
            "inner_dim": self.inner_dim,
            "n_predict": self.max_depth,
            "n_candidates": self.max_depth,
            "top_k_tokens_per_head": [1] * self.max_depth,
            "tie_weights": self.tie_weights,
            "scale_input": self.scale_input,
        }
        tensors = {f"speculator.{name}": p.detach() for name, p in self.named_parameters()}
        return HeadFiles(config, tensors)


class _Norm(nn.Module):
    """RMS norm with a bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same."""
        return _normed(x) * self.weight + self.bias


def _normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _EPS)
