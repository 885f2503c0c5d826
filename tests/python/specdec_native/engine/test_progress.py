"""Bars at the width of a terminal, and lines of a log where there is none."""

import io
import logging
import re
import sys
from collections.abc import Callable

import pytest

from specdec_native.common import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What was drawn, without colours and movements."""
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return [line.rstrip() for line in re.split(r"[\r\n]+", drawn) if line.strip()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Terminal]:
    def make(columns: int) -> Terminal:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        made = Terminal()
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return make


class Finished:
    finished = True
    num_output_tokens = 12345


LONG = "loss 12.345, right at depth 1 0.123, rate 1.23e-4, 123456 tokens/s, and more of it"


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_a_bar_cuts_neither_its_name_nor_its_counts(
    terminal: Callable[[int], Terminal], columns: int
) -> None:
    shown = terminal(columns)
    bar = progress.make_step_bar("training step", 500_000)
    bar.update(123_456, LONG)
    bar.close()
    assert shown.lines and max(map(len, shown.lines)) <= columns
    assert shown.lines[-1].startswith("training step") and " 123456/500000 " in shown.lines[-1]
    assert "loss 12.345" in shown.lines[-1] or columns < 80

    shown = terminal(columns)
    requests = progress.make_progress_bar(True, 1000)
    requests.update([Finished() for _ in range(1000)])
    requests.close()
    assert "Processed prompts" in shown.lines[-1] and "1000/1000" in shown.lines[-1]

    shown = terminal(columns)
    with progress.show_bytes() as show:
        show(123_400_000, 269_100_000, "download")
    assert "download" in shown.lines[-1] and "123.4/269.1 MB" in shown.lines[-1]


def test_a_line_of_the_log_stands_above_a_bar(terminal: Callable[[int], Terminal]) -> None:
    shown = terminal(80)
    handler = progress.StderrHandler()  # made before the bar
    bar = progress.make_step_bar("step", 4)
    bar.update(2, "")
    handler.emit(logging.makeLogRecord({"msg": "evaluated"}))
    bar.close()
    lines = [re.sub(r"^[\d:]* ", "", line) for line in shown.lines]
    assert "evaluated" in lines
    assert lines[-1].startswith("step") and "2/4" in lines[-1]


def test_without_a_terminal_there_are_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "specdec_native.progress"):
        progress.show_stage("training")
        bar = progress.make_step_bar("step", 4)
        for done in range(1, 5):
            bar.update(done, "fine")
        bar.close()
    assert caplog.messages == ["training", "step 1 of 4: fine", "step 4 of 4: fine"]
