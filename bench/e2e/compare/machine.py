"""Facts about machine and model that bound a step's speed."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
from pathlib import Path
from typing import Any

_GROUP_SIZE = 32  # of int4 weights, with one 16-bit scale each
_BYTES_PER_WEIGHT = {"bf16": 2.0, "int8": 1.0, "int4": 0.5 + 2.0 / _GROUP_SIZE}


def describe_machine(num_threads: int) -> dict[str, Any]:
    """The processor and the part of it that is used."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "num_threads": num_threads,
        "python": platform.python_version(),
    }


def weight_bytes(model: Path) -> dict[str, float]:
    """Bytes of weights that one token's pass reads, by precision.

    All of a safetensors checkpoint, less an input embedding that is not the head as well. Scales of
    int8 are left out as too few to count.
    """
    tensors: dict[str, int] = {}
    for file in model.glob("*.safetensors"):
        tensors |= _tensor_sizes(file)
    num_weights = sum(tensors.values())
    if any(name.endswith("lm_head.weight") for name in tensors):
        num_weights -= sum(n for name, n in tensors.items() if "embed_tokens" in name)
    return {precision: num_weights * size for precision, size in _BYTES_PER_WEIGHT.items()}


def _tensor_sizes(file: Path) -> dict[str, int]:
    """The number of elements of each tensor in a safetensors file."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    sizes = {}
    for name, entry in header.items():
        if name != "__metadata__":
            sizes[name] = 1
            for dimension in entry["shape"]:
                sizes[name] *= dimension
    return sizes


def find_read_bandwidth(root: Path) -> Path | None:
    """The benchmark program of that name in a build of this repository, the newest if several."""
    found = [file for file in root.glob("build*/**/bench/read_bandwidth") if file.is_file()]
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def read_bandwidth(program: Path, footprint_bytes: int, num_threads: int) -> float:
    """Bytes/s at which the threads read that much memory."""
    command = [str(program), str(footprint_bytes), str(num_threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output)["bytes_per_s"])
