"""bench/gpu/report: steps keep to their time and leave their results, on any machine."""

import json
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu import build, carried, engine_run, machine, main, plan
from gpu.steps import (
    NO_TIME,
    UNDER_WAY,
    Context,
    Data,
    FailedError,
    Finished,
    NotRunError,
    Step,
    Threads,
    execute,
    measured,
    run_step,
    run_steps,
)
from gpu_context import context
from simulated_time import Clock, SimulatedThreads

__all__ = ["context"]  # a fixture

ROOT = Path(__file__).parents[3]


def script(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(("import json, pathlib, sys, time", *lines))]


WRITE = "pathlib.Path(sys.argv[1].removeprefix('--json=')).write_text(json.dumps({'records': [1]}))"


def run_for(context: Context, seconds: float, body: Callable[[Context], Data]) -> Data:
    return run_step(Step("x", "X", seconds, body), context, 100)


def test_step_that_takes_too_long_is_cut_and_keeps_what_it_measured(context: Context) -> None:
    program = script(WRITE, "print('working', flush=True)", "time.sleep(60)")
    begin = time.monotonic()
    entry = run_for(context, 2, lambda own: measured(own, program))
    assert time.monotonic() - begin < 20
    assert entry["status"] == "cut"
    assert entry["data"] == {"records": [1]}
    assert "[x] working" in (context.out / "log.txt").read_text()


def test_children_of_a_cut_program_end_with_it(context: Context, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    child = f"import time\nwhile True: open({str(beat)!r}, 'a').write('x'); time.sleep(0.05)"
    program = script(
        "import subprocess", f"subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    )
    context.deadline = time.monotonic() + 5
    assert execute(context, "parent", program).cut
    time.sleep(0.3)
    size = beat.stat().st_size
    time.sleep(0.3)
    assert beat.stat().st_size == size


def test_program_that_fails_is_a_failed_step_with_its_records(context: Context) -> None:
    program = script(WRITE, "print('went wrong')", "sys.exit(1)")
    entry = run_for(context, 60, lambda own: measured(own, program))
    assert entry["status"] == "failed"
    assert "went wrong" in entry["note"]
    assert entry["data"] == {"records": [1]}


def test_benchmark_without_its_device_is_not_run(context: Context) -> None:
    program = script("print('not run: no such GPU')", "sys.exit(3)")
    entry = run_for(context, 60, lambda own: measured(own, program))
    assert (entry["status"], entry["note"]) == ("not run", "no such GPU")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotRunError("absent"), "not run"),
        (FailedError("bad"), "failed"),
        (IndexError("x"), "failed"),
    ],
)
def test_what_a_step_raises_is_its_status(context: Context, error: Exception, status: str) -> None:
    def body(_: Context) -> Data:
        raise error

    assert run_for(context, 10, body)["status"] == status


@pytest.mark.parametrize("call", plan.CALLS)
def test_every_step_has_its_time_whatever_hangs(call: int, context: Context) -> None:
    clock = Clock()
    context.clock = clock
    given = {}

    def hanging(step: Step) -> Step:
        def run(own: Context) -> Data:
            given[step.name] = own.remaining()
            clock.now += own.remaining()
            return {"cut": True}

        return step if step.background else replace(step, run=run)

    steps = [hanging(step) for step in plan.CALLS[call]]
    statuses = {}

    def record(step: Step, entry: Data) -> None:
        statuses[step.name] = entry["status"]

    run_steps(steps, context, plan.BUDGETS[call] - 5, record, SimulatedThreads(clock))
    assert given == {step.name: step.seconds for step in steps if not step.background}
    assert {statuses[name] for name in given} == {"cut"}


def test_a_step_whose_program_is_not_built_yet_lets_others_go_first(context: Context) -> None:
    clock = Clock()
    context.clock = clock

    def takes(seconds: float) -> Callable[[Context], Data]:
        def run(_: Context) -> Data:
            clock.now += seconds
            return {}

        return run

    steps = [
        Step("slow", "", 100, takes(50), background=True),
        Step("slower", "", 100, takes(50), ("slow",), background=True),
        Step("needs both", "", 10, takes(1), ("slower",)),
        Step("needs one", "", 10, takes(1), ("slow",)),
        Step("free", "", 10, takes(1)),
    ]
    began: dict[str, float] = {}

    def record(step: Step, entry: Data) -> None:
        if entry["status"] == UNDER_WAY:
            began[step.name] = clock.now - 100

    run_steps(steps, context, 500, record, SimulatedThreads(clock))
    assert began == {"slow": 0, "slower": 50, "free": 15, "needs one": 50, "needs both": 100}


