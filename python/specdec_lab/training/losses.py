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


def acceptance_chance(target: Tensor, logits: Tensor) -> Tensor:
    """sum min(p, q), the chance that a token drawn from q is accepted."""
    return torch.minimum(target, logits.softmax(-1)).sum(-1)


def likelihood_of_acceptance(scale: float = 3.0) -> RowLoss:
    """w KL + (1 - w)(1 - a), where a = sum min(p, q) is the chance that a draft is accepted.

    w = exp(-scale a) is held fixed: while drafts are poor, KL leads. From SpecForge's LK loss.
    """

    def loss(target: Tensor, logits: Tensor) -> Tensor:
        acceptance = acceptance_chance(target, logits)
        weight = torch.exp(-scale * acceptance.detach())
        return weight * kl_divergence(target, logits) + (1 - weight) * (1 - acceptance)

    return loss


def mostly_l1(target: Tensor, logits: Tensor) -> Tensor:
    """0.1 CE + 0.9 sum |p - q|: DSpark's."""
    return 0.1 * cross_entropy(target, logits) + 0.9 * (target - logits.softmax(-1)).abs().sum(-1)


ROW_LOSSES: dict[str, Callable[[], RowLoss]] = {
    "ce": lambda: cross_entropy,
    "kl": lambda: kl_divergence,
    "lk": likelihood_of_acceptance,
    "l1": lambda: mostly_l1,
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
    positions, counted = [], []
    depth_of, states, weights = [], [], []  # of each product
    for d, output in enumerate(outputs):
        counted.append(is_counted[output.positions])
        positions.append(output.positions[counted[d]])
        products = [(output.hidden, output.lm_head_weight)]
        for state, weight in products if output.added is None else [*products, output.added]:
            depth_of.append(d)
            states.append(state[counted[d]].to(weight.dtype))
            weights.append(weight)
    has_confidence = [output.confidence is not None for output in outputs]
    wanted = _Wanted(positions, depth_of, has_confidence, row_loss)
    losses, matches, *chances = _Score.apply(  # type: ignore[no-untyped-call]
        final_hidden, target_lm_head, wanted, *states, *weights
    )
    results = []
    for d, output in enumerate(outputs):
        loss = losses[d]
        if output.extra_loss is not None:
            loss = loss + output.extra_loss[counted[d]].sum()
        if output.confidence is not None:
            foretold = output.confidence[counted[d]].to(chances[d].dtype)
            loss = loss + F.binary_cross_entropy_with_logits(foretold, chances[d], reduction="sum")
        results.append(DepthLoss(loss, len(positions[d]), int(matches[d])))
    return results


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """What _Score computes.

    Attributes:
        positions: the counted places of each depth.
        depth_of: the depth of each product.
        has_confidence: whether each depth wants its rows' chances of acceptance.
        row_loss: see score().
    """

    positions: Sequence[Tensor]
    depth_of: Sequence[int]
    has_confidence: Sequence[bool]
    row_loss: RowLoss


class _Score(torch.autograd.Function):
    """Sums of losses and of matches by depth, and each row's chance of acceptance where a head
    foretells it; gradients of the losses to states and weights.

    The scores of a depth are the sum of its products.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        final_hidden: Tensor,
        target_lm_head: Tensor,
        wanted: _Wanted,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        positions = wanted.positions
        depths, products = len(positions), len(wanted.depth_of)
        states, weights = tensors[:products], tensors[products:]
        dtype = target_lm_head.dtype
        wide = torch.promote_types(dtype, torch.float32)
        losses = final_hidden.new_zeros(depths)
        matches = torch.zeros(depths, device=final_hidden.device)
        chances = [
            final_hidden.new_zeros(len(rows) if has else 0)
            for rows, has in zip(positions, wanted.has_confidence, strict=True)
        ]
        state_grads = [torch.empty_like(rows) for rows in states]
        needs = ctx.needs_input_grad[3 + products :]  # type: ignore[attr-defined]
        weight_grads = [
            torch.zeros_like(weight) if needed else None
            for weight, needed in zip(weights, needs, strict=True)
        ]
        cast = {id(weight): weight.to(dtype) for weight in weights}  # depths may share weights
        factors = [cast[id(weight)] for weight in weights]
        of_depth = [[i for i, of in enumerate(wanted.depth_of) if of == d] for d in range(depths)]
        places = torch.unique(torch.cat(list(positions)))
        for piece in places.split(_PIECE) if len(places) else ():
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
                read = {i: states[i][begin:end].to(dtype) for i in of_depth[d]}
                terms = [F.linear(state, factors[i]).to(wide) for i, state in read.items()]
                with torch.enable_grad():
                    logits = sum(terms[1:], start=terms[0]).requires_grad_()
                    loss = wanted.row_loss(target[rows], logits).sum()
                logit_grads = torch.autograd.grad(loss, logits)[0].to(dtype)
                logits = logits.detach()
                losses[d] += loss.detach()
                matches[d] += (logits.argmax(-1) == best[rows]).sum()
                if wanted.has_confidence[d]:
                    chances[d][begin:end] = acceptance_chance(target[rows], logits)
                for i, state in read.items():
                    state_grads[i][begin:end] = logit_grads @ factors[i]
                    grads = weight_grads[i]
                    if grads is not None:
                        grads += logit_grads.T @ state
        ctx.save_for_backward(*state_grads, *(g for g in weight_grads if g is not None))
        ctx.has_weight_grads = [g is not None for g in weight_grads]  # type: ignore[attr-defined]
        ctx.depth_of = wanted.depth_of  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(matches, *chances)
        return losses, matches, *chances

    @staticmethod
    def backward(ctx, loss_grads, *_):  # type: ignore[no-untyped-def]
        factors = [loss_grads[d] for d in ctx.depth_of]
        state_grads = [g * f for g, f in zip(ctx.saved_tensors, factors, strict=False)]
        saved = iter(ctx.saved_tensors[len(factors) :])
        weight_grads = [
            next(saved) * factor if present else None
            for factor, present in zip(factors, ctx.has_weight_grads, strict=True)
        ]
        return None, None, None, *state_grads, *weight_grads
