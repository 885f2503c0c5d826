"""Steps of a report: each within its time, results kept whatever else happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

Data = dict[str, Any]
Wait = Callable[[], None]

NO_TIME = "no time left"
_LEAST_SECONDS = 5.0  # a step is not begun with less
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
    scratch: Path  # what is unpacked, and the shapes
    beside: list[Path]  # what was carried here; see carried.py
    device: str = "cuda"  # or "emulated"
    smoke: bool = False
    checkpoint: Path | None = None  # of real weights, and a draft for them
    draft_checkpoint: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    deadline: float | None = None  # of the step that has this context, by the clock
    programs: set[subprocess.Popen[str]] = field(default_factory=set)  # under way
    ended: threading.Event = field(default_factory=threading.Event)  # no more programs
    unfinished: dict[str, list[str]] = field(default_factory=dict)  # tests by program's name

    def remaining(self) -> float:
        """Seconds the step still has; an hour outside of steps."""
        return 3600.0 if self.deadline is None else max(0.0, self.deadline - self.clock())

    def share(self, left: int, at_once: int = 1) -> float:
        """Seconds for the next of `left` programs, so that each of the others has as many."""
        return self.remaining() * min(at_once, left) / left

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
    after: tuple[str, ...] = ()  # steps in the background that it waits for
    background: bool = False  # beside the steps that follow


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
    if seconds <= 0 or context.ended.is_set():
        raise NotRunError(NO_TIME)
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
    context.programs.add(process)
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
        context.programs.discard(process)
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


def run_step(step: Step, shared: Context, budget: float) -> Data:
    """Runs one step and says how it went: its entry in the report."""
    begin = shared.clock()
    seconds = min(step.seconds, budget)
    context = replace(shared, deadline=begin + seconds)
    print(f"== {step.title} (up to {seconds:.0f} s)", flush=True)
    entry: Data
    try:
        if budget < _LEAST_SECONDS:
            raise NotRunError(NO_TIME)
        data = step.run(context)
        entry = {"status": "cut" if data.pop("cut", False) else "done", "data": data}
    except NotRunError as error:
        entry = {"status": "not run", "note": str(error), "data": {}}
    except FailedError as error:
        entry = {"status": "failed", "note": str(error), "data": error.data}
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        entry = {"status": "failed", "note": f"{type(error).__name__}: {error}", "data": {}}
    entry["seconds"] = round(shared.clock() - begin, 1)
    note = f": {entry['note']}" if "note" in entry else ""
    print(f"== {step.title}: {entry['status']}{note} ({entry['seconds']} s)", flush=True)
    return entry


def in_thread(body: Callable[[], None]) -> Wait:
    """Begins it; what is returned waits for its end."""
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread.join


def run_steps(
    steps: Sequence[Step],
    context: Context,
    budget: float,
    record: Callable[[Step, Data], None],
    start: Callable[[Callable[[], None]], Wait] = in_thread,
) -> None:
    """Runs steps in order, those in the background beside the others; `record` gets the entries."""
    end = context.clock() + budget
    waits: dict[str, Wait] = {}

    def run(step: Step) -> None:
        for name in step.after:
            if name in waits:
                waits[name]()
        record(step, run_step(step, context, end - context.clock()))

    try:
        for step in steps:
            if step.background:
                waits[step.name] = start(partial(run, step))
            else:
                run(step)
        for wait in waits.values():
            wait()
    except BaseException:  # Ctrl-C: programs in the background must end, too
        context.ended.set()
        for process in list(context.programs):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        raise
