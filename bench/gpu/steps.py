"""Steps of a report: run in order, each within its time, results kept whatever comes after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Data = dict[str, Any]

LOG = "log.txt"  # what all programs say, each line behind the name of what was run


class NotRunError(Exception):
    """A step cannot run here; the message says what is missing."""


class FailedError(Exception):
    """A step ran and found something wrong. `data` is what it has all the same."""

    def __init__(self, message: str, data: Data | None = None) -> None:
        super().__init__(message)
        self.data = data or {}


@dataclass
class Context:
    """What the steps of a report share."""

    root: Path  # of the repository
    build: Path
    out: Path  # report.json, report.md and log.txt
    scratch: Path  # large files: checkpoints with random weights
    beside: list[Path]  # what was carried here; see carried.py
    device: str = "cuda"  # or "emulated"
    smoke: bool = False
    checkpoint: Path | None = None  # of real weights, and a draft for them
    draft_checkpoint: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    deadline: float | None = None  # of the step under way, as time.monotonic()

    def remaining(self) -> float:
        """Seconds the step under way still has; an hour outside of steps."""
        return 3600.0 if self.deadline is None else max(1.0, self.deadline - time.monotonic())

    def need_gpu(self) -> None:
        """Raises NotRunError on the emulated device."""
        if self.device != "cuda":
            raise NotRunError("no GPU")


@dataclass(frozen=True)
class Step:
    """A part of the report."""

    name: str
    title: str
    seconds: float  # that it may take
    run: Callable[[Context], Data]


@dataclass
class Finished:
    """A program that ended, or was ended at its limit."""

    status: int | None  # None: cut at the limit
    output: str

    @property
    def cut(self) -> bool:
        """Whether it ran out of time."""
        return self.status is None


def execute(
    context: Context,
    name: str,
    command: Sequence[str | os.PathLike[str]],
    *,
    limit: float | None = None,
    show: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Runs a program until the step's time is over; its output is shown and kept in the log."""
    seconds = context.remaining() if limit is None else min(limit, context.remaining())
    context.out.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=context.root,
        env=os.environ | context.environment | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    cut = threading.Event()

    def end() -> None:
        cut.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    lines = []
    try:
        assert process.stdout is not None
        with (context.out / LOG).open("a", buffering=1) as log:
            for line in process.stdout:
                lines.append(line)
                log.write(f"[{name}] {line}")
                if show:
                    print("   ", line, end="", flush=True)
        status = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:  # this program is being ended itself
            os.killpg(process.pid, signal.SIGKILL)
    return Finished(None if cut.is_set() else status, "".join(lines))


def measured(
    context: Context, name: str, command: Sequence[str | os.PathLike[str]], **options: Any
) -> Data:
    """Runs a program that writes the JSON file --json=... after every measurement; returns that.

    What a program that was cut or failed had measured is kept.
    """
    path = context.out / "under-way.json"
    path.unlink(missing_ok=True)
    finished = execute(context, name, [*command, f"--json={path}"], **options)
    data: Data = {}
    if path.is_file():
        try:
            data = json.loads(path.read_text())
        except ValueError:  # it was ended while it wrote
            data = {}
        path.unlink()
    if finished.status == NOT_AVAILABLE:
        raise NotRunError(finished.output.strip().splitlines()[-1].removeprefix("not run: "))
    if finished.cut:
        return data | {"cut": True}
    if finished.status != 0:
        last = finished.output.strip().splitlines()[-1:] or ["no output"]
        raise FailedError(f"exit status {finished.status}: {last[0]}", data)
    return data


NOT_AVAILABLE = 3  # exit status of a benchmark without its device


def run_step(step: Step, context: Context, budget: float) -> Data:
    """Runs one step and says how it went: its entry in the report."""
    print(f"== {step.title} (up to {min(step.seconds, budget):.0f} s)", flush=True)
    begin = time.monotonic()
    context.deadline = begin + min(step.seconds, budget)
    entry: Data
    try:
        data = step.run(context)
        entry = {"status": "cut" if data.pop("cut", False) else "done", "data": data}
    except NotRunError as error:
        entry = {"status": "not run", "note": str(error), "data": {}}
    except FailedError as error:
        entry = {"status": "failed", "note": str(error), "data": error.data}
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        entry = {"status": "failed", "note": f"{type(error).__name__}: {error}", "data": {}}
    entry["seconds"] = round(time.monotonic() - begin, 1)
    note = f": {entry['note']}" if "note" in entry else ""
    print(f"== {step.title}: {entry['status']}{note} ({entry['seconds']} s)", flush=True)
    return entry
