"""Examines a head: its tensors, what is accepted of its drafts, and other readings of its files."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.doctor.acceptance import Acceptance, Interval, Prompts, measure
from specdec_lab.doctor.belonging import check_belonging
from specdec_lab.doctor.checkpoint import Checkpoint, Target
from specdec_lab.doctor.drafts import check_drafts
from specdec_lab.doctor.findings import Finding, Report, Trial, fault
from specdec_lab.doctor.reading import Reading, Variant
from specdec_lab.doctor.readings import READINGS
from specdec_lab.doctor.tensors import check_tensors

_MOST_CONFIRMED = 3  # readings of a round that are measured again
_MOST_FIRSTS = 3  # readings to which a second one is added, where none is enough
_LEAST_GAIN = 0.01  # of the share of drafted tokens; less is not worth a change
_LEAST_RATIO = 0.03  # of the gain to the share
_LEAST_SHARE = 0.05  # of drafted tokens, of a head that works at all
_SHORTER = 1 / 3  # answers in which readings of a head are tried that does not work at all
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

    @property
    def share(self) -> float:
        """Of the answers' tokens, those that came from drafts."""
        return 0.0 if self.acceptance is None else self.acceptance.share.value


@dataclasses.dataclass(frozen=True)
class Tried:
    """A reading that was measured; `index` is its trial's, `gain` None where it was refused."""

    variant: Variant
    measured: Measured
    gain: Interval | None
    index: int

    @property
    def value(self) -> float:
        """The gain, below any where there is none."""
        return -1.0 if self.gain is None else self.gain.value


