"""Runs the CUDA suite's programs: all tests of each at once, later failed tests one by one.

After a kernel has failed nothing works in that process: only a test that runs alone shows whether
it is to blame.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .steps import NO_TIME, Context, Data, execute, keeping

GPU_TESTS = "*Gpu*"
# Streams with queues of their own, so that ranks on one GPU that wait for each other all run.
_ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
_PROGRAM_SECONDS = 15.0
_TEST_SECONDS = 15.0  # a test that takes longer hangs
_USEFUL_SECONDS = 5.0  # most tests are done by then
_LEAST_SECONDS = 1.0  # nothing is begun with less
_AT_ONCE = 8  # most of their time is the host's


def outcomes(output: str) -> dict[str, str]:
    """The outcome of each test that began: OK, FAILED, SKIPPED, or "ended" with the program."""
    found: dict[str, str] = {}
    for line in output.splitlines():
        if begun := re.match(r"\[ RUN      \] (\S+)", line):
            found[begun[1]] = "ended"
        elif done := re.match(r"\[ *(OK|FAILED|SKIPPED) \] ([^\s,]+).* \(\d+ ms\)", line):
            found[done[2]] = done[1]
    return found


def parse_list(output: str) -> list[str]:
    """Full names of what --gtest_list_tests prints."""
    names = []
    suite = ""
    for line in output.splitlines():
        if found := re.match(r"(\S+\.)(?:\s+#.*)?$", line):
            suite = found[1]
        elif suite and (found := re.match(r"  (\S+)", line)):
            names.append(suite + found[1])
    return names


def run_programs(context: Context, programs: Sequence[Path]) -> Data:
    """The outcomes of the programs' tests on a GPU, and which tests to run again."""
    results: Data = {}
    add = keeping(context, results, "programs")

    def run(program: Path) -> None:
        result: Data = {"status": None, "ran": 0, "passed": 0, "skipped": 0, "failed": []}
        limit = min(_PROGRAM_SECONDS, context.remaining())
        if limit < _LEAST_SECONDS:
            add(program.name, result | {"unfinished": []})
            return
        command = [str(program), f"--gtest_filter={GPU_TESTS}"]
        finished = execute(
            context,
            program.name,
            command,
            limit=limit,
            show=False,
            environment=_ENVIRONMENT,
        )
        found = outcomes(finished.output)
        passed = [name for name, outcome in found.items() if outcome in {"OK", "SKIPPED"}]
        print(f"    {program.name}: {len(passed)} of {len(found)} passed", flush=True)
        unfinished: list[str] = []
        if finished.status != 0:
            unfinished = [name for name in tests_of(context, program) if name not in passed]
        result = {
            "status": finished.status,
            "ran": len(found),
            "passed": len(passed),
            "skipped": sum(outcome == "SKIPPED" for outcome in found.values()),
            # The last one that began was cut or took the program with it.
            "failed": [
                name
                for name, outcome in found.items()
                if outcome == "FAILED" or (outcome == "ended" and not finished.cut)
            ],
            "unfinished": unfinished or [name for name in found if name not in passed],
        }
        add(program.name, result)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(run, programs))
    return {program.name: results[program.name] for program in programs}


def tests_of(context: Context, program: Path) -> list[str]:
    """The tests of a program on a GPU."""
    listing = [str(program), "--gtest_list_tests", f"--gtest_filter={GPU_TESTS}"]
    if context.remaining() < _LEAST_SECONDS:
        return []
    listed = execute(context, program.name, listing, limit=_USEFUL_SECONDS, show=False)
    return parse_list(listed.output)


def run_alone(context: Context, tests: Sequence[tuple[Path, str]]) -> Data:
    """Outcome of every test by itself: OK, FAILED, "hangs"..."""
    results: Data = {}
    add = keeping(context, results, "alone")

    def run(number: int, program: Path, name: str) -> None:
        # Where shares are too small for any, the first have enough.
        share = max(_USEFUL_SECONDS, context.share(len(tests) - number, _AT_ONCE))
        limit = min(_TEST_SECONDS, share, context.remaining())
        if limit < _LEAST_SECONDS:
            add(name, NO_TIME)
            return
        alone = execute(
            context,
            name,
            [str(program), f"--gtest_filter={name}"],
            limit=limit,
            show=False,
            environment=_ENVIRONMENT,
        )
        outcome = outcomes(alone.output).get(name, "ended")
        if alone.cut:
            outcome = "hangs" if limit == _TEST_SECONDS else NO_TIME
        elif outcome not in {"OK", "SKIPPED"} or alone.status != 0:
            print(f"    {name}: {outcome} by itself\n" + alone.output[-1500:], flush=True)
        add(name, outcome)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(run, range(len(tests)), *zip(*tests, strict=True)))
    return {name: results[name] for _, name in tests}
