"""The steps that ask whether the backend is right: its tests, and the same under sanitizers."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import build, googletest, machine
from .steps import NO_TIME, Context, Data, FailedError, NotRunError, execute

_SANITIZERS = 6  # at once
_UNUSABLE = "not run"  # in place of the status of a check that could not begin


def test_programs(context: Context) -> list[Path]:
    """The CUDA test suite's programs."""
    context.need_gpu()
    found = [path for path in (context.build / "tests/cuda").glob("*_test") if path.is_file()]
    if not found:
        raise NotRunError("the tests were not built")
    return sorted(found)


def instruction_tests(context: Context) -> Data:
    """The tests of single instructions: what all others rest on."""
    return run_tests(
        context, [path for path in test_programs(context) if path.name == build.INSTRUCTION_TESTS]
    )


def other_tests(context: Context) -> Data:
    """Every other test of the CUDA suite, on the GPU."""
    return run_tests(
        context, [path for path in test_programs(context) if path.name != build.INSTRUCTION_TESTS]
    )


def run_tests(context: Context, programs: Sequence[Path]) -> Data:
    """Runs programs, and fails where one did or none sees a GPU."""
    if not programs:
        raise NotRunError("the tests were not built")
    results = googletest.run_programs(context, programs)
    bad = [name for name, result in results.items() if result["status"] not in {0, None}]
    if bad:
        raise FailedError(", ".join(bad), {"programs": results})
    cut = any(result["status"] is None for result in results.values())
    if not cut and not any(result["ran"] for result in results.values()):
        raise FailedError("no test ran: the programs see no GPU", {"programs": results})
    return {"programs": results, "cut": cut}


def tests_again(context: Context) -> Data:
    """Tests that did not pass, each by itself."""
    context.need_gpu()
    if not context.unfinished:
        raise NotRunError("nothing to run again")
    alone = googletest.run_unfinished(context)
    bad = [name for name, outcome in alone.items() if outcome not in {"OK", "SKIPPED", NO_TIME}]
    if bad:
        raise FailedError(", ".join(bad), {"alone": alone})
    return {"alone": alone, "cut": NO_TIME in alone.values()}


def engine_tests(context: Context) -> Data:
    """The tests of whole models, which the emulated device passes, on the GPU."""
    context.need_gpu()
    build.need_module(context)
    command = [sys.executable, "-m", "pytest", "--gpu", "-v", "--tb=short", "--no-header"]
    finished = execute(context, "pytest", [*command, "tests/python/test_cuda.py"], show=False)
    if "No module named pytest" in finished.output:
        raise NotRunError("pytest is neither installed nor beside it")
    found = dict(re.findall(r"^\S+::(\S+) (PASSED|FAILED|ERROR)\b", finished.output, re.MULTILINE))
    failed = [name for name, outcome in found.items() if outcome != "PASSED"]
    result = {"ran": len(found), "passed": len(found) - len(failed), "failed": failed}
    data: Data = {"programs": {"test_cuda.py": result | {"status": finished.status}}}
    print(f"    {result['passed']} of {result['ran']} passed", flush=True)
    if failed or finished.status not in {0, None}:
        print(finished.output[-3000:])
        raise FailedError(f"{len(failed)} failed, exit status {finished.status}", data)
    return data | {"cut": finished.cut}


def sanitize(context: Context) -> Data:
    """The same tests under compute-sanitizer: bad addresses, and races in shared memory."""
    programs = test_programs(context)
    tool = machine.find_tool("compute-sanitizer")
    if tool is None:
        raise NotRunError("compute-sanitizer is not installed")

    def run(number: int, check: str, program: Path) -> Data:
        if (share := context.share(len(runs) - number, _SANITIZERS)) < 1:
            return {"status": None, "summary": NO_TIME}
        # Some tests ask the runtime for what it must refuse.
        command = [tool, "--tool", check, "--error-exitcode", "9", "--report-api-errors", "no"]
        command += ["--print-limit", "20", str(program), f"--gtest_filter={googletest.GPU_TESTS}"]
        log = f"{check}-{program.name}"
        finished = execute(context, log, command, limit=share, show=False)
        summary = re.findall(r"========= (.*SUMMARY.*)", finished.output)
        if not finished.cut and not summary and "[ RUN" not in finished.output:
            last = finished.output.strip().splitlines()[-1:] or ["no output"]
            return {"status": _UNUSABLE, "summary": f"does not work here: {last[0]}"}
        print(f"    {check} {program.name}: {'cut' if finished.cut else finished.status} {summary}")
        return {"status": finished.status, "summary": " ".join(summary)}

    runs = [(check, program) for check in ("memcheck", "racecheck") for program in programs]
    # They take the host's time more than the GPU's.
    with ThreadPoolExecutor(_SANITIZERS) as pool:
        outcomes = pool.map(run, range(len(runs)), *zip(*runs, strict=True))
        results: Data = {
            f"{check}-{program.name}": outcome
            for (check, program), outcome in zip(runs, outcomes, strict=True)
        }
    # Where the system does not let it attach to programs, as in gVisor, none of them begins.
    unusable = [result for result in results.values() if result["status"] == _UNUSABLE]
    if unusable and len(unusable) == len(results):
        raise NotRunError(f"compute-sanitizer {unusable[0]['summary']}")
    if any(result["status"] not in {0, None, _UNUSABLE} for result in results.values()):
        raise FailedError("see the summaries", results)
    return results | {"cut": any(result["status"] is None for result in results.values())}