@dataclasses.dataclass
class Examination:
    """Examines one head.

    Attributes:
        question: what is examined.
        report: what was found so far.
        mended: the head with all confirmed readings; None while there are none.
        on_trial: called with what is about to be measured.
        rounds: faults of reading that are looked for, each in the head that the one before mends.
    """

    question: Question
    report: Report
    on_trial: Callable[[str], None] = lambda _: None
    rounds: int = 3
    readings: Sequence[Reading] = READINGS
    mended: Checkpoint | None = None

    def run(self) -> Report:
        """Fills the report and returns it."""
        start = time.perf_counter()
        question, findings = self.question, self.report.findings
        target = Target.read(question.target)
        findings += check_tensors(question.head)
        is_lost = any(finding.is_final for finding in findings)
        findings += check_belonging(question.head, target, question.method)
        current = self._measured("the head as it stands", question.head, self._screening)
        self.report.trials.append(_trial(0, None, current, None))
        if current.refused:
            findings.append(fault("the engine", f"it refuses the head: {current.refused}"))
        for number in range(1, 1 if is_lost else 1 + self.rounds):
            tried = self._tried(number, current, target)
            better = self._best(current, tried)
            if better is None and current.share < _LEAST_SHARE:
                better = self._best_pair(number + 1, current, tried, target)
            if better is None:
                break
            self.mended = better.head
            current = self._measured("the mended head", better.head, self._screening)
        if current.acceptance is not None and not is_lost:
            is_mended = self.mended is not None
            findings += check_drafts(current.acceptance, current.head, is_mended=is_mended)
        self.report.seconds = time.perf_counter() - start
        return self.report

    # -- measuring

    @property
    def _screening(self) -> Prompts:
        return self.question.prompts[: len(self.question.prompts) // 3]

    @property
    def _confirming(self) -> Prompts:
        return self.question.prompts[len(self.question.prompts) // 3 :]

    def _measured(
        self, what: str, head: Checkpoint, prompts: Prompts, length: float = 1
    ) -> Measured:
        """Writes a head to a folder of its own and has the engine load it, as a user would.

        length: of the answers, as a multiple of what was asked for.
        """
        self.on_trial(what)
        question = self.question
        with tempfile.TemporaryDirectory(prefix="specdec-doctor-") as folder:
            directory = head.write(Path(folder) / "head", link=True)
            try:
                with _quiet():
                    acceptance = measure(
                        question.target,
                        {**question.drafter, "model": str(directory)},
                        prompts,
                        depth=question.depth,
                        max_tokens=round(length * question.max_tokens),
                        engine_options=question.engine_options,
                    )
            except _REFUSALS as error:
                text = " ".join(str(error).split()) or type(error).__name__
                return Measured(head, None, text.replace(f"{directory}", "HEAD"))
        return Measured(head, acceptance)

    def _tried(self, number: int, current: Measured, target: Target) -> list[Tried]:
        """Every reading of a head, measured, the most accepted first."""
        tried = []
        base, length = current, 1.0
        if current.share < _LEAST_SHARE:  # what mends such a head shows in a few tokens
            length = _SHORTER
            base = self._measured(
                "the head, in short answers", current.head, self._screening, length
            )
        for reading in self.readings:
            if self.question.method not in reading.methods:
                continue
            for variant in reading.variants(current.head, target):
                measured = self._measured(variant.label, variant.head, self._screening, length)
                gain = _gain(measured, base)
                tried.append(Tried(variant, measured, gain, len(self.report.trials)))
                self.report.trials.append(_trial(number, (reading, variant), measured, gain))
        return sorted(tried, key=lambda one: -one.value)

    def _best(self, current: Measured, tried: Sequence[Tried]) -> Variant | None:
        """The reading that raises acceptance most, if one does so again in other answers."""
        bases: dict[int, Measured] = {}
        for one in tried[:_MOST_CONFIRMED]:
            if one.value < _LEAST_GAIN:
                break
            gain = self._confirm(current.head, one.variant, bases)
            if gain is not None:
                trial = self.report.trials[one.index]
                found = dataclasses.replace(trial, confirmed=dataclasses.astuple(gain))
                self.report.trials[one.index] = found
                return one.variant
        return None

    def _best_pair(
        self, number: int, current: Measured, tried: Sequence[Tried], target: Target
    ) -> Variant | None:
        """Two readings that raise acceptance together, where neither does alone: the first is one
        of those that came nearest, or by which the engine refuses the head for another reason."""
        loads = [one for one in tried if one.measured.refused != current.refused]
        firsts = loads if current.refused else [one for one in tried if one.value > 0]
        for first in firsts[:_MOST_FIRSTS]:
            seconds = self._tried(number, first.measured, target)
            better = self._best(first.measured, seconds)
            if better is not None:
                text = "nothing is gained without this reading"
                change = first.variant.change
                self.report.findings.append(fault(first.variant.label, text, change))
                return better
        return None

    def _confirm(
        self, head: Checkpoint, variant: Variant, bases: dict[int, Measured]
    ) -> Interval | None:
        """What a variant gains in other answers, if it does; `bases` keeps what the head itself
        came to in them."""
        for longer in _LONGER:
            if longer not in bases:
                bases[longer] = self._measured(
                    "the head, in other answers", head, self._confirming, longer
                )
            base = bases[longer]
            other = self._measured(
                f"{variant.label}, in other answers", variant.head, self._confirming, longer
            )
            gain = _gain(other, base)
            if gain is None or other.share < _LEAST_SHARE or gain.high < _LEAST_GAIN:
                return None
            if gain.low > 0 and gain.value >= max(_LEAST_GAIN, _LEAST_RATIO * base.share):
                self.report.findings.append(_of_reading(variant, base.share, other.share, gain))
                return gain
        return None


def _of_reading(variant: Variant, before: float, after: float, gain: Interval) -> Finding:
    low, high = 100 * gain.low, 100 * gain.high
    return fault(
        variant.label,
        f"read so, {after:.1%} in place of {before:.1%} of other answers' tokens are drafted "
        f"({low:+.1f} to {high:+.1f} points, 99%)",
        variant.change,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what the engine says of each head out of the log."""
    logger = logging.getLogger("specdec_native")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


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
