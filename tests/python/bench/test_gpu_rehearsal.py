"""Both calls of bench/gpu/report with a simulated clock: what comes home, whatever goes wrong."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu import build, carried, googletest, machine, main, plan, suites
from gpu.steps import Data, Line, NotRunError, Processes
from simulated_time import Clock, SimulatedThreads

TESTS = ("specdec_cuda_ptx_test", *(f"specdec_cuda_{letter}_test" for letter in "abcdef"))
OLD_GLIBC = "cuda_machine_bench: /lib/libc.so.6: version `GLIBC_2.40' not found"
FORBIDDEN = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access GPU counters"
NO_MODULE = "ModuleNotFoundError: No module named 'specdec_native'"
UNKNOWN_METRIC = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"


class KilledError(BaseException):
    """The end of the report in the middle of a step, after which nothing of it runs."""


def is_json(argument: str) -> bool:
    return argument.startswith("--json=")


def records_of(command: str) -> Data:
    """Three records of a command's program."""
    shared: Data = {"seconds": 0.004, "context": 1024, "batch": 1, "rows": 1, "threads": 132}
    if "step_bench" in command:
        figures = {"gb_per_s": 4000.0, "of_read": 0.9, "over_0": 1.0, "sampled_us": 9.0}
        drafts = [{"drafts": drafts, "shape": f"K {drafts}"} for drafts in (0, 3, 7)]
        return {"records": [shared | figures | {"kernel": "decode"} | each for each in drafts]}
    if "head_bench" in command:
        each = {"kernel": "draft_pass", "shape": "int8 head x1", "over_read": 1.1, "greedy": 1}
        return {"records": [shared | each | {"each": rows} for rows in (1, 4, 8)]}
    if "nondeterministic" in command:
        each = {"kernel": "qkv: many_rows", "shape": "Llama-3.1-8B act", "gflop_per_s": 2e5}
        return {"records": [shared | each | {"rows": rows} for rows in (128, 256, 512)]}
    if "kernel_bench" in command:
        each = {"kernel": "qkv", "shape": "Llama-3.1-8B act", "gflop_per_s": 1.0}
        return {"records": [shared | each | {"rows": rows} for rows in (1, 4, 8)]}
    if "machine_bench" in command:
        each = {"kernel": "copy", "shape": "4 GiB", "gb_per_s": 3000.0}
        return {"facts": {"launches": "kernels"}, "records": [shared | each] * 3}
    model = {"model": "llama-3.1-8b", "drafts": 0, "version": "1"}
    each = {"kernel": "qkv", "shape": "8B", "tokens_per_s": 200.0, "step_seconds": 0.005}
    return model | {"records": [shared | each | {"batch": batch} for batch in (1, 4, 16)]}


def googletests(name: str, crashes: bool) -> str:
    first = f"[ RUN      ] {name}.OneGpu\n[       OK ] {name}.OneGpu (1 ms)\n"
    return f"{first}[ RUN      ] {name}.TwoGpu\n" + (
        "" if crashes else f"[       OK ] {name}.TwoGpu (1 ms)\n"
    )


