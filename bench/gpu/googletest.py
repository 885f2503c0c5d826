"""The CUDA suite's programs: all tests of one at once, and what did not pass again by itself.

After a kernel failed nothing works in that process: only a test alone tells whether it is to blame.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .steps import Context, Data, execute

GPU_TESTS = "*Gpu*"
_PROGRAM_SECONDS = 30.0  # a hanging kernel must not take the others' time
_TEST_SECONDS = 15.0
_AT_ONCE = 4
_MOST_ALONE = 60


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


def run_program(context: Context, program: Path) -> Data:
    """What became of the program's tests on a GPU."""
    log = f"test-{program.name}"
    finished = execute(
        context, log, [program, f"--gtest_filter={GPU_TESTS}"], limit=_PROGRAM_SECONDS, show=False
    )
    found = outcomes(finished.output)
    passed = [name for name, outcome in found.items() if outcome in {"OK", "SKIPPED"}]
    result: Data = {"status": finished.status, "ran": len(found), "passed": len(passed)}
    result["skipped"] = sum(outcome == "SKIPPED" for outcome in found.values())
    result["failed"] = []
    print(f"    {program.name}: {len(passed)} of {len(found)} passed", flush=True)
    if finished.status == 0:
        return result
    listing = [str(program), "--gtest_list_tests", f"--gtest_filter={GPU_TESTS}"]
    names = parse_list(execute(context, log, listing, limit=_TEST_SECONDS, show=False).output)
    left = [name for name in names if name not in passed][:_MOST_ALONE]

    def run_alone(name: str) -> tuple[str, str]:
        command = [str(program), f"--gtest_filter={name}"]
        alone = execute(context, log, command, limit=_TEST_SECONDS, show=False)
        outcome = outcomes(alone.output).get(name, "not run")
        if outcome == "FAILED" or alone.status != 0:
            print(f"    {name}: {outcome} by itself\n" + alone.output[-1500:], flush=True)
        return name, "cut" if alone.cut else outcome

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        result["alone"] = dict(pool.map(run_alone, left))
    result["failed"] = [name for name in left if result["alone"][name] not in {"OK", "SKIPPED"}]
    return result
