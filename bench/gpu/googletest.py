"""The CUDA suite's programs: all tests of each at once, and at the end what did not pass by itself.

After a kernel failed nothing works in that process: only a test alone tells whether it is to blame.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .steps import NO_TIME, Context, Data, execute

GPU_TESTS = "*Gpu*"
_PROGRAM_SECONDS = 30.0
_TEST_SECONDS = 15.0  # a test that takes longer hangs
_USEFUL_SECONDS = 5.0  # most tests are done by then
_LEAST_SECONDS = 1.0  # nothing is begun with less
_AT_ONCE = 4  # most of their time is the host's


def outcomes(output: str) -> dict[str, str]:
    """What became of each test that began: OK, FAILED, SKIPPED, or "ended" with the program."""
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
    """What became of the programs' tests on a GPU. What did not pass is noted in the context.

    Each program has its share of the time, so that one that hangs takes no other's.
    """

    def run(number: int, program: Path) -> Data:
        left = len(programs) - number
        if (share := context.share(left, _AT_ONCE)) < _LEAST_SECONDS:
            return {"status": None, "ran": 0, "passed": 0, "skipped": 0, "failed": []}
        command = [str(program), f"--gtest_filter={GPU_TESTS}"]
        limit = min(_PROGRAM_SECONDS, share)
        finished = execute(context, f"test-{program.name}", command, limit=limit, show=False)
        found = outcomes(finished.output)
        passed = [name for name, outcome in found.items() if outcome in {"OK", "SKIPPED"}]
        print(f"    {program.name}: {len(passed)} of {len(found)} passed", flush=True)
        if finished.status != 0:
            context.unfinished[str(program)] = passed
        return {
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
        }

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = pool.map(run, range(len(programs)), programs)
    return {program.name: result for program, result in zip(programs, results, strict=True)}


def run_unfinished(context: Context) -> Data:
    """Outcome of every test that did not pass beside others, by itself: OK, FAILED, "hangs"..."""
    tests = []
    for program, passed in context.unfinished.items():
        listing = [program, "--gtest_list_tests", f"--gtest_filter={GPU_TESTS}"]
        listed = execute(context, "list of tests", listing, limit=_TEST_SECONDS, show=False)
        tests += [(program, name) for name in parse_list(listed.output) if name not in passed]

    def run(number: int, program: str, name: str) -> str:
        # Where shares are too small for any, the first have enough.
        share = max(_USEFUL_SECONDS, context.share(len(tests) - number, _AT_ONCE))
        limit = min(_TEST_SECONDS, share, context.remaining())
        if limit < _LEAST_SECONDS:
            return NO_TIME
        log = f"test-{Path(program).name}"
        command = [program, f"--gtest_filter={name}"]
        alone = execute(context, log, command, limit=limit, show=False)
        if alone.cut:
            return "hangs" if limit == _TEST_SECONDS else NO_TIME
        outcome = outcomes(alone.output).get(name, "ended")
        if outcome not in {"OK", "SKIPPED"} or alone.status != 0:
            print(f"    {name}: {outcome} by itself\n" + alone.output[-1500:], flush=True)
        return outcome

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = pool.map(run, range(len(tests)), *zip(*tests, strict=True)) if tests else []
    return {name: outcome for (_, name), outcome in zip(tests, results, strict=True)}
