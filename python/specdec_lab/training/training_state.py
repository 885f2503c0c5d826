"""The progress of a training."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from specdec_lab.training.predicted_acceptance import Acceptance


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of one optimiser step.

    Attributes:
        step: counts from 1.
        epoch: passes over the examples so far, with a fraction.
        loss: the loss of all depths, with decaying weights.
        depth_losses: the mean of each depth's rows.
        depth_matches: share of each depth's rows whose most likely token is the target's.
        gradient_norm: before it was clipped.
        learning_rate: the learning rate of the step.
        num_tokens: answer tokens that were trained on, at depth 0.
        seconds: the step's duration.
    """

    step: int
    epoch: float
    loss: float
    depth_losses: list[float]
    depth_matches: list[float]
    gradient_norm: float
    learning_rate: float
    num_tokens: int
    seconds: float


@dataclasses.dataclass
class Course:
    """The history of a training.

    Attributes:
        step: optimiser steps done.
        num_tokens: answer tokens trained on, repetitions included.
        seconds: spent in steps.
        evaluations: (step, tokens trained on, acceptance) of each.
        best: index in `evaluations`; -1 before the first one.
        best_weights: the head's trained parameters at that time.
        is_stopped: whether patience has ended it.
    """

    step: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    evaluations: list[tuple[int, int, Acceptance]] = dataclasses.field(default_factory=list)
    best: int = -1
    best_weights: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    is_stopped: bool = False
