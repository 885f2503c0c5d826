"""bench/gpu/suites.py: test programs that fail, hang or meet a sanitizer leave what they found."""

from pathlib import Path
from typing import Any

import pytest

from gpu import googletest, machine, suites
from gpu.steps import NO_TIME, Context, Data, FailedError, Finished, NotRunError
from gpu_context import context
from simulated_time import Clock
from test_gpu_report import run_for

__all__ = ["context"]  # a fixture

SUITE = """#!/usr/bin/env python3
import os, sys
tests = {{"Devices/A.One/Gpu": "OK", "Devices/A.Two/Gpu": "{two}", "B.Three/Gpu": "OK"}}
chosen = sys.argv[-1].removeprefix("--gtest_filter=")
if "--gtest_list_tests" in sys.argv:
    print("Running main() from gtest_main.cc\\nDevices/A.\\n  One/Gpu  # GetParam() = Gpu")
    print("  Two/Gpu  # GetParam() = Gpu\\nB.\\n  Three/Gpu")
    sys.exit(0)
for name, outcome in tests.items():
    if chosen not in ("*Gpu*", name):
        continue
    print(f"[ RUN      ] {{name}}", flush=True)
    if outcome == "CRASH":
        os.abort()
    where = ", where GetParam() = Gpu" * (outcome == "FAILED")
    print(f"[ {{outcome:>8}} ] {{name}}{{where}} (1 ms)")
sys.exit(tests["Devices/A.Two/Gpu"] == "FAILED" and chosen != "B.Three/Gpu")
"""


@pytest.mark.parametrize(
    ("two", "ran", "passed", "failed", "alone"),
    [
        ("OK", 3, 3, [], {}),
        ("SKIPPED", 3, 3, [], {}),
        ("FAILED", 3, 2, ["Devices/A.Two/Gpu"], {"Devices/A.Two/Gpu": "FAILED"}),
        (
            "CRASH",
            2,
            1,
            ["Devices/A.Two/Gpu"],
            {"Devices/A.Two/Gpu": "ended", "B.Three/Gpu": "OK"},
        ),
    ],
)
def test_tests_that_fail_are_run_again_by_themselves(
    two: str, ran: int, passed: int, failed: list[str], alone: dict[str, str], context: Context
) -> None:
    program = context.build / "tests/cuda/suite"
    program.parent.mkdir(parents=True)
    program.write_text(SUITE.format(two=two))
    program.chmod(0o755)
    result = googletest.run_programs(context, [program])["suite"]
    assert (result["ran"], result["passed"], result["failed"]) == (ran, passed, failed)
    context.device = "cuda"
    context.results = {"tests": {"data": {"programs": {"suite": result}}}}
    if alone:
        assert googletest.run_alone(context, suites.unfinished(context)) == alone
    else:
        with pytest.raises(NotRunError, match="no test that failed is known"):
            suites.unfinished(context)


def simulated_programs(
    context: Context, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]
) -> Clock:
    """Programs that take so long by the name of their file or of the test they are to run."""
    clock = Clock()
    context.clock = clock
    context.deadline = clock.now + 60
    monkeypatch.setattr(googletest, "_AT_ONCE", 1)

    def run(own: Context, name: str, command: list[str], limit: float, **_: Any) -> Finished:
        program = Path(command[0]).name
        if "--gtest_list_tests" in command:
            return Finished(0, f"A.\n  {program}Gpu\n")
        test = f"A.{program}Gpu"
        wanted = seconds[test if command[-1].endswith(test) else program]
        allowed = min(limit, own.remaining())
        clock.now += min(wanted, allowed)
        begun = f"[ RUN      ] {test}\n"
        if wanted > allowed:
            return Finished(None, begun)
        return Finished(0, begun + f"[       OK ] {test} (1 ms)\n")

    monkeypatch.setattr(googletest, "execute", run)
    return clock


