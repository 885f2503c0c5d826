"""The command line of the report."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import machine
from .build import PrebuiltError, read_programs
from .plan import BUDGETS, CALLS, OTHERS, chosen_steps
from .render import render
from .steps import (
    LOG,
    Context,
    Data,
    Step,
    Threads,
    adopt_under_way,
    read_json,
    run_steps,
    write_json,
)

ROOT = Path(__file__).resolve().parents[2]
_SMOKE_SECONDS = 1800.0
_SCRATCH_BYTES = 8 << 30  # of what is unpacked


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Options of the script."""
    parser = argparse.ArgumentParser(
        prog="bench/gpu/report",
        description="Tests and measures the CUDA backend on this machine's GPU, without a network.",
    )
    parser.add_argument(
        "--out", type=Path, help="folder for at most 8 files; default: bench/results/<gpu>"
    )
    parser.add_argument(
        "--prebuilt", type=Path, help="folder that bench/gpu/prebuild filled; needs --out"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu-report")
    parser.add_argument("--scratch", type=Path, help="for what is unpacked")
    parser.add_argument("--beside", type=Path, nargs="+", default=[], help="see bench.gpu.carried")
    parser.add_argument("--checkpoint", type=Path, help="real weights, such as SmolLM2-135M")
    parser.add_argument("--draft-checkpoint", type=Path, help="a draft model for them")
    parser.add_argument(
        "--budget", type=float, help="seconds for everything, by default the call's"
    )
    parser.add_argument(
        "--call",
        type=int,
        default=1,
        choices=CALLS,
        help="1 is the first contact; 2 keeps its results, which --out has, and goes on",
    )
    names = list(dict.fromkeys(step.name for steps in (*CALLS.values(), OTHERS) for step in steps))
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="STEP", help="other steps keep their results"
    )
    parser.add_argument("--skip", nargs="+", choices=names, metavar="STEP", default=[])
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes on the emulated device: only that it runs"
    )
    parser.add_argument(
        "--render", action="store_true", help="only write report.md anew, of what --out has"
    )
    options = parser.parse_args(arguments)
    if options.out is None and (options.render or (options.prebuilt and not options.smoke)):
        parser.error("--prebuilt and --render need --out, the folder of the results")
    return options


def default_scratch() -> Path:
    """Memory where there is enough of it and programs run from it, otherwise a temporary folder."""
    shared = Path("/dev/shm")
    if shared.is_dir():
        status = os.statvfs(shared)
        if status.f_bavail * status.f_frsize > _SCRATCH_BYTES and runs_programs(shared):
            return shared / "specdec-gpu-report"
    return Path(tempfile.gettempdir()) / "specdec-gpu-report"


def runs_programs(folder: Path) -> bool:
    """Whether programs may run from there; containers often forbid that in /dev/shm."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        program = Path(own) / "program"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        try:
            return subprocess.run([program], check=False).returncode == 0
        except OSError:
            return False


def gpu_folder(gpus: list[dict[str, str]]) -> str:
    """The folder of bench/results for this GPU: "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpus[0]["name"].lower()).strip("-")


def commit() -> str | None:
    """The commit that is measured, where that can be told."""
    if (git := machine.find_tool("git")) is None:
        return None
    command = [git, "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or None


def save(report: Data, out: Path) -> None:
    """Writes what there is so far; what cannot be rendered is in report.json all the same."""
    write_json(out / "report.json", report)
    try:
        text = render(report)
    except Exception as error:
        text = f"report.json cannot be rendered: {type(error).__name__}: {error}\n"
    (out / "report.md").write_text(text)


def load(out: Path) -> Data:
    """The report of an earlier call, with what a step had that was under way when it ended."""
    report: dict[str, Any] = {"steps": {}} | read_json(out / "report.json")
    adopt_under_way(out, report["steps"])
    return report


def make_context(options: argparse.Namespace, gpus: list[dict[str, str]]) -> Context:
    """The context of all steps, from the options."""
    folder = "emulated" if options.smoke else gpu_folder(gpus)
    return Context(
        root=ROOT,
        build=options.build.resolve(),
        out=(options.out or ROOT / "bench/results" / folder).resolve(),
        scratch=(options.scratch or default_scratch()).resolve(),
        beside=[folder.resolve() for folder in (*options.beside, options.prebuilt) if folder],
        prebuilt=options.prebuilt.resolve() if options.prebuilt and not options.smoke else None,
        device="emulated" if options.smoke else "cuda",
        smoke=options.smoke,
        checkpoint=options.checkpoint.resolve() if options.checkpoint else None,
        draft_checkpoint=options.draft_checkpoint.resolve() if options.draft_checkpoint else None,
    )


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.render:
        if not (options.out / "report.json").is_file():
            print(f"bench/gpu/report: {options.out} has no report.json")
            return 2
        save(load(options.out), options.out)
        return 0
    gpus = machine.gpus()
    if not gpus and not options.smoke:
        print("there is no NVIDIA GPU here; --smoke runs the same on the emulated device")
        return 2
    context = make_context(options, gpus)
    try:
        if context.prebuilt is not None:
            read_programs(context.prebuilt)
    except PrebuiltError as error:
        print(f"bench/gpu/report: {error}")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as on Ctrl-C: programs end, too
    report = run(options, context, "emulated" if options.smoke else gpus[0]["name"], Threads())
    print(render(report))
    failed = [name for name, entry in report["steps"].items() if entry["status"] == "failed"]
    return 1 if failed else 0


def run(options: argparse.Namespace, context: Context, gpu: str, background: Threads) -> Data:
    """Runs the chosen steps; the report, which is on disk after each."""
    begin = context.clock()
    facts = read_programs(context.prebuilt) if context.prebuilt else {}
    report: Data = {"steps": {}}
    if options.only or options.call > 1:
        report = load(context.out)
    else:
        (context.out / LOG).unlink(missing_ok=True)
        adopt_under_way(context.out, {})  # and leave out what an earlier report had
    context.results = report["steps"]
    report |= {
        "gpu": gpu,
        "commit": facts.get("commit") or commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "smoke": context.smoke,
    }
    lock = threading.Lock()

    def record(step: Step, entry: Data) -> None:
        with lock:
            report["steps"].pop(step.name, None)  # in the order in which they ran
            report["steps"][step.name] = entry | {"title": step.title}
            save(report, context.out)

    steps = chosen_steps(options.call, options.only, options.skip)
    budget = options.budget or BUDGETS[options.call]
    if context.smoke:  # at any speed of the machine
        steps, budget = [replace(step, seconds=_SMOKE_SECONDS) for step in steps], _SMOKE_SECONDS
    run_steps(steps, context, budget - (context.clock() - begin), record, background)
    return report
