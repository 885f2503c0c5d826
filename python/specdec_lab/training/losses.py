"""Losses of a head's outputs against the target's distribution over the draft vocabulary.

Logits of thousands of rows over a vocabulary would take gigabytes, so rows are scored in pieces,
and a piece's gradients are computed while its logits are in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_lab.training.heads.base import DepthOutput

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(the target's probabilities [rows, vocabulary], a head's logits) -> the loss of each row."""

_PIECE = 512  # places scored at a time


def cross_entropy(target: Tensor, logits: Tensor) -> Tensor:
    """-sum p log q."""
    return logits.logsumexp(-1) - (target * logits).sum(-1)


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    """sum p log (p / q)."""
    entropy: Tensor = torch.special.entr(target).sum(-1)
    return cross_entropy(target, logits) - entropy


def likelihood_of_acceptance(scale: float = 3.0) -> RowLoss:
    """w KL + (1 - w)(1 - a), where a = sum min(p, q) is the chance that a draft is accepted.

    w = exp(-scale a) is held fixed: while drafts are poor, KL leads. From SpecForge's LK loss.
    """

    def loss(target: Tensor, logits: Tensor) -> Tensor:
        acceptance = torch.minimum(target, logits.softmax(-1)).sum(-1)
        weight = torch.exp(-scale * acceptance.detach())
        return weight * kl_divergence(target, logits) + (1 - weight) * (1 - acceptance)

    return loss


ROW_LOSSES: dict[str, Callable[[], RowLoss]] = {
    "ce": lambda: cross_entropy,
    "kl": lambda: kl_divergence,
    "lk": likelihood_of_acceptance,
}


@dataclasses.dataclass
class DepthLoss:
    """Sums over the rows of one depth.

    Attributes:
        loss: with gradients, a scalar.
        num_rows: rows that were scored.
        num_matches: rows whose most likely token is the target's.
    """

    loss: Tensor
    num_rows: int
    num_matches: int


def score(
    outputs: Sequence[DepthOutput],
    final_hidden: Tensor,
    target_lm_head: Tensor,
    is_counted: Tensor,
    row_loss: RowLoss,
) -> list[DepthLoss]:
    """The loss of each depth.

    Args:
        outputs: the head's outputs, by depth.
        final_hidden: [places, hidden size], the input of the target's LM head.
        target_lm_head: [draft vocabulary, hidden size], the target's rows. Matrix products have
            its dtype; losses are computed in float32 at least.
        is_counted: bool [places]; rows of other places cost nothing.
        row_loss: one of ROW_LOSSES.
    """
    hidden, weights, positions, extra = [], [], [], []
    for output in outputs:
        counted = is_counted[output.positions]
        hidden.append(output.hidden[counted].to(output.lm_head_weight.dtype))
        weights.append(output.lm_head_weight)
        positions.append(output.positions[counted])
        extra.append(0.0 if output.extra_loss is None else output.extra_loss[counted].sum())
    sums = _Score.apply(  # type: ignore[no-untyped-call]
        final_hidden, target_lm_head, row_loss, positions, *hidden, *weights
    )
    return [
        DepthLoss(sums[0][d] + extra[d], len(rows), int(sums[1][d]))
        for d, rows in enumerate(positions)
    ]


class _Score(torch.autograd.Function):
    """Sums of losses and of matches by depth; gradients to hidden states and head weights."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        final_hidden: Tensor,
        target_lm_head: Tensor,
        row_loss: RowLoss,
        positions: list[Tensor],
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        depths = len(positions)
        hidden, weights = tensors[:depths], tensors[depths:]
        dtype = target_lm_head.dtype
        wide = torch.promote_types(dtype, torch.float32)
        cast = {id(weight): weight.to(dtype) for weight in weights}  # depths may share weights
        rows_of = [cast[id(weight)] for weight in weights]
        losses = torch.zeros(depths, device=final_hidden.device)
        matches = torch.zeros(depths, device=final_hidden.device)
        hidden_grads = [torch.empty_like(rows) for rows in hidden]
        needs = ctx.needs_input_grad[4 + depths :]  # type: ignore[attr-defined]
        weight_grads = [
            torch.zeros_like(weight) if needed else None
            for weight, needed in zip(weights, needs, strict=True)
        ]
        wanted = torch.unique(torch.cat(positions))
        for piece in wanted.split(_PIECE) if len(wanted) else ():
            target_logits = F.linear(final_hidden[piece].to(dtype), target_lm_head).to(wide)
            target = target_logits.softmax(-1)
            best = target_logits.argmax(-1)
            for d in range(depths):
                begin, end = torch.searchsorted(
                    positions[d], torch.stack([piece[0], piece[-1] + 1])
                ).tolist()
                if begin == end:
                    continue
                rows = torch.searchsorted(piece, positions[d][begin:end])
                state = hidden[d][begin:end].to(dtype)
                with torch.enable_grad():
                    logits = F.linear(state, rows_of[d]).to(wide).requires_grad_()
                    loss = row_loss(target[rows], logits).sum()
                logit_grads = torch.autograd.grad(loss, logits)[0].to(dtype)
                losses[d] += loss.detach()
                matches[d] += (logits.detach().argmax(-1) == best[rows]).sum()
                hidden_grads[d][begin:end] = logit_grads @ rows_of[d]
                grads = weight_grads[d]
                if grads is not None:
                    grads += logit_grads.T @ state
        ctx.save_for_backward(*hidden_grads, *(g for g in weight_grads if g is not None))
        ctx.has_weight_grads = [g is not None for g in weight_grads]  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(matches)
        return losses, matches

    @staticmethod
    def backward(ctx, loss_grads, _):  # type: ignore[no-untyped-def]
        depths = len(ctx.has_weight_grads)
        saved = list(ctx.saved_tensors)
        hidden_grads = [grad * loss_grads[d] for d, grad in enumerate(saved[:depths])]
        rest = iter(saved[depths:])
        weight_grads = [
            next(rest) * loss_grads[d] if present else None
            for d, present in enumerate(ctx.has_weight_grads)
        ]
        return None, None, None, None, *hidden_grads, *weight_grads