@dataclass
class StandIns(Processes):
    """Programs that take simulated time and say what real ones would.

    A program is in trouble where a part of its command line is in one of the sets.
    """

    clock: Clock
    out: Path
    hangs: set[str] = field(default_factory=set)
    crashes: set[str] = field(default_factory=set)
    killed_in: str = ""
    first_start: tuple[int, str] = (0, "")
    module: bool = True
    killed: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def run(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        seconds: float,
        line: Line,
    ) -> int | None:
        text = " ".join(command)
        check_files(self.out)
        if self.killed_in and self.killed_in in text:
            self.measure(command, 2)
            self.killed = True
        if self.killed:
            raise KilledError
        if any(part in text for part in self.hangs):
            self.measure(command, 1)
            self.clock.now += seconds
            return None
        crashes = any(part in text for part in self.crashes)
        took, status = self.ends(command, text, crashes, line)
        if took > seconds:
            self.clock.now += seconds
            return None
        self.clock.now += took
        return status

    def ends(
        self, command: Sequence[str], text: str, crashes: bool, line: Line
    ) -> tuple[float, int]:
        """Seconds of a program that does not hang, and its status."""
        name = Path(command[0]).name
        took, status = 0.1, 0
        if "xz -dc" in text:
            (target,) = re.findall(r"-C '([^']+)'", text)
            make_programs(Path(target))
            took = 5.0
        elif "--help" in command:
            status = self.first_start[0]
            line(f"{self.first_start[1]}\n")
        elif "cmake" in command:
            took = self.build(command)
        elif "pybind11" in command:
            line("/pybind11\n")
        elif "import specdec_native._core" in text:
            line("" if self.module else f"{NO_MODULE}\n")
            status = 0 if self.module else 1
        elif name == "ncu":
            took, status = 4.0, self.count(text, crashes, line)
        elif name == "compute-sanitizer":
            line("[ RUN      ] test\n========= ERROR SUMMARY: 0 errors\n")
            took = 2.0
        elif "pytest" in command:
            line("tests/python/specdec_native/engine/test_cuda.py::test_engine PASSED\n")
            took = 10.0
        elif name.endswith("_test"):
            took, status = 1.0, self.test(name, command, crashes, line)
        else:
            self.measure(command, 2 if crashes else 3)
            line("Segmentation fault\n" if crashes else f"{name}: measured\n")
            took, status = 3.0, -11 if crashes else 0
        return took, status

    def test(self, name: str, command: Sequence[str], crashes: bool, line: Line) -> int:
        if "--gtest_list_tests" in command:
            line(f"{name}.\n")
            for test in ("OneGpu", "TwoGpu"):
                line(f"  {test}\n")
            return 0
        line(googletests(name, crashes))
        return -6 if crashes else 0

    def count(self, text: str, crashes: bool, line: Line) -> int:
        """What ncu prints; the first time it does not know a metric."""
        if crashes:
            line(f"{FORBIDDEN}\n")
            return 1
        if UNKNOWN_METRIC in text:
            line(f"==ERROR== Failed to find metric {UNKNOWN_METRIC}\n")
            return 1
        line('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n')
        for launch in "01":
            line(f'"{launch}","few_rows_kernel","gpu__time_duration.sum","ns","81,500"\n')
            line(f'"{launch}","few_rows_kernel","dram__bytes.sum","byte","235000000"\n')
        return 0

    def measure(self, command: Sequence[str], count: int) -> None:
        for path in [argument.removeprefix("--json=") for argument in command if is_json(argument)]:
            data = records_of(" ".join(command))
            Path(path).write_text(json.dumps(data | {"records": data["records"][:count]}))

    def build(self, command: Sequence[str]) -> float:
        """What CMake does, and its seconds."""
        if "-B" in command:
            return 8.0
        if build.BENCHES[0] in command:
            make_programs(Path(command[command.index("--build") + 1]), tests=())
            return 100.0
        return 20.0


