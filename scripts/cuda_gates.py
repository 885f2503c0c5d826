#!/usr/bin/env python3
"""Checks compiled CUDA kernels and fails where the compiler's result breaks a rule.

python scripts/cuda_gates.py --disassembler DIRECTORY [--rules FILE] [--build DIRECTORY] OBJECT ...

The checks of every kernel in the objects, for every architecture: it uses no local memory (a stack
frame or spilled registers) beyond what a rule allows, its static shared memory fits the room that
launches leave, it has at most the registers of its rule, it has the instructions that rules demand
and none that they forbid. The code of kernels that run together fits the instruction cache. The
default rules are those of cuda_gates.txt beside this script. Prints a table of registers, static
shared memory, code and instructions; with --build, also the sources that took longest to compile.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

RULES = Path(__file__).with_name("cuda_gates.txt")
# kMaxStaticSharedBytes of cuda/gpu/device.h; the emulation refuses launches above it.
MAX_STATIC_SHARED_BYTES = 1024
# The system's part of a block's shared memory, where the compiler counts it as static.
RESERVED_SHARED_BYTES = {"sm_90a": 1024}
INSTRUCTION_BYTES = 16
_STACK = "stack="
_REGISTERS = "registers="
_CODE = "code<="
# Loads and stores of local memory, which is where spilled registers go.
LOCAL_MEMORY = re.compile(r"(LDL|STL)\b")
# An instruction's line: its address in a comment, perhaps a predicate, then the opcode.
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.a-z]*)")
ARCHITECTURE = re.compile(r"(?:arch = |\s+code for )(sm_\w+)")
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass
class Kernel:
    """One kernel compiled for one architecture."""

    name: str  # demangled
    architecture: str
    registers: int = 0
    stack_bytes: int = 0  # a thread's frame, spilled registers included
    shared_bytes: int = 0  # static, and on some architectures what the system takes
    local_bytes: int = 0
    opcodes: Counter[str] = field(default_factory=Counter)  # in order of their first use

    @property
    def static_bytes(self) -> int:
        """Bytes of its static shared arrays."""
        return max(self.shared_bytes - RESERVED_SHARED_BYTES.get(self.architecture, 0), 0)

    @property
    def code_bytes(self) -> int:
        """Bytes of its instructions."""
        return sum(self.opcodes.values()) * INSTRUCTION_BYTES

    def count(self, pattern: str) -> int:
        """Instructions whose opcode begins with the pattern."""
        expression = re.compile(pattern)
        return sum(n for opcode, n in self.opcodes.items() if expression.match(opcode))

    def has(self, wanted: str) -> bool:
        """Whether it has the instructions that a rule wants: "A", or "A<B" for A before any B."""
        patterns = wanted.split("<")
        indices = [
            next((i for i, code in enumerate(self.opcodes) if re.match(pattern, code)), None)
            for pattern in patterns
        ]
        found = [index for index in indices if index is not None]
        return len(found) == len(indices) and found == sorted(found)


@dataclass(frozen=True)
class Rule:
    """Instructions that kernels of some name must have, or with a ! must not have."""

    kernel: str  # regular expression, searched for in the demangled name
    architecture: str  # "sm_90a", or "*"
    opcodes: tuple[str, ...]  # arguments of Kernel.has, a ! before those that are forbidden
    stack_bytes: int = 0  # allowed frame, for arrays that are indexed at run time
    registers: int = 255  # allowed per thread

    def concerns(self, kernel: Kernel) -> bool:
        """Whether the rule applies to this kernel."""
        same = self.architecture in {"*", kernel.architecture}
        return same and re.search(self.kernel, kernel.name) is not None

    def violations(self, kernel: Kernel) -> list[str]:
        """How a kernel breaks the rule."""
        forbidden = [code[1:] for code in self.opcodes if code.startswith("!")]
        missing = [c for c in self.opcodes if not c.startswith("!") and not kernel.has(c)]
        wrong = [f"no {code} instruction" for code in missing]
        wrong += [f"{code} instructions" for code in forbidden if kernel.has(code)]
        if kernel.registers > self.registers:
            wrong.append(f"{kernel.registers} registers, of {self.registers} at most")
        return wrong


@dataclass(frozen=True)
class Budget:
    """Kernels that run in turn repeatedly; of each pattern, the longest kernel counts."""

    architecture: str
    code_bytes: int  # limit of all together
    kernels: tuple[str, ...]  # regular expressions, as of a Rule

    def violations(self, kernels: list[Kernel]) -> list[str]:
        """How all kernels together break the budget."""
        longest = []
        for pattern in self.kernels:
            found = [
                kernel
                for kernel in kernels
                if kernel.architecture == self.architecture and re.search(pattern, kernel.name)
            ]
            if not found:
                return [f"budget: there is no kernel '{pattern}' ({self.architecture})"]
            longest.append(max(found, key=lambda kernel: kernel.code_bytes))
        total = sum(kernel.code_bytes for kernel in longest)
        if total <= self.code_bytes:
            return []
        parts = ", ".join(f"{kernel.name} {kernel.code_bytes}" for kernel in longest)
        return [f"{total} bytes of code ({self.architecture}), of {self.code_bytes}: {parts}"]


def read_rules(lines: Iterable[str]) -> list[Rule]:
    """Rules of a table: kernel, architecture and opcodes, apart by spaces; # begins a comment.

    `stack=N` in place of an opcode allows a frame of N bytes, `registers=N` so many registers.
    """
    rules = []
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if words[0].startswith(_CODE):
            continue
        if len(words) < 3:
            raise SystemExit(f"rule in line {number}: want KERNEL ARCHITECTURE OPCODE ...")
        stack = [int(word[len(_STACK) :]) for word in words[2:] if word.startswith(_STACK)]
        registers = [int(w[len(_REGISTERS) :]) for w in words[2:] if w.startswith(_REGISTERS)]
        opcodes = tuple(word for word in words[2:] if not word.startswith((_STACK, _REGISTERS)))
        rules.append(
            Rule(words[0], words[1], opcodes, max(stack, default=0), min(registers, default=255))
        )
    return rules


def read_budgets(lines: Iterable[str]) -> list[Budget]:
    """Budgets of the same table: `code<=BYTES ARCHITECTURE KERNEL ...`."""
    budgets = []
    for line in lines:
        words = line.split("#", 1)[0].split()
        if words and words[0].startswith(_CODE):
            size = int(words[0][len(_CODE) :])
            budgets.append(Budget(words[1], size, tuple(words[2:])))
    return budgets


def parse_resources(text: str) -> Iterator[tuple[str, str, tuple[int, int, int, int]]]:
    """(architecture, mangled name, (registers, stack, shared, local)) of cuobjdump -res-usage."""
    architecture = name = ""
    for line in text.splitlines():
        if found := ARCHITECTURE.match(line):
            architecture = found[1]
        elif found := re.match(r"\s+Function (\S+):$", line):
            name = found[1]
        elif name and (found := RESOURCES.search(line)):
            registers, stack, shared, local = map(int, found.groups())
            yield architecture, name, (registers, stack, shared, local)
            name = ""


def parse_instructions(text: str) -> Iterator[tuple[str, str, Counter[str]]]:
    """(architecture, mangled name, how often each opcode stands there) of cuobjdump -sass."""
    architecture = name = ""
    opcodes: Counter[str] = Counter()
    for line in text.splitlines():
        if found := INSTRUCTION.match(line):
            opcodes[found[1]] += 1
            continue
        found_architecture = ARCHITECTURE.match(line)
        found_name = re.match(r"\s+Function : (\S+)", line)
        if (found_architecture or found_name) and name:
            yield architecture, name, opcodes
            name, opcodes = "", Counter()
        if found_architecture:
            architecture = found_architecture[1]
        elif found_name:
            name = found_name[1]
    if name:
        yield architecture, name, opcodes


def shorten(name: str) -> str:
    """A demangled name without the return type, the parameters and the project's namespaces."""
    depth = 0
    for i in reversed(range(len(name))):  # to the parenthesis that opens the parameters
        depth += {")": 1, "(": -1}.get(name[i], 0)
        if depth == 0:
            name = name[:i] if name.endswith(")") else name
            break
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.sub(r"specdec::(cuda::)?(native::)?", "", name)


