"""The command line of the report."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from . import machine
from .plan import PARTS, chosen_steps
from .render import render
from .steps import LOG, Context, Data, Step, run_steps

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 530.0
_SCRATCH_BYTES = 8 << 30  # of what is unpacked, vLLM mostly


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Options of the script."""
    parser = argparse.ArgumentParser(
        prog="bench/gpu/report",
        description="Tests and measures the CUDA backend on this machine's GPU, without a network.",
    )
    parser.add_argument("--out", type=Path, help="default: bench/results/<gpu>")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu-report")
    parser.add_argument("--scratch", type=Path, help="for what is unpacked")
    parser.add_argument("--beside", type=Path, nargs="+", default=[], help="see bench.gpu.carried")
    parser.add_argument("--checkpoint", type=Path, help="real weights, such as SmolLM2-135M")
    parser.add_argument("--draft-checkpoint", type=Path, help="a draft model for them")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for everything")
    parser.add_argument(
        "--part",
        type=int,
        default=1,
        choices=range(1, len(PARTS) + 1),
        help="1 measures and tests; the others, which keep its results, do the rest",
    )
    names = list(dict.fromkeys(step.name for part in PARTS for step in part))
    parser.add_argument("--only", nargs="+", choices=names, help="other steps keep their results")
    parser.add_argument("--skip", nargs="+", choices=names, default=[])
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes on the emulated device: only that it runs"
    )
    return parser.parse_args(arguments)


def default_scratch() -> Path:
    """Memory where there is enough of it, otherwise a temporary folder."""
    shared = Path("/dev/shm")
    if shared.is_dir():
        status = os.statvfs(shared)
        if status.f_bavail * status.f_frsize > _SCRATCH_BYTES:
            return shared / "specdec-gpu-report"
    return Path(tempfile.gettempdir()) / "specdec-gpu-report"


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


def save(report: dict[str, Any], out: Path) -> None:
    """Writes what there is so far."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "report.md").write_text(render(report))


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    begin = time.monotonic()
    gpus = machine.gpus()
    if not gpus and not options.smoke:
        print("there is no NVIDIA GPU here; --smoke runs the same on the emulated device")
        return 2
    folder = "emulated" if options.smoke else gpu_folder(gpus)
    context = Context(
        root=ROOT,
        build=options.build.resolve(),
        out=(options.out or ROOT / "bench/results" / folder).resolve(),
        scratch=(options.scratch or default_scratch()).resolve(),
        beside=[folder.resolve() for folder in options.beside],
        device="emulated" if options.smoke else "cuda",
        smoke=options.smoke,
        checkpoint=options.checkpoint.resolve() if options.checkpoint else None,
        draft_checkpoint=options.draft_checkpoint.resolve() if options.draft_checkpoint else None,
    )
    path = context.out / "report.json"
    report: dict[str, Any] = {"steps": {}}
    if (options.only or options.part > 1) and path.is_file():
        report = json.loads(path.read_text())
    else:
        (context.out / LOG).unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as on Ctrl-C: programs end, too
    report |= {
        "gpu": "emulated" if options.smoke else gpus[0]["name"],
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "smoke": options.smoke,
    }
    lock = threading.Lock()

    def record(step: Step, entry: Data) -> None:
        with lock:
            report["steps"][step.name] = entry | {"title": step.title}
            save(report, context.out)

    steps = chosen_steps(options.part, options.only, options.skip)
    run_steps(steps, context, options.budget - (time.monotonic() - begin), record)
    print(render(report))
    failed = [name for name, entry in report["steps"].items() if entry["status"] == "failed"]
    return 1 if failed else 0
