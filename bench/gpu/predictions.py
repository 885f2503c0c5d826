"""The table of docs/gpu.md, without a GPU: python -m bench.gpu.predictions build/release"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from . import checkpoints
from .launches import ASSUMED, Record
from .step_time import record_seconds, weight_bytes

H100 = replace(ASSUMED, read_rate=3.05e12)


def list_launches(build: Path, bench: str, model: str, *sizes: str, head: str = "") -> list[Record]:
    """Records of a benchmark that has measured nothing, for the shapes of checkpoints.py."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch), Path(scratch) / "records.json"
        command = [str(build / "bench" / bench), f"--model={checkpoints.write(model, folder)}"]
        command += [f"--head={checkpoints.write(head, folder)}"] if head else []
        command += ["--load_format=dummy", "--greedy", "--list-launches", *sizes, f"--json={out}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records: list[Record] = json.loads(out.read_text())["records"]
    return records


def rows(build: Path) -> list[tuple[str, Record]]:
    """Steps of one request, and passes of a head in bfloat16."""
    found = []
    for shape, name, context, drafts in (
        ("llama-3.1-8b", "Llama-3.1-8B", 1024, "0,7,15"),
        ("llama-3.1-8b", "Llama-3.1-8B", 16384, "0"),
        ("llama-3.2-1b", "Llama-3.2-1B", 1024, "0,7"),
        ("qwen3-30b-a3b", "Qwen3-30B-A3B", 1024, "0,7"),
    ):
        sizes = ("--batches=1", f"--contexts={context}", f"--drafts={drafts}")
        for record in list_launches(build, "cuda_step_bench", shape, *sizes):
            count = f"{record['rows']} row{'s' * (record['rows'] > 1)}"
            found.append((f"{name}, {count}{', 16k' * (context > 1024)}", record))
    head = "llama-3.1-8b-eagle3"
    passes = {
        (record["kernel"], record["rows"]): record
        for record in list_launches(build, "cuda_head_bench", "llama-3.1-8b", head=head)
        if record["shape"] == "none head x1"
    }
    found.append(("EAGLE-3 head of the 8B, a draft", passes["draft_pass", 1]))
    found.append(("EAGLE-3 head of the 8B, 5 tokens", passes["catch_up", 5]))
    return found


def table(build: Path) -> list[str]:
    """Milliseconds on both GPUs: of reading the weights, and predicted."""
    lines = ["| | H200: floor (weights) | time | over the floor | H100: floor | time |"]
    lines.append("|---|---|---|---|---|---|")
    for name, record in rows(build):
        cells = []
        for costs in (ASSUMED, H100):
            floor, seconds = weight_bytes(record) / costs.read_rate, record_seconds(record, costs)
            assert seconds is not None
            seconds += costs.step if "drafts" in record else 0.0
            cells += [f"{value:#.3g}" for value in (1e3 * floor, 1e3 * seconds, seconds / floor)]
        lines.append(f"| {name} | {' | '.join(cells[:-1])} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table(Path(sys.argv[1]))))
