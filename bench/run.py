#!/usr/bin/env python3
"""Runs the microbenchmarks of a build and collects their records in one JSON file.

python bench/run.py build/release --json micro.json [--smoke] [--threads N] [--only linear ...]

With --device cuda it is those of the CUDA backend instead, which need a build with SPECDEC_CUDA=ON;
--device emulated only proves that they run, where there is no GPU (SPECDEC_CUDA_EMULATION=ON).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Executable and arguments of its own; the projections once for each way of storing weights.
RUNS: list[tuple[str, list[str]]] = [
    ("machine_bench", []),
    ("thread_pool_bench", []),
    ("comm_bench", []),
    ("linear_bench", []),
    ("linear_bench", ["--format=int8"]),
    ("linear_bench", ["--format=int4_grouped"]),
    ("attention_bench", []),
    ("recurrent_bench", []),
    ("draft_head_bench", []),
    ("draft_head_bench", ["--format=int8"]),
    ("sampler_bench", []),
    ("scheduler_bench", []),
    ("speculation_bench", []),
]
GPU_RUNS: list[tuple[str, list[str]]] = [
    ("cuda_machine_bench", []),
    ("cuda_kernel_bench", []),
    ("cuda_kernel_bench", ["--nondeterministic"]),
]


def run(executable: Path, arguments: list[str]) -> dict[str, Any]:
    """The JSON of one benchmark, whose table goes to standard output meanwhile."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "records.json"
        command = [str(executable), f"--json={path}", *arguments]
        print("==", executable.name, *arguments, flush=True)
        subprocess.run(command, check=True)
        records: dict[str, Any] = json.loads(path.read_text())
    return records | {"arguments": arguments}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("build", type=Path, help="build directory, with SPECDEC_BENCH=ON")
    parser.add_argument("--json", type=Path, help="file for all records")
    parser.add_argument("--smoke", action="store_true", help="seconds: only proves that they run")
    parser.add_argument("--threads", type=int, help="default: what the engine would take")
    parser.add_argument("--device", choices=["cpu", "cuda", "emulated"], default="cpu")
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of benchmarks")
    options = parser.parse_args()

    shared = ["--smoke"] if options.smoke else []
    if options.threads is not None:
        shared.append(f"--threads={options.threads}")
    if options.device != "cpu":
        shared.append(f"--device={options.device}")
    results = []
    for name, arguments in RUNS if options.device == "cpu" else GPU_RUNS:
        if options.only and not any(part in name for part in options.only):
            continue
        executable = options.build / "bench" / name
        if not executable.is_file():
            print(f"{executable} is not built: configure with -DSPECDEC_BENCH=ON", file=sys.stderr)
            return 1
        results.append(run(executable, arguments + shared))
    if options.json is not None:
        summary = {"load_average_at_end": os.getloadavg()[0], "benchmarks": results}
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