def make_programs(folder: Path, tests: Sequence[str] = TESTS) -> None:
    names = [f"bench/{name}" for name in build.BENCHES] + [f"tests/cuda/{name}" for name in tests]
    for name in (build.LIBRARY, *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def check_files(out: Path) -> None:
    """What may come home of such a folder."""
    files = list(out.iterdir()) if out.is_dir() else []
    assert len(files) <= 8
    for path in files:
        assert path.is_file()
        assert path.stat().st_size <= 16 << 20
        assert re.fullmatch(r"[A-Za-z0-9._-]+", path.name)


Call = Callable[..., dict[str, Data]]


@pytest.fixture
def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A function that runs a call with these troubles and returns the steps of its report."""
    root = tmp_path / "root"
    for package in ("specdec_native", "specdec_vllm"):
        (root / "python" / package).mkdir(parents=True)
    prebuilt = tmp_path / "prebuilt"
    prebuilt.mkdir()
    (prebuilt / build.ARCHIVE).touch()
    facts = {"architecture": "90a-real", "commit": "abc"}
    (prebuilt / build.FACTS).write_text(json.dumps(facts))
    monkeypatch.setattr(main, "ROOT", root)
    monkeypatch.setattr(googletest, "_AT_ONCE", 1)
    monkeypatch.setattr(suites, "_SANITIZERS", 1)
    monkeypatch.setattr(machine, "_line", lambda *_: "a version")
    monkeypatch.setattr(machine, "gpus", lambda: [{"name": "NVIDIA H100"}])
    monkeypatch.setattr(build, "architecture", lambda: "90a-real")

    def run(
        call: int = 1, missing: Sequence[str] = (), packages: bool = True, **troubles: object
    ) -> dict[str, Data]:
        monkeypatch.setattr(machine, "find_tool", lambda name: None if name in missing else name)

        def need_package(name: str) -> None:
            if not packages:
                raise NotRunError(f"{name} is not installed")

        monkeypatch.setattr(plan, "need_package", need_package)
        clock = Clock()
        begin = clock.now
        out = tmp_path / "out"
        programs = StandIns(clock, out, **troubles)  # type: ignore[arg-type]
        arguments = ["--call", str(call), "--prebuilt", str(prebuilt), "--out", str(out)]
        options = main.parse_arguments(arguments)
        context = main.make_context(options, [{"name": "NVIDIA H100"}])
        context.processes, context.clock = programs, clock
        context.build, context.scratch = tmp_path / "build", tmp_path / "scratch"
        main.run(options, context, "NVIDIA H100", SimulatedThreads(clock))
        assert clock.now - begin <= plan.BUDGETS[call]
        assert files(tmp_path) == {"report.json", "report.md", "log.txt"}
        assert "cannot be rendered" not in (out / "report.md").read_text()
        return saved(tmp_path)

    return run


def files(tmp_path: Path) -> set[str]:
    return set(os.listdir(tmp_path / "out"))


def saved(tmp_path: Path) -> dict[str, Data]:
    report = json.loads((tmp_path / "out/report.json").read_text())
    steps: dict[str, Data] = report["steps"]
    return steps


def with_status(steps: dict[str, Data], *statuses: str) -> dict[str, str]:
    """Notes of the steps with one of these statuses."""
    return {
        name: entry.get("note", "") for name, entry in steps.items() if entry["status"] in statuses
    }


BUILT = {
    "build": "the programs were built beforehand",
    "build-tests": "the programs were built beforehand",
}


def test_all_is_well(rehearse: Call, tmp_path: Path) -> None:
    first = rehearse()
    assert set(first) == {step.name for step in plan.CALLS[1]}
    in_order = [step.name for step in plan.CALLS[1] if not step.background]
    assert [name for name in first if name in in_order] == in_order
    assert with_status(first, "not run") == BUILT
    assert with_status(first, "failed", "cut") == {}
    for name in ("ceilings", "steps-8b", "steps-8b-no_plan", "kernels-8b", "heads-8b", "engine-8b"):
        assert len(first[name]["data"]["records"]) == 3
    # ncu is asked again without the metric that it does not know.
    assert first["ncu-few-rows"]["data"]["records"][1]["gpu__time_duration.sum"] == 81500
    assert first["tests"]["data"]["programs"]["specdec_cuda_a_test"]["passed"] == 2
    second = rehearse(call=2)
    assert set(second) == {step.name for call in plan.CALLS.values() for step in call}
    unknown = "no test that failed is known"
    assert with_status(second, "not run") == BUILT | dict.fromkeys(
        ("tests-again", "sanitizer"), unknown
    )
    assert with_status(second, "failed", "cut") == {}
    assert second["steps-8b"] == first["steps-8b"]
    text = (tmp_path / "out/report.md").read_text()
    assert "Passes of Llama-3.1-8B by launch" in text
    assert "| few_rows_kernel | act | 8 |" in text
    assert "abc" in text


def test_a_program_that_hangs_costs_its_own_time(rehearse: Call) -> None:
    hangs = {"launch=no_meeting", "cuda_b_test", "torch_run", "ncu --clock-control"}
    steps = rehearse(hangs=hangs)
    cut = {"steps-8b-no_meeting", "tests", "torch", "ncu-few-rows", "ncu-many-rows"}
    assert set(with_status(steps, "cut")) == cut
    assert with_status(steps, "failed") == {}
    assert with_status(steps, "not run") == BUILT
    assert len(steps["steps-8b-no_meeting"]["data"]["records"]) == 1
    assert steps["steps-8b-no_meeting"]["seconds"] == 6
    programs = steps["tests"]["data"]["programs"]
    assert programs["specdec_cuda_b_test"]["status"] is None
    assert programs["specdec_cuda_f_test"]["passed"] == 2
    assert len(steps["engine-8b-eagle3"]["data"]["records"]) == 3


def test_what_crashes_is_run_alone_and_checked_in_the_second_call(rehearse: Call) -> None:
    crashes = {"specdec_cuda_c_test", "cuda_head_bench"}
    steps = rehearse(crashes=crashes)
    assert with_status(steps, "failed") == {
        "tests": "specdec_cuda_c_test",
        "heads-8b": "exit status -11: Segmentation fault",
    }
    assert len(steps["heads-8b"]["data"]["records"]) == 2
    failed = ["specdec_cuda_c_test.TwoGpu"]
    assert steps["tests"]["data"]["programs"]["specdec_cuda_c_test"]["unfinished"] == failed
    steps = rehearse(call=2, crashes={"specdec_cuda_c_test --gtest_filter"})
    assert steps["tests-again"]["data"]["alone"] == {failed[0]: "ended"}
    assert set(steps["sanitizer"]["data"]) == {f"memcheck {failed[0]}", f"racecheck {failed[0]}"}


@pytest.mark.parametrize(
    ("troubles", "reason"),
    [
        ({"missing": ["ncu", "compute-sanitizer"]}, "ncu is not installed"),
        ({"crashes": {"ncu --clock-control"}}, f"ncu: {FORBIDDEN.removeprefix('==ERROR== ')}"),
    ],
)
def test_without_ncu_the_other_steps_run(
    troubles: dict[str, object], reason: str, rehearse: Call
) -> None:
    steps = rehearse(**troubles)
    counted = dict.fromkeys(("ncu-few-rows", "ncu-many-rows"), reason)
    assert with_status(steps, "not run") == BUILT | counted
    assert with_status(steps, "failed", "cut") == {}


def test_without_the_module_and_torch_the_benchmarks_run(rehearse: Call) -> None:
    steps = rehearse(module=False, packages=False)
    absent = f"the Python module is not there: {NO_MODULE}"
    engines = dict.fromkeys(("engine-8b", "engine-8b-eagle3"), absent)
    assert with_status(steps, "not run") == BUILT | engines | {"torch": "torch is not installed"}
    assert len(steps["kernels-many-rows"]["data"]["records"]) == 3


@pytest.mark.parametrize("status", [1, 127])
def test_programs_that_do_not_start_are_built(
    status: int, rehearse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried, "build_googletest", googletest_is_missing)
    steps = rehearse(first_start=(status, OLD_GLIBC))
    problem = f"cuda_machine_bench does not start: {OLD_GLIBC}: benchmarks are built here"
    assert with_status(steps, "failed") == {"programs": problem}
    assert steps["build"]["status"] == "done"
    assert list(steps).index("torch") < list(steps).index("ceilings")  # it needs no build
    assert with_status(steps, "not run") == {
        "build-tests": "googletest is neither installed nor beside it",
        "instructions": "the tests were not built",
        "tests": "the tests were not built",
    }
    for name in ("ceilings", "steps-8b", "kernels-8b", "heads-8b", "engine-8b"):
        assert len(steps[name]["data"]["records"]) == 3


def googletest_is_missing(_: object) -> None:
    raise NotRunError("googletest is neither installed nor beside it")


def test_programs_for_another_gpu_are_built(
    rehearse: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried, "build_googletest", googletest_is_missing)
    monkeypatch.setattr(build, "architecture", lambda: "100a-real")
    steps = rehearse()
    problem = "the programs are for 90a-real, and this GPU is 100a-real: benchmarks are built here"
    assert steps["programs"]["note"] == problem
    assert steps["ceilings"]["status"] == "done"


def test_a_report_that_is_killed_leaves_all_that_was_measured(
    rehearse: Call, tmp_path: Path
) -> None:
    with pytest.raises(KilledError):
        rehearse(killed_in="launch=no_overlap")
    under_way = "steps-8b-no_overlap.under-way.json"
    assert files(tmp_path) == {"report.json", "report.md", "log.txt", under_way}
    steps = saved(tmp_path)
    assert steps["steps-8b-no_overlap"]["status"] == "under way"
    for name in ("instructions", "tests", "ceilings", "steps-8b"):
        assert steps[name]["status"] == "done"
    assert "[steps-8b] cuda_step_bench: measured" in (tmp_path / "out/log.txt").read_text()
    # At home the records of the step are entered.
    assert main.main(["--render", "--out", str(tmp_path / "out")]) == 0
    assert files(tmp_path) == {"report.json", "report.md", "log.txt"}
    entry = saved(tmp_path)["steps-8b-no_overlap"]
    assert (entry["status"], entry["note"]) == ("cut", "the report was ended in this step")
    assert len(entry["data"]["records"]) == 2
    assert "| no_overlap | 3 |" in (tmp_path / "out/report.md").read_text()


def test_test_programs_are_on_disk_one_by_one(rehearse: Call, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        rehearse(killed_in="specdec_cuda_d_test")
    programs = json.loads((tmp_path / "out/tests.under-way.json").read_text())["programs"]
    assert set(programs) == {f"specdec_cuda_{letter}_test" for letter in "abc"}
    # The next call goes on from there.
    steps = rehearse(call=2)
    assert steps["tests"]["status"] == "cut"
    assert set(steps["tests"]["data"]["programs"]) == set(programs)
