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
Line = Callable[[str], None]

NO_TIME = "no time left"
UNDER_WAY = "under way"  # status of a step that has begun
NOT_AVAILABLE = 3  # exit status of a benchmark without its device
CANNOT_START = 127  # as a shell has it
LOG = "log.txt"  # what all programs say, each line behind the name of what was run
_LEAST_SECONDS = 2.0  # a step is not begun with less
_PATIENCE_SECONDS = 15.0  # in which programs that were built beforehand are there
_LOG_BYTES = 12 << 20  # of the log; a program has at most a part, in the log and in memory
_PROGRAM_LOG_BYTES = 256 << 10
_PROGRAM_OUTPUT_BYTES = 8 << 20


class NotRunError(Exception):
    """A step cannot run here; the message says what is missing."""


class FailedError(Exception):
    """A step ran and found something wrong. `data` is what it has all the same."""

    def __init__(self, message: str, data: Data | None = None) -> None:
        super().__init__(message)
        self.data = data or {}


class Processes:
    """Starts programs, and ends all of them with the report."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = threading.Event()

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        seconds: float,
        line: Line,
    ) -> int | None:
        """Runs a program and gives its lines to `line`; its status, or None if it was cut."""
        if self._ended.is_set():
            raise NotRunError(NO_TIME)
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._running.add(process)
        cut = threading.Event()

        def end() -> None:
            cut.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            assert process.stdout is not None
            for text in process.stdout:
                line(text)
            status = process.wait()
        finally:
            timer.cancel()
            self._running.discard(process)
            if process.poll() is None:  # this program is being ended itself
                os.killpg(process.pid, signal.SIGKILL)
        return None if cut.is_set() else status

    def end(self) -> None:
        """Ends every program, and no other begins."""
        self._ended.set()
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@dataclass
class Context:
    """The state that the steps of a report share."""

    root: Path  # of the repository
    build: Path
    out: Path  # report.json, report.md, log.txt, and the records of the step under way
    scratch: Path  # what is unpacked, and the shapes
    beside: list[Path] = field(default_factory=list)  # what was carried here; see carried.py
    prebuilt: Path | None = None  # programs that were built beforehand; see prebuilt.py
    device: str = "cuda"  # or "emulated"
    smoke: bool = False
    checkpoint: Path | None = None  # of real weights, and a draft for them
    draft_checkpoint: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    results: dict[str, Data] = field(default_factory=dict)  # entries of the report by step
    processes: Processes = field(default_factory=Processes)
    clock: Callable[[], float] = time.monotonic
    step: str = ""  # that has this context, and by when it has to end by the clock
    deadline: float | None = None

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

    def programs(self) -> Path:
        """The folder with `bench` and `tests/cuda`: built beforehand, or here."""
        unpacked = self.scratch / "programs"
        return unpacked if self.prebuilt is not None and unpacked.is_dir() else self.build

    def under_way(self) -> Path:
        """Where the records of this step are until its entry in the report has them."""
        return self.out / f"{self.step}{_UNDER_WAY_FILE}"

    def keep(self, data: Data) -> None:
        """Writes what the step has so far."""
        write_json(self.under_way(), data)


_UNDER_WAY_FILE = ".under-way.json"


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

    @property
    def last_line(self) -> str:
        """The last line it printed."""
        return (self.output.strip().splitlines() or ["no output"])[-1]


def keeping(context: Context, done: Data, name: str = "") -> Callable[[str, object], None]:
    """A function that adds to `done` and keeps that on disk, under a name, for several threads."""
    lock = threading.Lock()

    def add(key: str, value: object) -> None:
        with lock:
            done[key] = value
            context.keep({name: done} if name else done)

    return add


def write_json(path: Path, data: Data) -> None:
    """Writes a file that is whole at every moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(data, indent=1) + "\n")
    new.replace(path)


def read_json(path: Path) -> Data:
    """The records that a program has written; empty if it was ended while it wrote."""
    try:
        data: Data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data


