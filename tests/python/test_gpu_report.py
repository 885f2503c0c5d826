"""bench/gpu/report: steps keep to their time and leave their results, on any machine."""

import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu import carried, checkpoints, engine_run, googletest, machine, main, plan
from gpu.render import render
from gpu.steps import (
    Context,
    Data,
    FailedError,
    NotRunError,
    Step,
    execute,
    measured,
    run_step,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(
        root=ROOT,
        build=tmp_path / "build",
        out=tmp_path / "out",
        scratch=tmp_path / "scratch",
        beside=[],
        device="emulated",
        smoke=True,
    )


def script(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(("import json, pathlib, sys, time", *lines))]


WRITE = "pathlib.Path(sys.argv[1].removeprefix('--json=')).write_text(json.dumps({'records': [1]}))"


def run_for(context: Context, seconds: float, body: Callable[[Context], Data]) -> Data:
    return run_step(Step("x", "X", seconds, body), context, 100)


def test_step_that_takes_too_long_is_cut_and_keeps_what_it_measured(context: Context) -> None:
    program = script(WRITE, "print('working', flush=True)", "time.sleep(60)")
    begin = time.monotonic()
    entry = run_for(context, 2, lambda _: measured(context, "slow", program))
    assert time.monotonic() - begin < 20
    assert entry["status"] == "cut"
    assert entry["data"] == {"records": [1]}
    assert "[slow] working" in (context.out / "log.txt").read_text()


def test_children_of_a_cut_program_end_with_it(context: Context, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    child = f"import time\nwhile True: open({str(beat)!r}, 'a').write('x'); time.sleep(0.05)"
    program = script(
        "import subprocess", f"subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    )
    context.deadline = time.monotonic() + 1.5
    assert execute(context, "parent", program).cut
    time.sleep(0.3)
    size = beat.stat().st_size
    time.sleep(0.3)
    assert beat.stat().st_size == size


def test_program_that_fails_is_a_failed_step_with_its_records(context: Context) -> None:
    program = script(WRITE, "print('went wrong')", "sys.exit(1)")
    entry = run_for(context, 60, lambda _: measured(context, "bad", program))
    assert entry["status"] == "failed"
    assert "went wrong" in entry["note"]
    assert entry["data"] == {"records": [1]}


def test_benchmark_without_its_device_is_not_run(context: Context) -> None:
    program = script("print('not run: no such GPU')", "sys.exit(3)")
    entry = run_for(context, 60, lambda _: measured(context, "none", program))
    assert (entry["status"], entry["note"]) == ("not run", "no such GPU")


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotRunError("absent"), "not run"), (FailedError("bad"), "failed"), (OSError("x"), "failed")],
)
def test_what_a_step_raises_is_its_status(context: Context, error: Exception, status: str) -> None:
    def body(_: Context) -> Data:
        raise error

    assert run_for(context, 10, body)["status"] == status


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
    ("two", "ran", "passed", "alone"),
    [
        ("OK", 3, 3, None),
        ("SKIPPED", 3, 3, None),
        ("FAILED", 3, 2, {"Devices/A.Two/Gpu": "FAILED"}),
        ("CRASH", 2, 1, {"Devices/A.Two/Gpu": "ended", "B.Three/Gpu": "OK"}),
    ],
)
def test_tests_that_fail_are_run_again_by_themselves(
    two: str, ran: int, passed: int, alone: dict[str, str] | None, context: Context
) -> None:
    program = context.scratch / "suite"
    program.parent.mkdir()
    program.write_text(SUITE.format(two=two))
    program.chmod(0o755)
    result = googletest.run_program(context, program)
    assert (result["ran"], result["passed"], result.get("alone")) == (ran, passed, alone)
    assert result["failed"] == (["Devices/A.Two/Gpu"] if alone else [])


def test_what_was_written_halfway_when_a_program_ended_is_left_out(context: Context) -> None:
    program = script("pathlib.Path(sys.argv[1].removeprefix('--json=')).write_text('{')")
    assert measured(context, "half", program) == {}


def test_checkpoint_that_is_late_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        checkpoints.write("tiny", tmp_path, time.monotonic() - 1)
    assert not (tmp_path / "tiny/config.json").exists()


