"""Builds the programs of a report beforehand, and packs them: python -m bench.gpu.prebuilt DIR

bench/gpu/prebuild calls it with what it needs. A machine with a GPU that can be had for minutes
then builds nothing but the bindings of its Python. DIR gets one archive of all programs and of the
library, which differ in little: each holds the same kernels, and a dictionary of 192 MiB makes
every copy but the first nearly free. The wheels of carried.py lie beside it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from . import build, carried
from .build import ARCHIVE, BENCHES, FACTS, LIBRARY
from .steps import NOT_AVAILABLE, Context, Data, write_json

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = "90a-real"  # H100, H200
_ARCHIVE_BYTES = 40 << 20
_CARRIED_BYTES = 64 << 20  # of the tree and DIR: what travels to the machine
# Libraries of every Linux system, and the newest symbols that a program may need: Ubuntu 24.04's.
_LIBRARIES = re.compile(r"lib(c|m|pthread|dl|rt|stdc\+\+|gcc_s)\.so\.\d+|ld-linux-x86-64\.so\.2")
_NEWEST = {
    "GLIBC": (2, 39),
    "GLIBCXX": (3, 4, 33),
    "CXXABI": (1, 3, 15),
    "GCC": (14, 0, 0),
}
# A higher preset takes seven times as long for as many bytes.
_COMPRESSOR = ["xz", "--lzma2=preset=1,dict=192MiB", "--stdout"]

Versions = dict[str, tuple[int, ...]]


class UnfitProgramError(Exception):
    """A program would not start on the machine with the GPU."""


class TooLargeError(Exception):
    """The built files are too large to carry to the machine with the GPU."""


def needed_libraries(dynamic: str) -> list[str]:
    """The shared libraries in what `readelf -dW` prints."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)


def needed_versions(versions: str) -> Versions:
    """The newest version of each family of symbols in what `readelf -VW` prints."""
    newest: Versions = {}
    for family, text in re.findall(r"Name: ([A-Z]+)_([\d.]+)\s", versions):
        version = tuple(int(part) for part in text.split("."))
        newest[family] = max(version, newest.get(family, (0,)))
    return newest


def problems(dynamic: str, versions: str) -> list[str]:
    """Why a program would not start on another system, from what readelf prints of it."""
    found = [
        f"it needs {library}"
        for library in needed_libraries(dynamic)
        if not _LIBRARIES.fullmatch(library)
    ]
    for family, version in needed_versions(versions).items():
        if version > _NEWEST.get(family, (0,)):
            found.append(f"it needs {family}_{'.'.join(map(str, version))}")
    return found


def check_program(path: Path) -> Versions:
    """Raises UnfitProgramError for a program that would not start; its newest symbols."""
    dynamic, versions = (
        subprocess.run(["readelf", option, path], check=True, capture_output=True, text=True).stdout
        for option in ("-dW", "-VW")
    )
    if found := problems(dynamic, versions):
        raise UnfitProgramError(f"{path.name}: {', '.join(found)}")
    return needed_versions(versions)


def check_start(path: Path, argument: str) -> None:
    """Starts a program; a benchmark may say that there is no GPU."""
    done = subprocess.run([path, argument], check=False, capture_output=True, text=True)
    if done.returncode not in {0, NOT_AVAILABLE}:
        raise UnfitProgramError(f"{path.name} {argument}: {done.stdout}{done.stderr}")


def total_bytes(paths: Iterable[Path]) -> int:
    """Bytes of files and links."""
    return sum(path.lstat().st_size for path in paths if path.is_file() or path.is_symlink())


