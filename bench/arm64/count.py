#!/usr/bin/env python3
"""Counts the instructions of integer products on ARM64, ours and llama.cpp's, under qemu.

python bench/arm64/count.py BUILD [--rows 1 2 4] [--sets neon_i8mm] [--work DIRECTORY]

BUILD is a build folder of the preset arm64 that has arm64_product. llama.cpp's repacked loops come
from the source distribution of llama-cpp-python and are compiled with -O3 for each set. qemu logs
the instructions inside the loops' functions; those of two numbers of outputs are subtracted, so
what is printed is of the loops: instructions per byte of weights' codes, and the ratio.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SDIST = "llama-cpp-python==0.3.36"
COMPILER = "aarch64-linux-gnu-g++"
# llama.cpp has no loop of its own for plain NEON among those that it repacks weights for.
MARCH = {"neon_dotprod": "armv8.2-a+dotprod", "neon_i8mm": "armv8.2-a+dotprod+i8mm"}
SETS = ["neon", *MARCH]
BYTES_PER_WEIGHT = {"int8": 1.0, "int8_grouped": 1.0, "int4_grouped": 0.5}
NUM_INPUTS = 1024
OUTPUTS = (32, 64)
OUR_FUNCTIONS = ("run_int", "int_tile", "run_one_pass", "run_passes", "scale_outputs", "add_group")
GGML_FUNCTIONS = ("ggml_gemv", "ggml_gemm")


@dataclasses.dataclass(frozen=True)
class Program:
    """A static executable that computes one product, and the functions that are its loops."""

    path: Path
    functions: tuple[str, ...]

    def address_ranges(self) -> str:
        """Where the functions are, as qemu's -dfilter takes them."""
        symbols = subprocess.run(
            ["aarch64-linux-gnu-nm", "-S", self.path], capture_output=True, text=True, check=True
        ).stdout
        ranges = []
        for line in symbols.splitlines():
            fields = line.split()
            if len(fields) == 4 and any(name in fields[3] for name in self.functions):
                ranges.append(f"0x{fields[0]}+0x{fields[1]}")
        if not ranges:
            raise SystemExit(f"{self.path} has none of the functions {self.functions}")
        return ",".join(ranges)

    def count(self, isa: str, weight_format: str, rows: int, outputs: int) -> int:
        """Instructions that the functions run."""
        with tempfile.NamedTemporaryFile("r", errors="replace") as log:
            what = [isa, weight_format, str(rows), str(outputs), str(NUM_INPUTS)]
            logging = ["-singlestep", "-d", "nochain,exec", "-D", log.name]
            emulator = ["qemu-aarch64-static", "-cpu", "max", *logging]
            emulator += ["-dfilter", self.address_ranges()]
            subprocess.run([*emulator, str(self.path), *what], check=True)
            return sum(line.startswith("Trace") for line in log)

    def instructions_per_byte(self, isa: str, weight_format: str, rows: int) -> float:
        """Of the loops alone, per byte of codes."""
        few, many = (self.count(isa, weight_format, rows, outputs) for outputs in OUTPUTS)
        weights = (OUTPUTS[1] - OUTPUTS[0]) * NUM_INPUTS
        return (many - few) / (weights * BYTES_PER_WEIGHT[weight_format])


def run(*command: str | Path) -> None:
    """Runs a command and shows what it prints only where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")


def build_ggml(work: Path, isa: str) -> Program:
    """llama.cpp's loops for a set, with bench/arm64/ggml_product.cc around them."""
    sources = work / SDIST.replace("-", "_").replace("==", "-")
    if not sources.is_dir():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        run(*pip, "--no-binary", "llama-cpp-python", "-d", work, SDIST)
        with tarfile.open(f"{sources}.tar.gz") as archive:
            archive.extractall(work, filter="data")
    ggml = sources / "vendor/llama.cpp/ggml"
    program = work / f"ggml_{isa}"
    here = Path(__file__).resolve().parent
    includes = [f"-I{ggml / folder}" for folder in ("include", "src", "src/ggml-cpu")]
    options = ["-std=c++20", "-O3", "-DNDEBUG", f"-march={MARCH[isa]}", *includes]
    # What the loops fall back to without their instructions is never called.
    link: list[str | Path] = [
        "-static",
        "-no-pie",
        "-Wl,--unresolved-symbols=ignore-all",
        "-o",
        program,
    ]
    repack = ggml / "src/ggml-cpu/arch/arm/repack.cpp"
    run(COMPILER, *options, here / "ggml_product.cc", repack, *link)
    return Program(program, GGML_FUNCTIONS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 3, 4, 5, 6, 8, 12, 16])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--work", type=Path, default=Path("build/ggml"), help="for its sources")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    ours = Program(options.build / "bench/arm64_product", OUR_FUNCTIONS)
    print("| set | weights | " + " | ".join(map(str, options.rows)) + " |")
    print("|---|---|" + "---|" * len(options.rows))
    for isa in options.sets:
        ggml = build_ggml(options.work, isa) if isa in MARCH else None
        for weight_format in BYTES_PER_WEIGHT:
            cells = []
            for rows in options.rows:
                own = ours.instructions_per_byte(isa, weight_format, rows)
                cells.append(f"{own:.2f}")
                if ggml is not None:
                    peer = ggml.instructions_per_byte(isa, weight_format, rows)
                    cells[-1] += f" / {peer:.2f} = {own / peer:.2f}"
            print(f"| {isa} | {weight_format} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