def demangle(names: Iterable[str]) -> dict[str, str]:
    """Readable names of mangled ones."""
    mangled = sorted(set(names))
    text = subprocess.run(
        ["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True
    ).stdout
    return dict(zip(mangled, map(shorten, text.splitlines()), strict=True))


def read_kernels(objects: list[Path], disassembler: Path) -> list[Kernel]:
    """All kernels of object files, in order of name."""
    kernels: dict[tuple[str, str], Kernel] = {}
    for path in objects:
        dumps = []
        for what in ("-res-usage", "-sass"):
            command = [str(disassembler / "cuobjdump"), what, str(path)]
            environment = {"PATH": f"{disassembler}:/usr/bin:/bin"}  # it calls nvdisasm
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, env=environment
            )
            if done.returncode != 0 and "does not contain device code" not in done.stderr:
                raise SystemExit(f"{path}: {done.stderr.strip()}")
            dumps.append(done.stdout)
        for architecture, name, (registers, stack, shared, local) in parse_resources(dumps[0]):
            kernels[architecture, name] = Kernel(
                name, architecture, registers, stack, shared, local
            )
        for architecture, name, opcodes in parse_instructions(dumps[1]):
            if (architecture, name) in kernels:
                kernels[architecture, name].opcodes = opcodes
    readable = demangle(kernel.name for kernel in kernels.values())
    for kernel in kernels.values():
        kernel.name = readable[kernel.name]
    return sorted(kernels.values(), key=lambda kernel: (kernel.name, kernel.architecture))


