"""What a second Python thread costs an engine: it computes in pure Python while the engine decodes.

    python -m bench.e2e.python_thread --model MODEL --json out.json

Requests run in turns, with the second thread and without, on an engine with one thread, which
leaves the other thread a core of its own. The engine steps without the interpreter's lock, so it
should keep its speed; the Python thread that makes text of the outputs does not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specdec_native import Engine, SamplingParams

MOST_LOSS = 0.05  # of the speed of native steps


@contextmanager
def computing_thread(active: bool) -> Iterator[None]:
    """A thread that computes in pure Python until the block ends, where `active`."""
    stop = threading.Event()

    def compute() -> None:
        number = 1
        while not stop.is_set():
            for _ in range(1000):
                number = (number * 6364136223846793005 + 1) % 2**64

    thread = threading.Thread(target=compute)
    if active:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if active:
            thread.join()


def step_seconds(
    engine: Engine, num_requests: int, num_tokens: int, *, beside: bool
) -> tuple[float, float]:
    """Seconds of a native step of a batch of requests, and of the whole call for each step."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    prompts = [{"prompt_token_ids": [5 + i, 6, 7]} for i in range(num_requests)]
    before = engine.stats()
    with computing_thread(beside):
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
    turns: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with Engine(options.model, num_threads=1, enable_prefix_caching=False) as engine:
        step_seconds(engine, options.requests, options.tokens, beside=False)  # warms up
        for turn in range(2 * options.turns):
            beside = turn % 2 == 1
            turns[beside].append(
                step_seconds(engine, options.requests, options.tokens, beside=beside)
            )
    report: dict[str, Any] = {
        "model": options.model,
        "requests": options.requests,
        "most_loss": MOST_LOSS,
    }
    for column, name in enumerate(("step", "call")):
        alone = [seconds[column] for seconds in turns[False]]
        beside_python = [seconds[column] for seconds in turns[True]]
        ratio = statistics.median(b / a for a, b in zip(alone, beside_python, strict=True))
        report[f"{name}_ms_alone"] = 1e3 * statistics.median(alone)
        report[f"{name}_ms_beside_python"] = 1e3 * statistics.median(beside_python)
        report[f"{name}_ratio"] = ratio
        print(
            f"{name}: {report[f'{name}_ms_alone']:.3f} ms alone, "
            f"{report[f'{name}_ms_beside_python']:.3f} ms beside a thread in pure Python, "
            f"{100 * (ratio - 1):+.1f}%"
        )
    print(f"the aim: native steps lose at most {100 * MOST_LOSS:.0f}%")
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
