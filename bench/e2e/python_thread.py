"""What a second Python thread costs an engine: it computes in pure Python while the engine decodes.

    python -m bench.e2e.python_thread --model MODEL --json out.json

Requests run in turns: alone, beside a process that computes, and beside a thread that does. The
engine has one thread, so a core is left for the other. What both cost is the machine's share (the
cores of many machines are halves of one); what the thread costs beyond the process is the cost of
sharing an interpreter. Native steps take no lock of it, so theirs should be none; making text of
the outputs does.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from specdec_native import Engine, SamplingParams

MOST_LOSS = 0.05  # of the speed of native steps


class Event(Protocol):
    """A threading.Event, or a process's."""

    def set(self) -> None:
        """Ends the work."""

    def is_set(self) -> bool:
        """Whether it has ended."""


KINDS = ("alone", "process", "thread")


def compute(stop: Event) -> None:
    """Pure Python until `stop` is set."""
    number = 1
    while not stop.is_set():
        for _ in range(1000):
            number = (number * 6364136223846793005 + 1) % 2**64


@contextmanager
def beside(kind: str) -> Iterator[None]:
    """Something of that kind computes until the block ends."""
    if kind == "alone":
        yield
        return
    context = multiprocessing.get_context("spawn")
    stop: Event = context.Event() if kind == "process" else threading.Event()
    make = context.Process if kind == "process" else threading.Thread
    worker = make(target=compute, args=(stop,))
    worker.start()
    time.sleep(0.5)  # until a process has started
    try:
        yield
    finally:
        stop.set()
        worker.join()


def step_seconds(
    engine: Engine, num_requests: int, num_tokens: int, kind: str
) -> tuple[float, float]:
    """Seconds of a native step of a batch of requests, and of the whole call for each step."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    prompts = [{"prompt_token_ids": [5 + i, 6, 7]} for i in range(num_requests)]
    before = engine.stats()
    with beside(kind):
        start = time.perf_counter()
        engine.generate(prompts, params, use_tqdm=False)
        call_seconds = time.perf_counter() - start
    after = engine.stats()
    phases = ("schedule", "draft", "forward", "sample", "commit")
    seconds = sum(getattr(after, f"{p}_seconds") - getattr(before, f"{p}_seconds") for p in phases)
    num_steps = after.num_steps - before.num_steps
    return seconds / num_steps, call_seconds / num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="a directory or a model name")
    parser.add_argument("--requests", type=int, default=8, help="that decode together")
    parser.add_argument("--tokens", type=int, default=64, help="of each")
    parser.add_argument("--turns", type=int, default=12, help="of each kind")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    turns: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with Engine(options.model, num_threads=1, enable_prefix_caching=False) as engine:
        step_seconds(engine, options.requests, options.tokens, "alone")  # warms up
        for _ in range(options.turns):
            for kind in KINDS:
                turns[kind].append(step_seconds(engine, options.requests, options.tokens, kind))
    report: dict[str, Any] = {"model": options.model, "requests": options.requests}
    for column, name in enumerate(("step", "call")):
        ms = {kind: [1e3 * turn[column] for turn in turns[kind]] for kind in KINDS}
        for kind in KINDS:
            report[f"{name}_ms_{kind}"] = statistics.median(ms[kind])
        ratios = [t / p for t, p in zip(ms["thread"], ms["process"], strict=True)]
        report[f"{name}_thread_over_process"] = statistics.median(ratios)
        shown = ", ".join(f"{kind} {report[f'{name}_ms_{kind}']:.3f} ms" for kind in KINDS)
        change = 100 * (report[f"{name}_thread_over_process"] - 1)
        print(f"{name}: {shown}; a thread costs {change:+.1f}% more than a process")
    print(f"the aim: native steps lose at most {100 * MOST_LOSS:.0f}%")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