def test_program_that_hangs_costs_its_own_share(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = 1e9
    seconds = {"a": 9.0, "b": forever, "c": 8.0, "d": forever, "e": 7.0}
    clock = simulated_programs(context, monkeypatch, seconds)
    results = googletest.run_programs(context, [Path(name) for name in seconds])
    statuses = {name: result["status"] for name, result in results.items()}
    assert statuses == {"a": 0, "b": None, "c": 0, "d": None, "e": 0}
    assert results["b"]["unfinished"] == ["A.bGpu"]
    assert clock.now == 100 + 9 + 15 + 8 + 15 + 7


@pytest.mark.parametrize(("left", "outcome"), [(60.0, "hangs"), (10.0, NO_TIME), (0.0, NO_TIME)])
def test_only_a_test_that_had_its_time_is_said_to_hang(
    left: float, outcome: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = simulated_programs(context, monkeypatch, {"A.aGpu": 1e9, "A.bGpu": 1.0})
    context.device = "cuda"
    context.deadline = clock.now + left
    failed = {name: {"unfinished": [f"A.{name}Gpu"]} for name in ("b", "a")}
    context.results = {"tests": {"data": {"programs": failed}}}
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    if outcome == "hangs":
        with pytest.raises(FailedError, match=r"^A.aGpu$") as raised:
            suites.tests_again(context)
        assert raised.value.data["alone"] == {"A.bGpu": "OK", "A.aGpu": "hangs"}
    else:
        data = suites.tests_again(context)
        assert data["cut"]
        assert data["alone"]["A.aGpu"] == NO_TIME


def test_many_tests_to_run_again_are_run_while_there_is_time(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"p{i:02}" for i in range(40)]
    clock = simulated_programs(context, monkeypatch, {f"A.{name}Gpu": 2.0 for name in names})
    context.deadline = clock.now + 20
    tests = [(Path(name), f"A.{name}Gpu") for name in names]
    outcomes = list(googletest.run_alone(context, tests).values())
    assert outcomes == ["OK"] * 10 + [NO_TIME] * 30


SANITIZER = """#!/usr/bin/env python3
import os, sys
program = sys.argv[-2]
if "{works}" == "no" or ("{works}" == "some" and program.endswith("b_test")):
    print("========= Error: Target application could not be attached"); sys.exit(1)
print("[ RUN      ] A.Gpu\\n[       OK ] A.Gpu (1 ms)")
print("========= ERROR SUMMARY: {errors} errors")
sys.exit(9 if {errors} else 0)
"""


def sanitized(context: Context, monkeypatch: pytest.MonkeyPatch, works: str, errors: int) -> Data:
    """The step's entry with a tool that works, works for some programs, or for none."""
    folder = context.build / "tests/cuda"
    folder.mkdir(parents=True)
    programs = {}
    for name in ("a_test", "b_test", "c_test"):
        (folder / name).touch()
        programs[name] = {"unfinished": [f"{name}.Gpu"]}
    context.results = {
        "tests": {"data": {"programs": programs}},
        "tests-again": {"data": {"alone": {"a_test.Gpu": "FAILED", "c_test.Gpu": "OK"}}},
    }
    tool = folder / "sanitizer"
    tool.write_text(SANITIZER.format(works=works, errors=errors))
    tool.chmod(0o755)
    monkeypatch.setattr(machine, "find_tool", lambda name: str(tool))
    context.device = "cuda"
    return run_for(context, 60, suites.sanitize)


@pytest.mark.parametrize(
    ("works", "errors", "status", "of_b"),
    [
        ("yes", 0, "done", 0),
        ("yes", 2, "failed", 9),
        ("some", 0, "done", "not run"),
        ("some", 2, "failed", "not run"),
    ],
)
def test_sanitizer_that_cannot_begin_is_not_a_failure(
    works: str,
    errors: int,
    status: str,
    of_b: int | str,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = sanitized(context, monkeypatch, works, errors)
    assert entry["status"] == status
    assert entry["data"]["memcheck a_test.Gpu"]["status"] == (9 if errors else 0)
    assert entry["data"]["racecheck b_test.Gpu"]["status"] == of_b
    assert not any("c_test" in name for name in entry["data"])  # it passed alone


def test_sanitizer_that_works_for_no_program_is_not_run(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = sanitized(context, monkeypatch, "no", 0)
    assert entry["status"] == "not run"
    assert "could not be attached" in entry["note"]


@pytest.mark.parametrize(
    "output",
    [
        "t/test_a.py::test_a[a b] PASSED   [ 50%]\nt/test_a.py::test_b FAILED   [100%]\n",
        "t/test_a.py::test_a[a b] \n[gw1] [ 50%] PASSED t/test_a.py::test_a[a b] \n"
        "[gw0] [100%] FAILED t/test_a.py::test_b \n",
    ],
)
def test_outcomes_of_pytest_on_one_worker_or_several(output: str) -> None:
    summary = "FAILED t/test_a.py::test_b - AssertionError: assert 1 PASSED\n"
    found = suites.test_outcomes(output + summary)
    assert found == {"test_a[a b]": "PASSED", "test_b": "FAILED"}