def test_step_without_time_is_not_run(context: Context) -> None:
    entries = []
    steps = [Step("x", "X", 10, lambda _: {}), Step("y", "Y", 10, lambda _: {}, background=True)]
    run_steps(steps, context, 1, lambda step, entry: entries.append((step.name, entry)), Threads())
    ended = {name: entry for name, entry in entries if entry["status"] != UNDER_WAY}
    assert set(ended) == {"x", "y"}
    assert {(entry["status"], entry["note"]) for entry in ended.values()} == {("not run", NO_TIME)}


def test_what_runs_in_the_background_ends_on_ctrl_c(context: Context, tmp_path: Path) -> None:
    begun, ended = tmp_path / "begun", threading.Event()

    def wait(own: Context) -> Data:
        program = script(f"open({str(begun)!r}, 'w').close()", "time.sleep(60)")
        assert execute(own, "sleep", program).status != 0
        with pytest.raises(NotRunError):
            execute(own, "another", script("time.sleep(60)"))
        ended.set()
        return {}

    def interrupted(_: Context) -> Data:
        deadline = time.monotonic() + 30
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyboardInterrupt

    steps = [Step("x", "X", 60, wait, background=True), Step("y", "Y", 60, interrupted)]
    with pytest.raises(KeyboardInterrupt):
        run_steps(steps, context, 100, lambda step, entry: None, Threads())
    assert ended.wait(10)


def test_without_googletest_all_but_the_tests_is_built(
    context: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[str] = []

    def run(own: Context, name: str, command: list[str], **_: Any) -> Finished:
        commands.append(" ".join(command))
        return Finished(0, "")

    monkeypatch.setattr(build, "execute", run)
    monkeypatch.setattr(build, "architecture", lambda: "90a-real")
    monkeypatch.setattr(build, "pybind11_folder", lambda _: "pybind11")
    monkeypatch.setattr(carried, "INSTALLED_GOOGLETEST", tmp_path / "absent")
    context.device = "cuda"
    statuses = {}

    def record(step: Step, entry: Data) -> None:
        statuses[step.name] = entry["status"]

    steps = [step for step in plan.CALLS[1] if step.name.startswith("build")]
    run_steps(steps, context, 100, record, Threads())
    assert statuses == {"build": "done", "build-tests": "not run", "build-engine": "done"}
    assert "-DSPECDEC_TESTS=OFF" in commands[0]
    assert not any("-DSPECDEC_TESTS=ON" in command for command in commands)
    assert any("--target _core" in command for command in commands)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((1, ["ceilings"], []), ["programs", "build", "ceilings"]),
        ((1, ["vllm-8b"], []), ["vllm-8b"]),
        ((2, ["steps-1b", "machine"], []), ["programs", "build", "machine", "steps-1b"]),
        ((1, ["torch", "sampler"], ["programs", "build"]), ["torch", "sampler"]),
    ],
)
def test_what_a_step_needs_runs_with_it(
    arguments: tuple[int, list[str] | None, list[str]], names: list[str]
) -> None:
    assert [step.name for step in plan.chosen_steps(*arguments)] == names


def test_what_was_written_halfway_when_a_program_ended_is_left_out(context: Context) -> None:
    program = script("pathlib.Path(sys.argv[1].removeprefix('--json=')).write_text('{')")
    assert measured(context, program) == {}


@pytest.mark.parametrize(("rate", "drafts", "tokens"), [(0.5, 2, 1.75), (1.0, 4, 5), (0.8, 0, 1)])
def test_mean_length_of_synthetic_acceptance(rate: float, drafts: int, tokens: float) -> None:
    assert engine_run.mean_length(rate, drafts) == pytest.approx(tokens)


