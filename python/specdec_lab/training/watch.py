"""The first process' work beside each step: the log, the progress bar and checkpoints."""

from __future__ import annotations

import logging

from specdec_lab.training.checkpoint import Checkpoints, Saved, Timer, TrainingLog
from specdec_lab.training.outdir import OutDirectory
from specdec_lab.training.prepare import Begun
from specdec_lab.training.trainer import Trainer
from specdec_lab.training.training_options import TrainingOptions
from specdec_lab.training.training_report import number_text
from specdec_lab.training.training_state import StepResult
from specdec_native.common.progress import make_step_bar

_logger = logging.getLogger("specdec_native")


class Watcher:
    """Follows one training."""

    def __init__(
        self,
        out: OutDirectory,
        trainer: Trainer,
        options: TrainingOptions,
        begun: Begun,
        log_bytes: int,
    ) -> None:
        """The log is cut to `log_bytes`. A new training is saved at once."""
        self._trainer = trainer
        self._options = options
        self._begun = begun
        self._checkpoints = Checkpoints(out.checkpoints)
        self._log = TrainingLog(out.log, log_bytes)
        self._timer = Timer(options.checkpoint_minutes)
        self._bar = make_step_bar("training step", trainer.num_steps)
        if trainer.course.step == 0:
            self.save()

    def on_evaluating(self) -> None:
        """Tells the user why steps pause."""
        self._bar.update(self._trainer.course.step, "evaluating")

    def on_step(self, result: StepResult) -> None:
        """Logs a step; saves when a checkpoint is due and at the end."""
        course = self._trainer.course
        self._log.write({**vars(result), "tokens": course.num_tokens})
        rate = course.num_tokens / max(course.seconds, 1e-9)
        self._bar.update(
            result.step,
            f"loss {result.loss:.3f}, right at depth 1 {result.depth_matches[0]:.3f}, "
            f"rate {number_text(result.learning_rate)}, {rate:.0f} tokens/s",
        )
        if self._trainer.is_finished or self._timer.is_due():
            self.save()

    def on_evaluation(self) -> None:
        """Logs the latest evaluation."""
        step, tokens, acceptance = self._trainer.course.evaluations[-1]
        self._log.write(
            {
                "step": step,
                "tokens": tokens,
                "proposed": acceptance.proposed,
                "accepted": acceptance.accepted,
                "rates": acceptance.rates,
                "tokens_per_step": acceptance.tokens_per_step,
            }
        )
        rates = ", ".join(f"{rate:.3f}" for rate in acceptance.rates)
        _logger.info(
            "step %d: %.3f tokens a step; positions 1 to %d accepted in shares of %s",
            *(step, acceptance.tokens_per_step, len(acceptance.rates), rates),
        )

    def save(self) -> None:
        """Writes a checkpoint."""
        saved = Saved(
            self._options, self._begun.to_dict(), self._trainer.state_dict(), self._log.num_bytes()
        )
        self._checkpoints.save(saved, self._trainer.course.step)

    def close(self) -> None:
        """Ends log and bar."""
        self._bar.close()
        self._log.close()
