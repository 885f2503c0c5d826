#!/usr/bin/env python3
"""Finds the tools to compile CUDA code, and gets missing ones from PyPI.

python scripts/cuda_toolkit.py nvcc DIRECTORY           prints the path of an nvcc
python scripts/cuda_toolkit.py disassembler DIRECTORY   prints the folder of cuobjdump and nvdisasm
python scripts/cuda_toolkit.py cutlass DIRECTORY        prints the folder of CUTLASS's headers
python scripts/cuda_toolkit.py headers DIRECTORY        prints the folder of the runtime's headers

nvcc is $CUDACXX, or the one on PATH or in /usr/local/cuda; without any, CUDA 13.0 is assembled in
DIRECTORY from the wheels that NVIDIA publishes, with pip of the Python that runs this. The
disassembler, CUTLASS and the headers always come from there, so that they are the same on every
machine.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

TOOLKIT = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
]
DISASSEMBLER = ["nvidia-cuda-cuobjdump==13.5.37", "nvidia-cuda-nvdisasm==13.5.37"]
CUTLASS = ["nvidia-cutlass==4.2.0.0"]
HEADERS = ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"]
# A toolkit's names of machines, by Python's names.
TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
CUDA_FOLDER = Path("nvidia/cu13")  # where the wheels put their files


def install(wheels: list[str], directory: Path) -> None:
    """Unpacks the wheels in `directory`, unless they are there."""
    stamp = directory / "wheels.txt"
    wanted = "\n".join(wheels)
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", str(directory), *wheels], check=True, stdout=sys.stderr)
        stamp.write_text(wanted)


def link(path: Path, target: str) -> None:
    """Makes the symbolic link `path`, whose folder may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target)


def lay_out(root: Path) -> None:
    """Adds the names an installed toolkit has and the wheels lack; CMake looks for them."""
    link(root / "lib64", "lib")
    link(root / "lib/libcudart.so", "libcudart.so.13")
    target = root / "targets" / TARGETS[platform.machine()]
    link(target / "include", "../../include")
    link(target / "lib", "../../lib")


def installed_nvcc(directory: Path) -> Path | None:
    """An nvcc of this machine, or one assembled in `directory` before."""
    for candidate in (
        os.environ.get("CUDACXX"),
        shutil.which("nvcc"),
        "/usr/local/cuda/bin/nvcc",
        directory / CUDA_FOLDER / "bin/nvcc",
    ):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def find_nvcc(directory: Path) -> Path:
    """An nvcc of this machine, or one assembled in `directory`."""
    found = installed_nvcc(directory)
    if found is not None:
        return found
    install(TOOLKIT, directory)
    root = directory / CUDA_FOLDER
    lay_out(root)
    return root / "bin/nvcc"


def find_disassembler(directory: Path) -> Path:
    """The folder of cuobjdump and of the nvdisasm it calls."""
    install(DISASSEMBLER, directory)
    return directory / CUDA_FOLDER / "bin"


def find_cutlass(directory: Path) -> Path:
    """The folder to include CUTLASS from: what SPECDEC_CUTLASS wants."""
    install(CUTLASS, directory)
    return directory / "cutlass_library/source/include"


def find_headers(directory: Path) -> Path:
    """The folder to include cuda_runtime_api.h from."""
    install(HEADERS, directory)
    return directory / CUDA_FOLDER / "include"


def main() -> int:
    finders = {
        "nvcc": find_nvcc,
        "disassembler": find_disassembler,
        "cutlass": find_cutlass,
        "headers": find_headers,
    }
    if len(sys.argv) != 3 or sys.argv[1] not in finders:
        print(__doc__, file=sys.stderr)
        return 2
    print(finders[sys.argv[1]](Path(sys.argv[2]).resolve()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
