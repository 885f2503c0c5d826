"""Examines a head: its tensors, what is accepted of its drafts, and other readings of its files."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.doctor.acceptance import Acceptance, Interval, Prompts, measure
from specdec_lab.doctor.checkpoint import Checkpoint, Target
from specdec_lab.doctor.drafts import check_drafts
from specdec_lab.doctor.findings import Finding, Report, Trial, fault
from specdec_lab.doctor.reading import Reading, Variant
from specdec_lab.doctor.readings import READINGS
from specdec_lab.doctor.tensors import check_tensors

_MOST_ROUNDS = 3  # faults that are mended one after the other
_MOST_CONFIRMED = 3  # readings of a round that are measured again
_LEAST_GAIN = 0.01  # of the share of drafted tokens; less is not worth a change
_LEAST_RATIO = 0.03  # of the gain to the share
_LONGER = (1, 4)  # answers by which a gain is confirmed, as multiples of those that found it

_REFUSALS = (ValueError, RuntimeError, MemoryError, OSError)


@dataclasses.dataclass(frozen=True)
class Question:
    """What is examined, and how.

    Attributes:
        target: the target's directory.
        drafter: the head's keys of a speculative_config, without "model".
        head: the head's files.
        prompts: token ids; the first third is for finding readings, the rest for confirming them.
        depth: drafts of each step.
        max_tokens: tokens of each answer.
        engine_options: keyword arguments of Engine.
    """

    target: Path
    drafter: Mapping[str, Any]
    head: Checkpoint
    prompts: Prompts
    depth: int
    max_tokens: int
    engine_options: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The method that the head drafts by."""
        return str(self.drafter["method"])


@dataclasses.dataclass(frozen=True)
class Measured:
    """A head and its acceptance; None where the engine refuses it, and why."""

    head: Checkpoint
    acceptance: Acceptance | None
    refused: str = ""


@dataclasses.dataclass
class Examination:
    """Examines one head.

    Attributes:
        question: what is examined.
        report: what was found so far.
        mended: the head with all confirmed readings; None while there are none.
        on_trial: called with what is about to be measured.
    """

    question: Question
    report: Report
    on_trial: Callable[[str], None] = lambda _: None
    readings: Sequence[Reading] = READINGS
    mended: Checkpoint | None = None

    def run(self) -> Report:
        """Fills the report and returns it."""
        start = time.perf_counter()
        question, findings = self.question, self.report.findings
        findings += check_tensors(question.head)
        current = self._measured("the head as it stands", question.head, self._screening)
        self.report.trials.append(_trial(0, None, current, None))
        if current.refused:
            findings.append(fault("the engine", f"it refuses the head: {current.refused}"))
        target = Target.read(question.target)
        for number in range(1, _MOST_ROUNDS + 1):
            better = self._round(number, current, target)
            if better is None:
                break
            current = self._measured("the mended head", better.head, self._screening)
            self.mended = better.head
            findings.append(self._of_reading(better))
        if current.acceptance is not None:
            findings += check_drafts(current.acceptance, is_mended=self.mended is not None)
        self.report.seconds = time.perf_counter() - start
        return self.report

    # -- measuring

    @property
    def _screening(self) -> Prompts:
        return self.question.prompts[: len(self.question.prompts) // 3]

    @property
    def _confirming(self) -> Prompts:
        return self.question.prompts[len(self.question.prompts) // 3 :]

    def _measured(self, what: str, head: Checkpoint, prompts: Prompts, longer: int = 1) -> Measured:
        """Writes a head to a folder of its own and has the engine load it, as a user would."""
        self.on_trial(what)
        question = self.question
        with tempfile.TemporaryDirectory(prefix="specdec-doctor-") as folder:
            directory = head.write(Path(folder) / "head", link=True)
            try:
                acceptance = measure(
                    question.target,
                    {**question.drafter, "model": str(directory)},
                    prompts,
                    depth=question.depth,
                    max_tokens=longer * question.max_tokens,
                    engine_options=question.engine_options,
                )
            except _REFUSALS as error:
                text = " ".join(str(error).split()) or type(error).__name__
                return Measured(head, None, text.replace(f"{directory}", "HEAD"))
        return Measured(head, acceptance)

    def _round(self, number: int, current: Measured, target: Target) -> Variant | None:
        """The reading that raises acceptance most, if one does so twice."""
        tried: list[tuple[Interval, int, Variant]] = []
        for reading, variant in self._variants(current.head, target):
            measured = self._measured(variant.label, variant.head, self._screening)
            gain = _gain(measured, current)
            if gain is not None:
                tried.append((gain, len(self.report.trials), variant))
            self.report.trials.append(_trial(number, (reading, variant), measured, gain))
        tried.sort(key=lambda entry: -entry[0].value)
        for gain, index, variant in tried[:_MOST_CONFIRMED]:
            if gain.value < _LEAST_GAIN:
                break
            found = self._confirmed(current.head, variant)
            if found is not None:
                trial = self.report.trials[index]
                self.report.trials[index] = dataclasses.replace(trial, **found, is_confirmed=True)
                return variant
        return None

    def _confirmed(self, head: Checkpoint, variant: Variant) -> dict[str, Any] | None:
        """The figures of a variant in other answers, if it is accepted more there, too."""
        for longer in _LONGER:
            base = self._measured("the head, in other answers", head, self._confirming, longer)
            other = self._measured(
                f"{variant.label}, in other answers", variant.head, self._confirming, longer
            )
            gain = _gain(other, base)
            if gain is None or gain.high < _LEAST_GAIN:
                return None
            share = 0.0 if base.acceptance is None else base.acceptance.share.value
            if gain.low > 0 and gain.value >= max(_LEAST_GAIN, _LEAST_RATIO * share):
                return {"gain": dataclasses.astuple(gain), **_figures(other)}
        return None

    def _variants(self, head: Checkpoint, target: Target) -> Iterator[tuple[Reading, Variant]]:
        for reading in self.readings:
            if self.question.method in reading.methods:
                for variant in reading.variants(head, target):
                    yield reading, variant

    def _of_reading(self, variant: Variant) -> Finding:
        trial = next(
            t for t in reversed(self.report.trials) if t.is_confirmed and t.label == variant.label
        )
        gain, low, high = trial.gain or (0.0, 0.0, 0.0)
        return fault(
            variant.label,
            f"read so, {trial.share:.1%} of the answers' tokens are drafted, "
            f"{100 * gain:+.1f} points (99%: {100 * low:+.1f} to {100 * high:+.1f})",
            variant.change,
        )


def _gain(measured: Measured, base: Measured) -> Interval | None:
    """How much more is accepted; all of it, where the engine refuses the other head."""
    if measured.acceptance is None:
        return None
    if base.acceptance is None:
        return measured.acceptance.share
    return measured.acceptance.gain_over(base.acceptance)


def _figures(measured: Measured) -> dict[str, Any]:
    acceptance = measured.acceptance
    if acceptance is None:
        return {"refused": measured.refused}
    return {
        "share": acceptance.share.value,
        "tokens_per_step": acceptance.tokens_per_step,
        "by_depth": tuple(acceptance.by_depth),
    }


def _trial(
    number: int, read: tuple[Reading, Variant] | None, measured: Measured, gain: Interval | None
) -> Trial:
    return Trial(
        number,
        "" if read is None else read[0].name,
        "as it stands" if read is None else read[1].label,
        gain=None if gain is None else dataclasses.astuple(gain),
        **_figures(measured),
    )
