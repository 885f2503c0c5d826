"""The steps that test the backend: its tests, and the same tests under sanitizers."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import build, googletest, machine
from .steps import NO_TIME, Context, Data, FailedError, NotRunError, execute, keeping

INSTRUCTION_TESTS = "specdec_cuda_ptx_test"
TEST_STEPS = ("instructions", "tests")
_PASSED = {"OK", "SKIPPED"}
_SANITIZERS = 6  # at once
_ENGINE_TESTS = 6
_UNUSABLE = "not run"  # in place of the status of a check that could not begin


def instruction_tests(context: Context) -> Data:
    """The tests of single instructions: what all others rest on."""
    return run_tests(context, [INSTRUCTION_TESTS])


def other_tests(context: Context) -> Data:
    """Every other test of the CUDA suite, on the GPU."""
    folder = context.programs() / "tests/cuda"
    found = [path.name for path in folder.glob("*_test") if path.is_file()]
    return run_tests(context, sorted(set(found) - {INSTRUCTION_TESTS}))


def run_tests(context: Context, names: Sequence[str]) -> Data:
    """Runs programs, and fails where one did or none sees a GPU."""
    context.need_gpu()
    programs = [context.programs() / "tests/cuda" / name for name in names]
    if not programs or not all(program.is_file() for program in programs):
        raise NotRunError("the tests were not built")
    results = googletest.run_programs(context, programs)
    bad = [name for name, result in results.items() if result["status"] not in {0, None}]
    if bad:
        raise FailedError(", ".join(bad), {"programs": results})
    cut = any(result["status"] is None for result in results.values())
    if not cut and not any(result["ran"] for result in results.values()):
        raise FailedError("no test ran: the programs see no GPU", {"programs": results})
    return {"programs": results, "cut": cut}


def unfinished(context: Context) -> list[tuple[Path, str]]:
    """Programs and tests of them that did not pass, in this call or in one before."""
    found: list[tuple[Path, str]] = []
    for step in TEST_STEPS:
        programs = context.results.get(step, {}).get("data", {}).get("programs", {})
        for name, result in programs.items():
            program = context.programs() / "tests/cuda" / name
            found += [(program, test) for test in result["unfinished"] if program.is_file()]
    if not found:
        raise NotRunError("no test that failed is known")
    return found


def tests_again(context: Context) -> Data:
    """Tests that did not pass, each by itself."""
    context.need_gpu()
    alone = googletest.run_alone(context, unfinished(context))
    bad = [name for name, outcome in alone.items() if outcome not in {*_PASSED, NO_TIME}]
    if bad:
        raise FailedError(", ".join(bad), {"alone": alone})
    return {"alone": alone, "cut": NO_TIME in alone.values()}


def engine_tests(context: Context) -> Data:
    """The tests of whole models, which the emulated device passes, on the GPU."""
    context.need_gpu()
    build.need_module(context)
    command = [sys.executable, "-m", "pytest", "--gpu", "-v", "--tb=short", "--no-header"]
    if importlib.util.find_spec("xdist") is not None:  # most of their time is the host's
        command += ["-n", str(_ENGINE_TESTS)]
    finished = execute(
        context, "pytest", [*command, "tests/python/specdec_native/engine/test_cuda.py"], show=False
    )
    if "No module named pytest" in finished.output:
        raise NotRunError("pytest is neither installed nor beside it")
    found = test_outcomes(finished.output)
    failed = [name for name, outcome in found.items() if outcome != "PASSED"]
    result = {"ran": len(found), "passed": len(found) - len(failed), "failed": failed}
    data: Data = {"programs": {"test_cuda.py": result | {"status": finished.status}}}
    print(f"    {result['passed']} of {result['ran']} passed", flush=True)
    if failed or finished.status not in {0, None}:
        print(finished.output[-3000:])
        raise FailedError(f"{len(failed)} failed, exit status {finished.status}", data)
    return data | {"cut": finished.cut}


def test_outcomes(output: str) -> dict[str, str]:
    """The outcome of each test in what `pytest -v` prints, on one worker or several."""
    outcome = "(PASSED|FAILED|ERROR)"
    alone = re.findall(rf"^\S+?::(.+?) {outcome}\b", output, re.MULTILINE)
    beside = re.findall(rf"^\[gw\d+\] \[ *\d+%\] {outcome} \S+?::(.+?) *$", output, re.MULTILINE)
    return dict(alone) | {name: found for found, name in beside}


def sanitize(context: Context) -> Data:
    """Tests that failed, alone under compute-sanitizer: bad addresses, races in shared memory."""
    context.need_gpu()
    alone = context.results.get("tests-again", {}).get("data", {}).get("alone", {})
    tests = [test for test in unfinished(context) if alone.get(test[1]) not in _PASSED]
    if not tests:
        raise NotRunError("every test passed alone")
    tool = machine.find_tool("compute-sanitizer")
    if tool is None:
        raise NotRunError("compute-sanitizer is not installed")
    results: Data = {}
    add = keeping(context, results)

    def run(number: int, check: str, program: Path, test: str) -> None:
        name = f"{check} {test}"
        if (share := context.share(len(runs) - number, _SANITIZERS)) < 1:
            add(name, {"status": None, "summary": NO_TIME})
            return
        # Some tests ask the runtime for what it must refuse.
        command = [tool, "--tool", check, "--error-exitcode", "9", "--report-api-errors", "no"]
        command += ["--print-limit", "20", str(program), f"--gtest_filter={test}"]
        finished = execute(context, name, command, limit=share, show=False)
        summary = re.findall(r"========= (.*SUMMARY.*)", finished.output)
        result: Data = {"status": finished.status, "summary": " ".join(summary)}
        if not finished.cut and not summary and "[ RUN" not in finished.output:
            summary = [f"does not work here: {finished.last_line}"]
            result = {"status": _UNUSABLE, "summary": summary[0]}
        print(f"    {name}: {'cut' if finished.cut else finished.status} {summary}", flush=True)
        add(name, result)

    runs = [(check, *test) for check in ("memcheck", "racecheck") for test in tests]
    # They take the host's time more than the GPU's.
    with ThreadPoolExecutor(_SANITIZERS) as pool:
        list(pool.map(run, range(len(runs)), *zip(*runs, strict=True)))
    # Where the system does not let it attach to programs, as in gVisor, none of them begins.
    unusable = [result for result in results.values() if result["status"] == _UNUSABLE]
    if unusable and len(unusable) == len(results):
        raise NotRunError(f"compute-sanitizer {unusable[0]['summary']}")
    if any(result["status"] not in {0, None, _UNUSABLE} for result in results.values()):
        raise FailedError("see the summaries", results)
    return results | {"cut": any(result["status"] is None for result in results.values())}
