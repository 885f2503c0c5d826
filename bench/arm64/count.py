#!/usr/bin/env python3
"""Counts the instructions of integer products on ARM64, ours and llama.cpp's, under qemu.

python bench/arm64/count.py BUILD [--rows 1 2 4] [--sets neon_i8mm] [--work DIRECTORY]
python bench/arm64/count.py BUILD --ports [--rows 1 4]

BUILD is a build folder of the preset arm64 that has arm64_product. llama.cpp's repacked loops come
from the source distribution of llama-cpp-python and are compiled with -O3 for each set. qemu logs
the instructions inside the loops' functions. Counts for two numbers of outputs are subtracted, so
that only the loops remain: instructions per byte of weight codes, and the ratio of both engines.

--ports prints what our loops need of some processors' pipes instead: the cycles that the busiest
kind of pipe takes for a byte, and the bytes per second that a core would read if that were the only
limit. Latencies, caches and instructions that only some pipes accept are ignored, so the cycles are
a lower bound.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SDIST = "llama-cpp-python==0.3.36"
COMPILER = "aarch64-linux-gnu-g++"
# llama.cpp has no repacked loop for plain NEON.
MARCH = {"neon_dotprod": "armv8.2-a+dotprod", "neon_i8mm": "armv8.2-a+dotprod+i8mm"}
SETS = ["neon", *MARCH]
BYTES_PER_WEIGHT = {"int8": 1.0, "int8_grouped": 1.0, "int4_grouped": 0.5}
NUM_INPUTS = 1024
OUTPUTS = (32, 64)
OUR_FUNCTIONS = ("run_int", "int_tile", "run_one_pass", "run_passes", "scale_outputs", "add_group")
GGML_FUNCTIONS = ("ggml_gemv", "ggml_gemm")


@dataclasses.dataclass(frozen=True)
class Processor:
    """Pipes of a core: how much it starts per cycle."""

    name: str
    sets: tuple[str, ...]  # the two widest kernel sets that it runs
    vectors: int  # operations on 128 bits
    loads: int  # loads of 128 bits; a pair counts as two
    accesses: int  # loads and stores
    instructions: int  # instructions decoded
    ghz: float

    def limits(self, mix: dict[str, float]) -> dict[str, float]:
        """Cycles that each kind of pipe needs."""
        return {
            "vectors": mix["vector"] / self.vectors,
            "loads": mix["load"] / self.loads,
            "loads and stores": (mix["load"] + mix["store"]) / self.accesses,
            "decoding": mix["instruction"] / self.instructions,
        }


# Arm, "Neoverse V2 Core" and "Neoverse N1 Core Software Optimization Guide" (block diagrams);
# of Apple's M1, D. Johnson's measurements of its Firestorm cores. Clocks of Grace, Altra and M1.
PROCESSORS = (
    Processor("Neoverse V2", ("neon_dotprod", "neon_i8mm"), 4, 3, 3, 8, 3.4),
    Processor("Neoverse N1", ("neon_dotprod",), 2, 2, 2, 4, 3.0),
    Processor("Apple M1", ("neon_dotprod",), 4, 3, 4, 8, 3.2),
)


def kinds_of(mnemonic: str, operands: str) -> collections.Counter[str]:
    """The pipes that an instruction uses."""
    kinds = collections.Counter(instruction=1)
    pair = mnemonic in ("ldp", "stp", "ldnp", "stnp")
    if mnemonic.startswith(("ld", "prfm")):
        kinds["load"] = 2 if pair and operands.startswith("q") else 1
        # Lanes are merged, and ld1 of several registers is as many loads.
        if mnemonic == "ld1" and "[" in operands.split("}")[1][:2]:
            kinds["vector"] = 1
    elif mnemonic.startswith("st"):
        kinds["store"] = 2 if pair and operands.startswith("q") else 1
    elif re.match(r"[vqdsh]\d", operands):
        kinds["vector"] = 1
    return kinds


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

    @functools.cached_property
    def kinds(self) -> dict[int, collections.Counter[str]]:
        """The pipes that each instruction uses, by address."""
        listing = subprocess.run(
            ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", self.path],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        lines = re.findall(r"^ *([0-9a-f]+):\t(\S+)[ \t]*(.*)$", listing, re.MULTILINE)
        return {int(address, 16): kinds_of(name, rest) for address, name, rest in lines}

    def count(
        self, isa: str, weight_format: str, rows: int, outputs: int
    ) -> collections.Counter[str]:
        """The operations that the functions execute."""
        mix: collections.Counter[str] = collections.Counter()
        with tempfile.NamedTemporaryFile("r", errors="replace") as log:
            what = [isa, weight_format, str(rows), str(outputs), str(NUM_INPUTS)]
            logging = ["-singlestep", "-d", "nochain,exec", "-D", log.name]
            emulator = ["qemu-aarch64-static", "-cpu", "max", *logging]
            emulator += ["-dfilter", self.address_ranges()]
            subprocess.run([*emulator, str(self.path), *what], check=True)
            addresses = collections.Counter(
                line.split("/")[1] for line in log if line.startswith("Trace")
            )
        for address, times in addresses.items():
            for kind, number in self.kinds[int(address, 16)].items():
                mix[kind] += number * times
        return mix

    def mix_per_byte(self, isa: str, weight_format: str, rows: int) -> dict[str, float]:
        """The operations of the loops alone, per byte of codes."""
        few, many = (self.count(isa, weight_format, rows, outputs) for outputs in OUTPUTS)
        num_bytes = (OUTPUTS[1] - OUTPUTS[0]) * NUM_INPUTS * BYTES_PER_WEIGHT[weight_format]
        return {kind: (number - few[kind]) / num_bytes for kind, number in many.items()}

    def instructions_per_byte(self, isa: str, weight_format: str, rows: int) -> float:
        """The instructions of the loops alone, per byte of codes."""
        return self.mix_per_byte(isa, weight_format, rows)["instruction"]


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
    # The loops' fallbacks for missing instructions are never called.
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


def compare(ours: Program, options: argparse.Namespace) -> None:
    """The table of instructions, ours and llama.cpp's."""
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


def print_ports(ours: Program, options: argparse.Namespace) -> None:
    """The table of cycles by the pipes of each processor."""
    mixes = {
        (isa, weight_format, rows): ours.mix_per_byte(isa, weight_format, rows)
        for isa in sorted({isa for processor in PROCESSORS for isa in processor.sets})
        for weight_format in BYTES_PER_WEIGHT
        for rows in options.rows
    }
    for processor in PROCESSORS:
        for isa in processor.sets:
            for weight_format in BYTES_PER_WEIGHT:
                cells = []
                for rows in options.rows:
                    limits = processor.limits(mixes[isa, weight_format, rows])
                    binding = max(limits, key=lambda kind: limits[kind])
                    cycles = limits[binding]
                    cells.append(f"{cycles:.3f} {binding}, {processor.ghz / cycles:.1f} GB/s")
                print(f"| {processor.name} | {isa} | {weight_format} | " + " | ".join(cells) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 3, 4, 5, 8, 16])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--ports", action="store_true", help="cycles by processors' pipes instead")
    parser.add_argument("--work", type=Path, default=Path("build/ggml"), help="for its sources")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    ours = Program(options.build / "bench/arm64_product", OUR_FUNCTIONS)
    titles = ["processor", "set", "weights"] if options.ports else ["set", "weights"]
    print("| " + " | ".join([*titles, *map(str, options.rows)]) + " |")
    print("|---" * (len(titles) + len(options.rows)) + "|")
    (print_ports if options.ports else compare)(ours, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
