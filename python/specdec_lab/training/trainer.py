"""The loop that trains a head. It knows heads, batches and optimisers, but no files."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_lab.training.batch import Batch
from specdec_lab.training.batch_order import BatchOrder, cut
from specdec_lab.training.distributed import Ranks
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.heads.base import TrainableHead
from specdec_lab.training.loader import Examples, Loader
from specdec_lab.training.losses import ROW_LOSSES, score
from specdec_lab.training.optimizers import Optimizers
from specdec_lab.training.predicted_acceptance import Acceptance
from specdec_lab.training.training_options import TrainingOptions
from specdec_lab.training.training_state import Course, StepResult

_NAMED_EXAMPLES = 8  # in a message


class Trainer:
    """Trains one head on the examples of a plan; alone, or as one of several ranks."""

    def __init__(
        self,
        head: TrainableHead,
        optimizers: Optimizers,
        examples: Examples,
        order: BatchOrder,
        options: TrainingOptions,
        *,
        ranks: Ranks | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        """`head` is on the training device. `autocast` is the dtype of matrix products."""
        self.course = Course()
        self._head = head
        self._optimizers = optimizers
        self._order = order
        self._options = options
        self._ranks = ranks or Ranks()
        self._autocast = autocast
        self._device = head.draft_ids.device
        self._row_loss = ROW_LOSSES[options.loss]()
        self._target_lm_head = head.target.lm_head[head.draft_ids].to(autocast or torch.float32)
        self._is_drafted = torch.zeros(
            len(head.target.lm_head), dtype=torch.bool, device=self._device
        )
        self._is_drafted[head.draft_ids] = True
        self._loader = Loader(examples, self._parts, options.max_length, self._device)
        count = max(1, min(options.evaluations, order.num_steps))
        self._evaluation_steps = {round(order.num_steps * (i + 1) / count) for i in range(count)}

    @property
    def num_steps(self) -> int:
        """Steps of the whole training, unless patience ends it earlier."""
        return self._order.num_steps

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done, or patience has ended."""
        return self.course.is_stopped or self.course.step >= self._order.num_steps

    def run(
        self,
        evaluate: Callable[[], Acceptance],
        on_step: Callable[[StepResult], None] = lambda _: None,
        on_evaluation: Callable[[], None] = lambda: None,
    ) -> None:
        """Trains to the end, from the loaded state if there is one.

        `evaluate` measures the head and returns the same in all ranks. `on_step` is called after
        each step and its evaluation, and may save.

        Raises TrainingError where a loss or gradient is not finite.
        """
        while not self.is_finished:
            result = self.step()
            if self.course.step in self._evaluation_steps:
                self._record(evaluate())
                on_evaluation()
            on_step(result)

    def step(self) -> StepResult:
        """One optimiser step."""
        begin = time.monotonic()
        batches = self._loader.take(self.course.step, self._order.num_steps)
        counted = [self._counted(batch) for batch in batches]
        num_depths = self._head.trained_depth = self._depths_now()
        # A row of depth d is at least d places after the first token that has a feature.
        num_positions = [[int(c[:, 1 + d :].sum()) for c in counted] for d in range(num_depths)]
        totals = self._ranks.sum(torch.tensor([sum(row) for row in num_positions])).tolist()
        sums = torch.zeros(3, num_depths, dtype=torch.float64)
        for i, (batch, is_counted) in enumerate(zip(batches, counted, strict=True)):
            sums += self._backward(i, batch, is_counted, [row[i] for row in num_positions], totals)
        losses, matches, rows = self._ranks.sum(sums).tolist()
        depth_losses = [loss / max(total, 1) for loss, total in zip(losses, totals, strict=True)]
        loss = sum(self._options.depth_decay**d * depth for d, depth in enumerate(depth_losses))
        self._require_finite("loss", loss)
        self._ranks.sum_gradients(self._trained().values())
        norm = float(
            torch.nn.utils.clip_grad_norm_(
                self._trained().values(), self._options.clip_norm or math.inf
            )
        )
        self._require_finite("gradient", norm)
        rate = self._optimizers.rate
        self._optimizers.step()
        index = self._order.index_of(self.course.step)
        self.course.step += 1
        self.course.num_tokens += round(totals[0])
        seconds = time.monotonic() - begin
        self.course.seconds += seconds
        return StepResult(
            step=self.course.step,
            epoch=index.epoch + (index.batch + 1) / self._order.steps_of_epoch(index.epoch),
            loss=loss,
            depth_losses=depth_losses,
            depth_matches=[m / max(r, 1) for m, r in zip(matches, rows, strict=True)],
            gradient_norm=norm,
            learning_rate=rate,
            num_tokens=round(totals[0]),
            seconds=seconds,
        )

    def state_dict(self) -> dict[str, Any]:
        """The state that the rest of the training depends on: tensors, numbers and strings."""
        course = self.course
        evaluations = [(s, n, dataclasses.asdict(a)) for s, n, a in course.evaluations]
        return {
            "weights": {name: p.detach() for name, p in self._trained().items()},
            "optimizers": self._optimizers.state_dict(),
            "course": {**vars(course), "evaluations": evaluations},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state_dict()."""
        self._load_weights(state["weights"])
        self._optimizers.load_state_dict(state["optimizers"])
        course = state["course"]
        evaluations = [(s, n, Acceptance(**a)) for s, n, a in course["evaluations"]]
        self.course = Course(**{**course, "evaluations": evaluations})

    def load_best(self) -> None:
        """Gives the head the weights of its best evaluation."""
        if self.course.best >= 0:
            self._load_weights(self.course.best_weights)

    def _backward(
        self,
        index: int,
        batch: Batch,
        is_counted: Tensor,
        num_positions: Sequence[int],
        totals: Sequence[float],
    ) -> Tensor:
        """Adds the gradients of a micro-batch; returns sums of loss, matches and rows, [3, depth].

        If a head trains only some places at a depth, their mean represents all places.
        """
        generator = torch.Generator(self._device).manual_seed(self._draw_seed(index))
        is_bfloat16 = self._autocast is not None
        with torch.autocast(self._device.type, self._autocast, enabled=is_bfloat16):
            outputs = self._head.outputs(batch, generator)
        hidden = batch.final_hidden.flatten(0, 1)
        depths = score(
            outputs,
            hidden,
            self._target_lm_head,
            is_counted.flatten(),
            self._row_loss,
        )
        losses = [
            depth.loss * (count / max(depth.num_rows, 1))
            for depth, count in zip(depths, num_positions, strict=True)
        ]
        weighted = [
            loss * (self._options.depth_decay**d / max(totals[d], 1.0))
            for d, loss in enumerate(losses)
        ]
        torch.stack(weighted).sum().backward()  # type: ignore[no-untyped-call]
        return torch.tensor(
            [
                [float(loss.detach()) for loss in losses],
                [depth.num_matches for depth in depths],
                [depth.num_rows for depth in depths],
            ],
            dtype=torch.float64,
        )

    def _depths_now(self) -> int:
        """Depths that are trained in this step."""
        num_shallow = round(self._options.shallow * self._order.num_steps)
        is_shallow = self._head.depths_go_on and self.course.step < num_shallow
        return 1 if is_shallow else self._head.max_depth

    def _draw_seed(self, index: int) -> int:
        """The seed of a head's random choices for a micro-batch of this step."""
        numbers = [self._options.seed, self.course.step, self._ranks.rank, index]
        return int(np.random.SeedSequence(numbers).generate_state(1)[0])

    def _counted(self, batch: Batch) -> Tensor:
        """Places whose next token belongs to an answer and is in the draft vocabulary."""
        counted = batch.is_scored
        counted[:, :-1] &= self._is_drafted[batch.token_ids[:, 1:]]
        return counted

    def _record(self, acceptance: Acceptance) -> None:
        course = self.course
        course.evaluations.append((course.step, course.num_tokens, acceptance))
        latest = len(course.evaluations) - 1
        best = course.evaluations[course.best][2] if course.best >= 0 else None
        if best is None or acceptance.tokens_per_step > best.tokens_per_step:
            course.best = latest
            course.best_weights = {n: p.detach().clone() for n, p in self._trained().items()}
        patience = self._options.patience
        course.is_stopped = 0 < patience <= latest - course.best

    def _parts(self, step: int) -> list[list[int]]:
        """The micro-batches of this rank."""
        batch = self._ranks.part(self._order.batch(step))
        limit = self._options.micro_batch_tokens
        if not batch:
            return []
        return cut(batch, self._order.lengths, limit) if limit else [batch]

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        return {n: p for n, p in self._head.named_parameters() if p.requires_grad}

    def _load_weights(self, weights: dict[str, Tensor]) -> None:
        trained = self._trained()
        with torch.no_grad():
            for name, tensor in weights.items():
                trained[name].copy_(tensor)

    def _require_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        examples = self._order.batch(self.course.step)
        shown = ", ".join(map(str, examples[:_NAMED_EXAMPLES]))
        num_more = len(examples) - _NAMED_EXAMPLES
        more = f" and {num_more} more" if num_more > 0 else ""
        raise TrainingError(
            f"the {what} of step {self.course.step + 1} is {value}, with the examples {shown}"
            f"{more}: take a lower --learning-rate; the last checkpoint is as it was"
        )