def adopt_under_way(out: Path, entries: dict[str, Data]) -> None:
    """Enters the records of a step that was under way when a report was ended."""
    for path in out.glob(f"*{_UNDER_WAY_FILE}"):
        name = path.name.removesuffix(_UNDER_WAY_FILE)
        entry = entries.setdefault(name, {"title": name, "status": UNDER_WAY, "seconds": 0.0})
        if entry["status"] == UNDER_WAY:
            entry["data"] = read_json(path)
        path.unlink()
    for entry in entries.values():
        if entry["status"] == UNDER_WAY:
            entry |= {"status": "cut", "note": "the report was ended in this step"}


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
    if seconds <= 0:
        raise NotRunError(NO_TIME)
    context.out.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    size = 0
    with (context.out / LOG).open("a", buffering=1) as log:

        def line(text: str) -> None:
            nonlocal size
            size += len(text)
            if size < _PROGRAM_OUTPUT_BYTES:
                lines.append(text)
            if size < _PROGRAM_LOG_BYTES and os.fstat(log.fileno()).st_size < _LOG_BYTES:
                log.write(f"[{name}] {text.rstrip()[:2000]}\n")
            elif size - len(text) < _PROGRAM_LOG_BYTES:
                log.write(f"[{name}] (the log leaves out the rest)\n")
            if show:
                print("   ", text, end="", flush=True)

        try:
            status = context.processes.run(
                [str(part) for part in command],
                context.root,
                context.environment | dict(environment or {}),
                seconds,
                line,
            )
        except OSError as error:
            line(f"{error}\n")
            status = CANNOT_START
    return Finished(status, "".join(lines))


def measured(context: Context, command: Sequence[str | os.PathLike[str]], **options: Any) -> Data:
    """Runs a program that writes the JSON file --json=... after every measurement; returns that.

    What a program that was cut or failed had measured is kept.
    """
    path = context.under_way()
    path.unlink(missing_ok=True)
    finished = execute(context, context.step, [*command, f"--json={path}"], **options)
    data = read_json(path)
    if finished.status == NOT_AVAILABLE:
        raise NotRunError(finished.last_line.removeprefix("not run: "))
    if finished.cut:
        return data | {"cut": True}
    if finished.status != 0:
        raise FailedError(f"exit status {finished.status}: {finished.last_line}", data)
    return data


def run_step(step: Step, shared: Context, budget: float) -> Data:
    """Runs one step and says how it went: its entry in the report."""
    begin = shared.clock()
    seconds = min(step.seconds, budget)
    context = replace(shared, deadline=begin + seconds, step=step.name)
    print(f"== {step.title} (up to {seconds:.0f} s)", flush=True)
    entry: Data
    try:
        if budget < _LEAST_SECONDS:
            raise NotRunError(NO_TIME)
        data = step.run(context)
        entry = {"status": "cut" if data.pop("cut", False) else "done", "data": data}
    except NotRunError as error:
        kept = read_json(context.under_way())
        entry = {"status": "not run", "note": str(error), "data": kept}
    except FailedError as error:
        entry = {"status": "failed", "note": str(error), "data": error.data}
    except Exception as error:  # whatever it is, the other steps run
        kept = read_json(context.under_way())
        entry = {"status": "failed", "note": f"{type(error).__name__}: {error}", "data": kept}
    entry["seconds"] = round(shared.clock() - begin, 1)
    note = f": {entry['note']}" if "note" in entry else ""
    print(f"== {step.title}: {entry['status']}{note} ({entry['seconds']} s)", flush=True)
    return entry


class Threads:
    """The steps that run in the background, by name."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._ended = threading.Condition()

    def start(self, name: str, body: Callable[[], None]) -> None:
        """Begins it."""

        def run() -> None:
            try:
                body()
            finally:
                with self._ended:
                    self._running.discard(name)
                    self._ended.notify_all()

        self._running.add(name)
        threading.Thread(target=run, daemon=True).start()

    def are_done(self, names: Sequence[str]) -> bool:
        """Whether none of them runs."""
        return self._running.isdisjoint(names)

    def wait(self, done: Callable[[], bool], seconds: float | None = None) -> None:
        """Waits until done() is true, checking when a step ends, or for `seconds`."""
        with self._ended:
            self._ended.wait_for(done, seconds)


def run_steps(
    steps: Sequence[Step],
    context: Context,
    budget: float,
    record: Callable[[Step, Data], None],
    background: Threads,
) -> None:
    """Runs steps in order, those in the background beside the others; `record` gets the entries.

    A step that waits long for one in the background lets those behind it go first.
    """
    begin = context.clock()
    end = begin + budget

    def ready(step: Step) -> bool:
        return background.are_done(step.after)

    def run(step: Step) -> None:
        background.wait(partial(ready, step))
        record(step, {"status": UNDER_WAY, "data": {}, "seconds": 0.0})
        record(step, run_step(step, context, end - context.clock()))
        replace(context, step=step.name).under_way().unlink(missing_ok=True)

    try:
        for step in steps:
            if step.background:
                background.start(step.name, partial(run, step))
        left = [step for step in steps if not step.background]
        while left:
            patience = begin + _PATIENCE_SECONDS - context.clock()
            background.wait(partial(ready, left[0]), max(0.0, patience))
            background.wait(lambda: any(map(ready, left)))
            step = next(filter(ready, left))
            left.remove(step)
            run(step)
        background.wait(lambda: background.are_done([step.name for step in steps]))
    except BaseException:  # Ctrl-C: programs in the background must end, too
        context.processes.end()
        raise
