"""The description of a peer: its abilities, location and installation. Loads nothing."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

DRAFT_TOKENS = 5  # a draft model's, the same for every peer

AUTO = "auto"  # the widest instruction set that the machine has
# oneDNN's names of the other x86-64 instruction sets, by the names of Engine's cpu_isa.
ONEDNN_ISAS = {
    "avx2": "AVX2",
    "avx_vnni": "AVX2_VNNI",
    "avx512": "AVX512_CORE",
    "avx512_bf16": "AVX512_CORE_BF16",
    "amx": "AVX512_CORE_AMX",
}
ARM_ISAS = ("neon", "neon_dotprod", "neon_i8mm", "neon_bf16")
ISAS = (AUTO, *ONEDNN_ISAS, *ARM_ISAS)

HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator")  # ways of decoding, by the head's method

Environment = Callable[[Path, int], Mapping[str, str]]


def _no_environment(home: Path, num_threads: int) -> Mapping[str, str]:
    del home
    return {"OMP_NUM_THREADS": str(num_threads)}


@dataclasses.dataclass(frozen=True)
class Peer:
    """A peer's description.

    Attributes:
        name: as tables and options spell it.
        module: the module in this folder that the worker imports.
        speculations: ways of decoding by name, "plain" first, and the most prompts each takes.
        precisions: precisions of weights that it supports.
        install: shell commands that install it; {home} is replaced by the folder to install to,
            {isa} and {options} by the instruction set and its `build_options`.
        package: a package that its interpreter must have; "" for a peer that is a program.
        program: file under its home that must exist; "" for a Python package. {isa} is replaced.
        isas: instruction sets it can be limited to, and the environment variables for that.
        build_options: options to build a program for an instruction set; {options} in `install`.
        environment: its worker's environment variables, from its home and the number of threads.
        in_worker: whether it computes in the worker itself, whose memory then counts.
    """

    name: str
    module: str
    speculations: Mapping[str, int]
    precisions: tuple[str, ...]
    install: tuple[str, ...]
    package: str = ""
    program: str = ""
    environment: Environment = _no_environment
    isas: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=lambda: {AUTO: {}})
    build_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    in_worker: bool = True

    def find(self, home: Path, isa: str = AUTO) -> Path | None:
        """The interpreter of its worker if it is installed, else None.

        A package is looked for in the virtual environment `home`, then in this interpreter.
        """
        if self.program:
            is_there = (home / self.program.format(isa=isa)).is_file()
            return Path(sys.executable) if is_there else None
        for python in (home / "bin/python", Path(sys.executable)):
            if python.is_file() and _can_import(python, self.package):
                return python
        return None

    def install_commands(self, home: Path, isa: str = AUTO) -> list[str]:
        """The commands that install it to `home`."""
        options = self.build_options.get(isa, "")
        return [command.format(home=home, isa=isa, options=options) for command in self.install]


def head_method(speculation: str) -> str | None:
    """The method of the head that a speculation needs, "eagle3" for "suffix+eagle3"; or None."""
    last = speculation.rpartition("+")[2]
    return last if last in HEADS else None


def pip_install(*requirements: str) -> tuple[str, ...]:
    """Commands that make a virtual environment and install into it."""
    return (
        "python3 -m venv {home}",
        *(f"{{home}}/bin/pip install {requirement}" for requirement in requirements),
    )


def _can_import(python: Path, package: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    return subprocess.run([os.fspath(python), "-c", code], check=False).returncode == 0