def test_checkpoint_is_what_its_config_says(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = checkpoints.write("tiny", tmp_path)
    weights = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    shapes = {}
    for file in set(weights.values()):
        with safe_open(path / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                tensor = opened.get_tensor(name).float()
                shapes[name] = tuple(tensor.shape)
                assert 0 < tensor.std() < 0.5
    assert shapes == dict(checkpoints.tensors(checkpoints.SHAPES["tiny"]))
    written = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert 0 <= written - checkpoints.weight_bytes(checkpoints.SHAPES["tiny"]) < 10_000


def test_shapes_are_those_of_the_models() -> None:
    def weights(name: str) -> float:
        return checkpoints.weight_bytes(checkpoints.SHAPES[name]) / 2

    assert weights("llama-3.2-1b") == 1_235_814_400
    assert weights("llama-3.1-8b") == 8_030_261_248


def test_checkpoint_in_several_files_has_every_tensor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdec_native import Engine

    monkeypatch.setattr(checkpoints, "_SHARD_BYTES", 200_000)
    path = checkpoints.write("tiny", tmp_path)
    assert len(list(path.glob("*.safetensors"))) > 1
    engine = Engine(path, device="cpu", skip_tokenizer_init=True, max_model_len=64)
    count = checkpoints.weight_bytes(checkpoints.SHAPES["tiny"]) // 2
    assert engine.model_info().num_parameters == count


@pytest.mark.parametrize(("rate", "drafts", "tokens"), [(0.5, 2, 1.75), (1.0, 4, 5), (0.8, 0, 1)])
def test_mean_length_of_synthetic_acceptance(rate: float, drafts: int, tokens: float) -> None:
    assert engine_run.mean_length(rate, drafts) == pytest.approx(tokens)


def test_wheels_beside_it_can_be_imported(context: Context, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "beside_it-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("beside_it/__init__.py", "print('imported')")
    context.beside = [tmp_path]
    carried.extend_path(context, carried.unpack_wheels(context))
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
    site = carried.unpack_wheels(context)
    assert carried.find_cutlass(context) == site / carried.CUTLASS_INCLUDE


def test_what_is_missing_beside_it_is_named(context: Context) -> None:
    with pytest.raises(NotRunError, match=r"vllm_c\.tar\.xz is not beside it"):
        carried.find_vllm(context)


def test_names_of_steps_are_distinct_and_their_order_is_kept() -> None:
    names = [step.name for step in plan.STEPS]
    assert len(set(names)) == len(names)
    assert names.index("build") < names.index("tests") < names.index("ceilings")


def test_folder_of_results_is_the_name_of_the_gpu() -> None:
    assert main.gpu_folder([{"name": "NVIDIA H200"}]) == "nvidia-h200"


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    assert main.main([]) == 2
    assert "--smoke" in capsys.readouterr().out


def pass_of(batch: int, drafts: int, seconds: float, of_read: float) -> Data:
    sizes = {"context": 1024.0, "batch": float(batch), "drafts": float(drafts)}
    figures = {"gb_per_s": 4000.0, "of_read": of_read, "over_0": seconds / 0.004}
    return sizes | figures | {"seconds": seconds, "sampled_us": 9.0}


def example_report() -> dict[str, Any]:
    def entry(title: str, data: Data) -> Data:
        return {"title": title, "status": "done", "seconds": 1.0, "data": data}

    def run(rate: float) -> Data:
        record = {"batch": 1, "context": 1024, "tokens_per_s": rate, "step_seconds": 1 / rate}
        return {"model": "llama-3.1-8b", "records": [record]}

    passes = [pass_of(1, 0, 0.004, 0.85), pass_of(1, 7, 0.0044, 0.8)]
    return {
        "gpu": "NVIDIA H200",
        "commit": "abc",
        "date": "today",
        "smoke": False,
        "steps": {
            "steps-8b": entry("Passes of 8B", {"records": passes}),
            "engine-8b": entry("Engine", {"runs": {"plain": run(200.0), "off": run(190.0)}}),
            "transformers-8b": entry("transformers", run(100.0)),
        },
    }


def test_report_says_what_determinism_costs_and_what_is_absent() -> None:
    rates = {"many_rows": 2e5, "wide_rows 128": 4e5, "cublasLt 0": 5e5, "cublasLt 1": 6e5}
    records = [
        {"kernel": f"qkv: {way}", "shape": "8B act", "rows": 512, "gflop_per_s": rate}
        for way, rate in rates.items()
    ]
    report = example_report()
    report["steps"]["kernels-many-rows"] = {
        "title": "Many rows",
        "status": "done",
        "seconds": 1.0,
        "data": {"records": records},
    }
    line = next(line for line in render(report).splitlines() if line.startswith("| qkv"))
    assert line == "| qkv | 8B act | 512 | 200 | 400 | absent | absent | absent | 600 | 3 |"


def test_report_holds_measurements_to_what_is_asked_of_them() -> None:
    lines = {line.split(" | ")[0]: line for line in render(example_report()).splitlines()}
    assert "0.85" in lines["| 8B decodes at 80% of read bandwidth"]
    assert "| yes |" in lines["| 8B decodes at 80% of read bandwidth"]
    assert "| no |" in lines["| 8B verifies 8 rows in 1.05 of the time of 1"]
    assert "| no |" in lines["| 8B with speculation off is within 1% of none"]
    assert "| yes |" in lines["| 8B is ahead of transformers at batch 1"]
    assert "| not measured |" in lines["| 1B decodes at 68% of read bandwidth"]
    assert "| not measured |" in lines["| 8B is ahead of vLLM at batch 1"]


def test_it_runs_from_end_to_end_on_the_emulated_device(tmp_path: Path) -> None:
    build = ROOT / "build/release"
    if not all((build / "bench" / name).is_file() for name in plan.BENCHES):
        pytest.skip("benchmarks are not built: scripts/test.sh bench builds them")
    command = [sys.executable, str(ROOT / "bench/gpu/report"), "--smoke", "--build", str(build)]
    command += ["--out", str(tmp_path / "out"), "--scratch", str(tmp_path / "scratch")]
    subprocess.run([*command, "--skip", "engine-1b", "transformers-8b"], check=True)
    report = json.loads((tmp_path / "out/report.json").read_text())
    status = {name: entry["status"] for name, entry in report["steps"].items()}
    ran = {name for name in status if status[name] == "done"}
    benches = {"ceilings", "steps-8b", "kernels-act", "kernels-many-rows", "engine-8b"}
    assert {"machine", *benches} <= ran
    notes = {entry["note"] for entry in report["steps"].values() if entry["status"] == "not run"}
    assert notes == {"no GPU", "no --checkpoint was given"}
    assert {record["drafts"] for record in report["steps"]["steps-8b"]["data"]["records"]} == {0, 3}
    assert "# CUDA backend on emulated" in (tmp_path / "out/report.md").read_text()