def test_wheels_beside_it_can_be_imported(context: Context, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "beside_it-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("beside_it/__init__.py", "print('imported')")
    context.beside = [tmp_path]
    carried.import_wheels(context)
    assert "imported" in execute(context, "import", script("import beside_it")).output


def test_headers_of_cutlass_are_found_carried_or_in_its_wheel(
    context: Context, tmp_path: Path
) -> None:
    assert carried.find_cutlass(context) is None
    header = "cutlass/cutlass.h"
    (tmp_path / "headers/cutlass").mkdir(parents=True)
    (tmp_path / "headers" / header).touch()
    context.beside = [tmp_path, tmp_path / "headers"]
    assert carried.find_cutlass(context) == tmp_path / "headers"
    with zipfile.ZipFile(tmp_path / "nvidia_cutlass-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{carried.CUTLASS_INCLUDE}/{header}", "")
    carried.import_wheels(context)
    site = context.scratch / "site"
    assert carried.find_cutlass(context) == site / carried.CUTLASS_INCLUDE


def test_steps_follow_what_they_wait_for() -> None:
    background = {step.name for steps in plan.CALLS.values() for step in steps if step.background}
    for steps in (*plan.CALLS.values(), plan.OTHERS):
        names = [step.name for step in steps]
        assert len(set(names)) == len(names)
        for step in steps:
            assert set(step.after) <= background
            if step.background:
                assert set(step.after) <= set(names[: names.index(step.name)])


@pytest.mark.parametrize("call", plan.CALLS)
def test_the_steps_of_a_call_fit_into_its_time(call: int) -> None:
    seconds = sum(step.seconds for step in plan.CALLS[call] if not step.background)
    assert seconds <= plan.BUDGETS[call] - 5  # in which programs are unpacked


def test_folder_of_results_is_the_name_of_the_gpu() -> None:
    assert main.gpu_folder([{"name": "NVIDIA H200"}]) == "nvidia-h200"


def test_a_folder_from_which_no_program_runs_is_not_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("Permission denied")

    assert main.runs_programs(tmp_path)
    monkeypatch.setattr(subprocess, "run", refuse)
    assert not main.runs_programs(tmp_path)
    assert main.default_scratch() == Path(tempfile.gettempdir()) / "specdec-gpu-report"
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    assert main.main([]) == 2
    assert "--smoke" in capsys.readouterr().out


def test_it_runs_from_end_to_end_on_the_emulated_device(tmp_path: Path) -> None:
    folder = ROOT / "build/release"
    if not all((folder / "bench" / name).is_file() for name in build.BENCHES):
        pytest.skip("benchmarks are not built: scripts/test.sh bench builds them")
    command = [sys.executable, str(ROOT / "bench/gpu/report"), "--smoke", "--build", str(folder)]
    command += ["--out", str(tmp_path / "out"), "--scratch", str(tmp_path / "scratch")]
    subprocess.run([*command], check=True)
    skipped = ["transformers-8b", "engine-1b", "engine-1b-chains", "heads-1b", "kernels-int8"]
    subprocess.run([*command, "--call", "2", "--skip", *skipped], check=True)
    report = json.loads((tmp_path / "out/report.json").read_text())
    status = {name: entry["status"] for name, entry in report["steps"].items()}
    ran = {name for name in status if status[name] == "done"}
    benches = {"ceilings", "steps-8b", "kernels-8b", "kernels-int4", "kernels-many-rows", "sampler"}
    assert {"machine", "heads-8b", "engine-8b", "engine-8b-chains", *benches} <= ran
    notes = {entry["note"] for entry in report["steps"].values() if entry["status"] == "not run"}
    assert notes == {"no GPU", "no --prebuilt was given"}
    ceilings = report["steps"]["ceilings"]["data"]
    assert ceilings["facts"]["launches"].startswith("emulated kernels")
    ways = {(0, 0), (1, 0), (1, 1)}  # with an early launch, and with a trigger before the wait
    reads = [record for record in ceilings["records"] if record["kernel"] == "graph_reads"]
    assert {(r["blocks_each"], (r["overlap"], r["early"])) for r in reads} == {
        (blocks, way) for blocks in (1, 2) for way in ways
    }
    text = (tmp_path / "out/report.md").read_text()
    assert "| predicted | over it |" in text
    steps = [report["steps"]["steps-8b"]["data"]["records"]]
    steps += [
        report["steps"][plan.launch_step(word)]["data"]["records"] for word in plan.LAUNCH_WORDS
    ]
    assert all({record["drafts"] for record in records} == {0, 3} for records in steps)
    assert all(record["greedy"] for records in steps for record in records)
    # Every pass and kernel has a prediction, but for those of a target that stores for its head.
    for title, count, absent in (
        ("Passes of Llama-3.1-8B", 12, 0),
        ("Passes of an EAGLE-3 head of Llama-3.1-8B", 16, 2),
    ):
        table = text.split(f"## {title}\n\n")[1].split("\n\n")[0]
        rows = [line.split("|") for line in table.splitlines()[2:]]
        assert len(rows) == count
        assert [row[5].strip() for row in rows].count("") == absent
    passes = report["steps"]["heads-8b"]["data"]["records"]
    assert {(record["kernel"], record["each"]) for record in passes} == {
        ("target_pass", 1),
        *(("catch_up", tokens) for tokens in (1, 2, 5, 8)),
        *(("draft_pass", width) for width in (1, 4, 8)),
    }
    chains = report["steps"]["engine-8b-chains"]["data"]["records"]
    assert {record["drafts"] for record in chains} == set(range(8))
    assert all(record["tokens_per_step"] >= 1 for record in chains)
    assert "# CUDA backend on emulated" in text
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.json",
        "report.md",
        "log.txt",
    }
