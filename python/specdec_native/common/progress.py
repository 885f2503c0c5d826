"""Progress on standard error: bars where there is a terminal to show them, else lines of a log.

The log is `specdec_native.progress`, which the command line shows. A bar's name and counts are
whole at every width; the text beside them is cut where there is no room.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import rich.progress

_logger = logging.getLogger("specdec_native.progress")

BAR_SECONDS = 0.1  # between two looks of a progress bar
LINE_SECONDS = 30.0  # between two lines of a log
_BAR_WIDTH = 10  # in characters


def show_stage(text: str) -> None:
    """Says what a long run does next, in a line of the log."""
    _logger.info("%s", text)


class StderrHandler(logging.StreamHandler):  # type: ignore[type-arg] # no class to index in 3.10
    """Writes lines of a log to standard error, above a bar where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line to the current sys.stderr, which a bar replaces while it is shown."""
        self.setStream(sys.stderr)
        super().emit(record)


def log_progress() -> None:
    """Shows stages, and lines in place of bars, on standard error."""
    _logger.addHandler(StderrHandler())
    _logger.setLevel(logging.INFO)
    _logger.propagate = False


class Countable(Protocol):
    """A thing that a bar counts, such as a request."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""


class ProgressBar(Protocol):
    """The bar that generate() updates every BAR_SECONDS and at the end."""

    def update(self, requests: Sequence[Countable]) -> None:
        """Shows the requests' progress."""

    def close(self) -> None:
        """Takes the bar away."""


def make_progress_bar(show: bool | Callable[..., Any], total: int) -> ProgressBar:
    """A bar over `total` requests. `show` may be a factory with tqdm's arguments, as in vLLM."""
    if callable(show):
        return _TqdmBar(show, total)
    if show and total and sys.stderr.isatty():
        try:
            return _RichBar(total)
        except ImportError:
            pass
    return _NoBar()


class _NoBar:
    def update(self, requests: Sequence[Countable]) -> None:
        pass

    def close(self) -> None:
        pass


class _TqdmBar:
    def __init__(self, factory: Callable[..., Any], total: int) -> None:
        self._bar = factory(total=total, desc="Processed prompts", dynamic_ncols=True)
        self._shown = 0

    def update(self, requests: Sequence[Countable]) -> None:
        num_finished = sum(request.finished for request in requests)
        if num_finished > self._shown:
            self._bar.update(num_finished - self._shown)
            self._shown = num_finished

    def close(self) -> None:
        self._bar.close()


class _RichBar:
    def __init__(self, total: int) -> None:
        import rich.progress  # noqa: PLC0415 - optional

        self._progress = _rich_bars(
            rich.progress.MofNCompleteColumn,
            rich.progress.TimeElapsedColumn,
        )
        self._start = time.monotonic()
        self._next_update = 0.0
        self._task = self._progress.add_task("Processed prompts", total=total, text="")
        self._progress.start()

    def update(self, requests: Sequence[Countable]) -> None:
        now = time.monotonic()
        num_finished = sum(request.finished for request in requests)
        if now < self._next_update and num_finished < len(requests):
            return
        self._next_update = now + BAR_SECONDS
        num_tokens = sum(request.num_output_tokens for request in requests)
        speed = f"{num_tokens / max(now - self._start, 1e-9):.1f} tokens/s"
        self._progress.update(self._task, completed=num_finished, text=speed)

    def close(self) -> None:
        self._progress.stop()


class StepBar(Protocol):
    """Shows the steps of a long run."""

    def update(self, done: int, text: str) -> None:
        """`done` steps are done; `text` says how they went."""

    def close(self) -> None:
        """Takes the bar away."""


def make_step_bar(name: str, total: int) -> StepBar:
    """A bar over `total` steps; 0 if their number is not known.

    Where there is no terminal, a line is logged every LINE_SECONDS.
    """
    if sys.stderr.isatty():
        try:
            return _RichStepBar(name, total)
        except ImportError:
            pass
    return _StepLines(name, total)


class _StepLines:
    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._next_line = 0.0

    def update(self, done: int, text: str) -> None:
        now = time.monotonic()
        if now >= self._next_line or done == self._total:
            self._next_line = now + LINE_SECONDS
            total = f" of {self._total}" if self._total else ""
            _logger.info("%s %d%s: %s", self._name, done, total, text)

    def close(self) -> None:
        pass


class _RichStepBar:
    def __init__(self, name: str, total: int) -> None:
        import rich.progress  # noqa: PLC0415 - optional

        self._progress = _rich_bars(
            rich.progress.MofNCompleteColumn,
            rich.progress.TimeElapsedColumn,
            rich.progress.TimeRemainingColumn,
        )
        self._task = self._progress.add_task(name, total=total or None, text="")
        self._progress.start()

    def update(self, done: int, text: str) -> None:
        self._progress.update(self._task, completed=done, text=text)

    def close(self) -> None:
        self._progress.stop()


@contextmanager
def show_bytes() -> Iterator[Callable[[int, int, str], None]]:
    """A callback (bytes done, bytes in all or 0, phase) for downloads and conversions.

    Draws bars on a terminal; elsewhere the beginning of each phase is logged.
    """
    if not sys.stderr.isatty():
        yield _PhaseLog()
        return
    try:
        bars = _RichByteBars()
    except ImportError:
        yield _PhaseLog()
        return
    try:
        yield bars
    finally:
        bars.close()


class _PhaseLog:
    def __init__(self) -> None:
        self._phase = ""

    def __call__(self, done_bytes: int, total_bytes: int, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            size = f" ({total_bytes / 1e6:.0f} MB)" if total_bytes else ""
            _logger.info("%s%s", phase, size)


class _RichByteBars:
    def __init__(self) -> None:
        import rich.progress  # noqa: PLC0415 - optional

        self._bars = _rich_bars(
            rich.progress.DownloadColumn,
            rich.progress.TransferSpeedColumn,
        )
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def __call__(self, done_bytes: int, total_bytes: int, phase: str) -> None:
        if not self._tasks:
            self._bars.start()
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, text="")
        self._bars.update(self._tasks[phase], completed=done_bytes, total=total_bytes or None)

    def close(self) -> None:
        self._bars.stop()


def _rich_bars(
    *figures: Callable[..., rich.progress.ProgressColumn],
) -> rich.progress.Progress:
    """Bars on standard error that leave nothing behind. Raises ImportError.

    A bar's name and its first figure are never cut; its field `text` is cut first.
    """
    import rich.console  # noqa: PLC0415 - optional
    import rich.progress  # noqa: PLC0415
    import rich.table  # noqa: PLC0415

    counts, *others = figures
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(_BAR_WIDTH),
        counts(table_column=rich.table.Column(no_wrap=True)),
        *(make() for make in others),
        rich.progress.TextColumn(
            "{task.fields[text]}",
            markup=False,
            table_column=rich.table.Column(no_wrap=True, ratio=1),
        ),
    )
    console = rich.console.Console(stderr=True)
    return rich.progress.Progress(*columns, console=console, transient=True, expand=True)
