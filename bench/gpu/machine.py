"""Describes the machine: the GPU, its driver, compilers, libraries."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from .steps import Context, Data

_QUERY = [
    "name",
    "driver_version",
    "memory.total",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
]
_SECONDS = 5  # for a program to say its version
# Searched after PATH: the toolkit, and the folder where containers mount the driver.
_CUDA_TOOLS = [Path("/usr/local/cuda/bin"), Path("/usr/local/nvidia/bin")]


def find_tool(name: str) -> str | None:
    """A program on PATH, of the CUDA toolkit or of the driver."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, _CUDA_TOOLS)))


def _line(index: int, *command: str) -> str | None:
    """A line of what a program says; None where there is no such program."""
    program = find_tool(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:]], check=False, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_SECONDS} s"
    lines = done.stdout.strip().splitlines()
    return lines[index] if lines else None


def gpus() -> list[dict[str, str]]:
    """The facts that nvidia-smi reports for each GPU; empty where there is none."""
    program = find_tool("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return []
    rows = [line.split(", ") for line in done.stdout.strip().splitlines()]
    return [dict(zip(_QUERY, row, strict=False)) for row in rows]


def _libraries() -> dict[str, str]:
    """Shared libraries that are loaded at run time where they are there."""
    folders = [Path(entry) / "nvidia" for entry in sys.path if (Path(entry) / "nvidia").is_dir()]
    folders += [Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu")]
    found = {}
    for name in ("libcublasLt.so", "libnccl.so", "libcuda.so"):
        for folder in folders:
            pattern = f"**/{name}*" if folder.name == "nvidia" else f"{name}*"
            if paths := sorted(folder.glob(pattern)):
                found[name] = str(paths[0])
                break
    return found


def _versions() -> dict[str, str]:
    versions = {}
    for package in ("torch", "transformers", "numpy", "tokenizers", "pybind11", "nlohmann-json"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def python_header() -> Path | None:
    """What Python modules are compiled with; None where it is not installed."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return header if header.is_file() else None


def describe(context: Context) -> Data:
    """Facts that a reader of the report needs, and what is missing."""
    header = python_header()
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()
    return {
        "gpus": gpus(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1),
        "system": platform.platform(),
        "glibc": platform.libc_ver()[1],
        "python": platform.python_version(),
        "python_header": str(header) if header else None,
        "gcc": _line(0, "g++", "--version"),
        "nvcc": _line(-1, "nvcc", "--version"),
        "cmake": _line(0, "cmake", "--version"),
        "ninja": _line(0, "ninja", "--version"),
        "compute_sanitizer": find_tool("compute-sanitizer"),
        "ncu": find_tool("ncu"),
        "libraries": _libraries(),
        "packages": _versions(),
        "beside": [folder.name for folder in context.beside],
    }