def violations(
    kernels: list[Kernel], rules: list[Rule], budgets: Iterable[Budget] = ()
) -> list[str]:
    """All violations, a line each."""
    found = [wrong for budget in budgets for wrong in budget.violations(kernels)]
    for kernel in kernels:
        where = f"{kernel.name} ({kernel.architecture})"
        spilled = sum(n for code, n in kernel.opcodes.items() if LOCAL_MEMORY.match(code))
        allowed = max((rule.stack_bytes for rule in rules if rule.concerns(kernel)), default=0)
        if kernel.stack_bytes > allowed or kernel.local_bytes or (spilled and not allowed):
            found.append(
                f"{where}: {kernel.stack_bytes} bytes of stack, {kernel.local_bytes} of local "
                f"memory, {spilled} loads and stores there; spilled registers, or an array that "
                "is not indexed by constants"
            )
        if kernel.static_bytes > MAX_STATIC_SHARED_BYTES:
            found.append(
                f"{where}: {kernel.static_bytes} bytes of static shared memory, of "
                f"{MAX_STATIC_SHARED_BYTES} at most; use SPECDEC_SHARED_BYTES"
            )
        for rule in rules:
            if rule.concerns(kernel):
                found += [f"{where}: {wrong}" for wrong in rule.violations(kernel)]
    for rule in rules:
        if not any(rule.concerns(kernel) for kernel in kernels):
            found.append(f"rule '{rule.kernel}' ({rule.architecture}): there is no such kernel")
    if not kernels:
        found.append("no kernels in these objects")
    return found


def print_table(kernels: list[Kernel]) -> None:
    """One line a kernel and architecture."""
    columns = {"mma": "HMMA|IMMA|HGMMA|QGMMA", "128": r"LDG.*\.128", "async": "LDGSTS|UBLKCP"}
    width = max((len(kernel.name) for kernel in kernels), default=6)
    heads = "".join(f"{name:>7}" for name in columns)
    print(f"{'kernel':<{width}}  {'arch':<7}{'registers':>9}{'shared':>8}{'code':>8}{heads}")
    for kernel in kernels:
        counts = "".join(f"{kernel.count(pattern):>7}" for pattern in columns.values())
        print(
            f"{kernel.name:<{width}}  {kernel.architecture:<7}{kernel.registers:>9}"
            f"{kernel.static_bytes:>8}{kernel.code_bytes:>8}{counts}"
        )


def slowest_sources(build: Path, count: int = 5) -> list[tuple[float, str]]:
    """Seconds and names of the CUDA objects that took longest, from ninja's log."""
    seconds: dict[str, float] = {}
    for line in (build / ".ninja_log").read_text().splitlines():
        fields = line.split("\t")
        if len(fields) >= 4 and fields[3].endswith(".cu.o"):
            seconds[Path(fields[3]).name] = (int(fields[1]) - int(fields[0])) / 1000
    return sorted(((time, name) for name, time in seconds.items()), reverse=True)[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("objects", nargs="+", type=Path, help="object files with kernels")
    parser.add_argument("--disassembler", type=Path, required=True, help="folder of cuobjdump")
    parser.add_argument("--rules", type=Path, default=RULES, help="instructions to ask for")
    parser.add_argument("--build", type=Path, help="build directory, to name slow sources")
    options = parser.parse_args()
    kernels = read_kernels(options.objects, options.disassembler)
    print_table(kernels)
    if options.build is not None:
        for seconds, name in slowest_sources(options.build):
            print(f"{seconds:6.1f} s  {name}")
    lines = options.rules.read_text().splitlines()
    failures = violations(kernels, read_rules(lines), read_budgets(lines))
    for failure in failures:
        print("FAILED", failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
