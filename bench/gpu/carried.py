"""Packages that the report needs and a machine without a network lacks.

`bench/gpu/prebuild` fills a folder with it, beside the programs: wheels of pybind11 for the Python
module, of nlohmann-json for programs that are built there all the same, of pytest for the tests of
the engine, and googletest's sources (of Debian's libgtest-dev). CUTLASS is left out for its size:
the programs have it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from .steps import Context, FailedError, NotRunError, execute

WHEELS = [
    "pybind11==3.1.0",
    "nlohmann-json==3.12.0",
    "pytest==9.2.0",
    "pluggy==1.7.0",
    "iniconfig==2.3.1",
    "packaging==26.3",
    "pygments==2.21.0",
]
CUTLASS_INCLUDE = "cutlass_library/source/include"  # in its wheel
GOOGLETEST = Path("/usr/src/googletest/googletest")
INSTALLED_GOOGLETEST = Path("/usr/include/gtest/gtest.h")


def pack(directory: Path) -> None:
    """Fills `directory`, on a machine with a package index."""
    directory.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "-d", str(directory), *WHEELS], check=True)
    if not GOOGLETEST.is_dir():
        raise SystemExit(f"{GOOGLETEST} is missing: apt-get install libgtest-dev")
    for part in ("include", "src"):
        shutil.copytree(GOOGLETEST / part, directory / "googletest" / part, dirs_exist_ok=True)


def import_wheels(context: Context) -> None:
    """Unpacks all wheels that were carried, and lets programs of later steps import them."""
    site = context.scratch / "site"
    if str(site) in context.environment.get("PYTHONPATH", "").split(os.pathsep):
        return
    for folder in context.beside:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
    extend_path(context, site)


def find_cutlass(context: Context) -> Path | None:
    """The folder to include CUTLASS from, of an unpacked wheel or carried as it is; or None."""
    folders = [context.scratch / "site" / CUTLASS_INCLUDE, *context.beside]
    return next((path for path in folders if (path / "cutlass/cutlass.h").is_file()), None)


def build_googletest(context: Context) -> Path | None:
    """A prefix with googletest built from carried sources; None where the system has its own."""
    if INSTALLED_GOOGLETEST.is_file():
        return None
    sources = [folder / "googletest" for folder in context.beside]
    source = next((folder for folder in sources if folder.is_dir()), None)
    if source is None:
        raise NotRunError("googletest is neither installed nor beside it")
    prefix = context.scratch / "googletest"
    if (prefix / "lib/libgtest_main.a").is_file():
        return prefix
    shutil.copytree(source / "include", prefix / "include", dirs_exist_ok=True)
    (prefix / "lib").mkdir(exist_ok=True)
    for name, file in (("gtest", "gtest-all.cc"), ("gtest_main", "gtest_main.cc")):
        compiled = prefix / f"{name}.o"
        flags = ["-std=c++20", "-O1", "-fPIC", f"-I{source}", f"-I{source / 'include'}"]
        command = ["g++", *flags, "-c", str(source / "src" / file), "-o", str(compiled)]
        if execute(context, name, command).status != 0:
            raise FailedError(f"googletest's {file} was not compiled")
        archive = prefix / "lib" / f"lib{name}.a"
        subprocess.run(["ar", "rcs", str(archive), str(compiled)], check=True)
    return prefix


def extend_path(context: Context, *folders: Path) -> None:
    """Lets programs of later steps import from these folders."""
    old = context.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    parts = [str(folder) for folder in folders] + ([old] if old else [])
    context.environment["PYTHONPATH"] = os.pathsep.join(parts)