def tree_bytes(root: Path) -> int:
    """Bytes of all files that git does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return total_bytes(root / name for name in set(done.stdout.split("\0")) if name)


def check_sizes(archive: int, tree: int, directory: int) -> None:
    """Raises TooLargeError for more than travels."""
    if archive > _ARCHIVE_BYTES:
        most = _ARCHIVE_BYTES >> 20
        raise TooLargeError(f"{ARCHIVE} has {archive / 2**20:.1f} MiB, and {most} are allowed")
    if tree + directory > _CARRIED_BYTES:
        sizes = f"the tree has {tree / 2**20:.1f} MiB and the folder {directory / 2**20:.1f}"
        raise TooLargeError(f"{sizes}, and {_CARRIED_BYTES >> 20} are allowed together")


def compile_programs(folder: Path) -> None:
    """Builds the benchmarks and the CUDA test suite."""
    options = ["-DSPECDEC_CUDA=ON", f"-DSPECDEC_CUDA_ARCHS={ARCHITECTURE}"]
    options += ["-DSPECDEC_BENCH=ON", "-DSPECDEC_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"]
    options.append(f"-DSPECDEC_CUTLASS={os.environ.get('SPECDEC_CUTLASS', 'AUTO')}")
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options], check=True)
    targets = [*BENCHES, "tests/cuda/all"]
    subprocess.run(["cmake", "--build", folder, "--target", *targets], check=True)


def stage(folder: Path, staged: Path) -> list[str]:
    """Copies what is packed, without symbols of programs; names in the order of the archive."""
    tests = sorted(path.name for path in (folder / "tests/cuda").glob("*_test") if path.is_file())
    programs = [f"bench/{name}" for name in BENCHES] + [f"tests/cuda/{name}" for name in tests]
    shutil.rmtree(staged, ignore_errors=True)
    for name in (LIBRARY, *programs):
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / Path(LIBRARY).name, staged / LIBRARY)
    for name in programs:
        subprocess.run(["strip", "-o", staged / name, folder / name], check=True)
    return [LIBRARY, *programs]


def pack(staged: Path, names: list[str], archive: Path) -> None:
    """Packs files into one archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.open("wb") as file:
        command = ["tar", "--owner=0", "--group=0", "-C", str(staged), "-c", *names]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as tar:
            subprocess.run(_COMPRESSOR, stdin=tar.stdout, stdout=file, check=True)
        if tar.returncode != 0:
            raise subprocess.CalledProcessError(tar.returncode, command)


def check_module(folder: Path, directory: Path, staged: Path) -> None:
    """Builds the Python module with the packed library, as the report does, and imports it."""
    context = Context(
        root=ROOT,
        build=folder / "report",
        out=folder / "report",
        scratch=staged.parent,
        beside=[directory],
        prebuilt=directory,
    )
    compilers = str(Path(os.environ["CUDACXX"]).parent) if "CUDACXX" in os.environ else ""
    context.environment["PATH"] = os.pathsep.join(filter(None, [compilers, os.environ["PATH"]]))
    build.engine(context)
    build.need_module(context)


def describe(versions: Versions) -> dict[str, str]:
    """Versions as symbols have them."""
    return {family: ".".join(map(str, version)) for family, version in versions.items()}


def prebuild(directory: Path) -> Data:
    """Fills `directory`; what it got."""
    begin = time.monotonic()
    (directory / FACTS).unlink(missing_ok=True)
    folder = ROOT / "build/gpu"
    staged = folder / "packed/programs"
    compile_programs(folder)
    built = time.monotonic()
    names = stage(folder, staged)
    newest: Versions = {}
    for name in names[1:]:
        for family, version in check_program(staged / name).items():
            newest[family] = max(version, newest.get(family, (0,)))
    check_start(staged / names[1], "--smoke")
    check_start(staged / names[-1], "--gtest_list_tests")
    pack(staged, names, directory / ARCHIVE)
    carried.pack(directory)
    check_module(folder, directory, staged)
    sizes = {name: (staged / name).stat().st_size for name in names}
    facts: Data = {
        "architecture": ARCHITECTURE,
        "commit": commit(),
        "newest_symbols": describe(newest),
        "bytes": sizes,
        "unpacked_bytes": sum(sizes.values()),
        "archive_bytes": (directory / ARCHIVE).stat().st_size,
        "build_seconds": round(built - begin, 1),
        "pack_seconds": round(time.monotonic() - built, 1),
    }
    write_json(directory / FACTS, facts)
    return facts


def commit() -> str:
    """The commit that was built."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(sys.argv[1]).resolve()
    try:
        facts = prebuild(directory)
        tree, size = tree_bytes(ROOT), total_bytes(directory.rglob("*"))
        check_sizes(facts["archive_bytes"], tree, size)
    except (UnfitProgramError, TooLargeError) as error:
        print(f"bench/gpu/prebuild: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"bench/gpu/prebuild: {Path(str(error.cmd[0])).name} failed", file=sys.stderr)
        return 1
    print(json.dumps({name: fact for name, fact in facts.items() if name != "bytes"}, indent=1))
    print(f"{len(facts['bytes'])} files in {directory / ARCHIVE}")
    print(f"tree {tree / 2**20:.1f} MiB, folder {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
