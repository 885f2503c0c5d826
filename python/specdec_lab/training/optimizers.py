"""Optimisers for a head's weights: Muon or AdamW, at a rate that rises and then falls.

Muon (Keller Jordan; scaled as in arXiv 2502.16982) moves a matrix along the orthogonal factor of
its momentum, so that every direction of the matrix learns at the same speed. Torch's own Muon
multiplies in bfloat16, many times slower on processors without such units, and twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from specdec_lab.training.heads.base import TrainableHead
from specdec_lab.training.training_options import TrainingOptions

_ADAMW_BETAS = (0.9, 0.95)
_MOMENTUM = 0.95
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 4
_MUON_RMS = 0.2  # RMS of an update's elements at rate 1, as AdamW's: both take the same rates

_WITH_LAYERS = ("eagle", "eagle3", "parallel", "mtp", "dflash", "dspark")
_RATES = {"adamw": 1.5e-3, "muon": 3e-3}
_AUTHORS_RATE = 1e-3  # the authors' rate for Medusa and MLP speculators

# Modules with one weight row per token. Their gradients are sparse or uneven: AdamW handles them.
_VOCABULARY = frozenset(
    {"lm_head", "lm_heads", "embed_tokens", "emb", "head", "markov_w1", "markov_w2"}
)


class Optimizers:
    """The optimisers of one head, and the position in the schedule."""

    def __init__(self, head: TrainableHead, options: TrainingOptions, total_steps: int) -> None:
        self.learning_rate = options.learning_rate or default_learning_rate(options, head)
        self.total_steps = max(total_steps, 1)
        self.num_steps = 0
        self._warmup_steps = math.ceil(options.warmup * self.total_steps)
        trained = [(n, p) for n, p in head.named_parameters() if p.requires_grad]
        matrices = [p for n, p in trained if options.optimizer == "muon" and is_matrix(n, p)]
        chosen = {id(parameter) for parameter in matrices}
        others = [p for _, p in trained if id(p) not in chosen]
        self._optimizers: list[torch.optim.Optimizer] = []
        if matrices:
            self._optimizers.append(Muon(matrices, self.learning_rate))
        if others:
            self._optimizers.append(
                torch.optim.AdamW(others, self.learning_rate, _ADAMW_BETAS, weight_decay=0.0)
            )

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.learning_rate * schedule(self.num_steps, self._warmup_steps, self.total_steps)

    def step(self) -> None:
        """Updates the weights and clears the gradients."""
        rate = self.rate
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        self.num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The state beside the weights that further steps depend on."""
        return {
            "num_steps": self.num_steps,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state`; raises ValueError where other optimisers made it."""
        states = state["optimizers"]
        if len(states) != len(self._optimizers):
            raise ValueError(
                f"the saved state has {len(states)} optimizers instead of "
                f"{len(self._optimizers)}: train with the options of the first run"
            )
        self.num_steps = state["num_steps"]
        for optimizer, saved in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(saved)


def make_optimizers(head: TrainableHead, options: TrainingOptions, total_steps: int) -> Optimizers:
    """Optimisers for a head's parameters that require gradients, for `total_steps` steps."""
    return Optimizers(head, options, total_steps)


def default_learning_rate(options: TrainingOptions, head: TrainableHead) -> float:
    """The default rate: for heads with layers by optimiser, else the authors' rate."""
    has_layers = options.method in _WITH_LAYERS
    return head.rate_factor * (_RATES[options.optimizer] if has_layers else _AUTHORS_RATE)


def schedule(step: int, warmup_steps: int, total_steps: int) -> float:
    """The share of the highest rate at a step, from 0: a linear rise, then half a cosine down."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon suits a parameter: one that maps states to states."""
    return parameter.ndim == 2 and _VOCABULARY.isdisjoint(name.split("."))


class Muon(torch.optim.Optimizer):
    """Muon for matrices."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """See torch.optim.Optimizer; `closure` is not called."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                momentum = state["momentum"].lerp_(matrix.grad, 1 - _MOMENTUM)
                update = orthogonalise(matrix.grad.lerp(momentum, _MOMENTUM))
                scale = _MUON_RMS * math.sqrt(max(matrix.shape))
                matrix.add_(update.to(matrix.dtype), alpha=-group["lr"] * scale)


def orthogonalise(matrix: Tensor) -> Tensor:
    """An approximate orthogonal factor of a matrix: its singular values become 0.7 to 1.2.

    Newton-Schulz steps on the Gram matrix, which is smaller than the matrix unless that is square.
    The factors of all steps are multiplied first, and applied to the matrix once.
    """
    x = matrix.float()
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    x = x / x.norm().clamp_min(1e-30)
    gram = x @ x.T
    bound = gram.norm().clamp_min(1e-30)  # no squared singular value is larger
    gram /= bound
    a, b, c = _NEWTON_SCHULZ
    product: Tensor | None = None
    for step in range(_NEWTON_SCHULZ_STEPS):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal().add_(a)
        product = factor if product is None else factor @ product
        if step + 1 < _NEWTON_SCHULZ_STEPS:
            gram = factor @ gram @ factor
    assert product is not None
    result: Tensor = (product @ x) / bound.sqrt()
    return result.T if is_tall else result
