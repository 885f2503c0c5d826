"""Programs for the GPU of this machine: unpacked, or built here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from . import carried, machine
from .steps import Context, Data, FailedError, NotRunError, execute

BENCHES = ["cuda_machine_bench", "cuda_kernel_bench", "cuda_step_bench", "cuda_head_bench"]
# Files in a folder that bench/gpu/prebuild fills: the programs, and their description.
ARCHIVE = "programs.tar.xz"
FACTS = "programs.json"
LIBRARY = "lib/libspecdec.a"  # in the archive, beside bench/ and tests/cuda/


class PrebuiltError(ValueError):
    """A folder is not one that bench/gpu/prebuild filled."""


def read_programs(folder: Path) -> Data:
    """The description of a folder's programs; raises PrebuiltError where it has none."""
    for name in (FACTS, ARCHIVE):
        if not (folder / name).is_file():
            raise PrebuiltError(f"{folder} has no {name}: bench/gpu/prebuild {folder} makes it")
    try:
        facts: Data = json.loads((folder / FACTS).read_text())
        facts["architecture"], facts["commit"]
    except (ValueError, KeyError) as error:
        raise PrebuiltError(f"{folder / FACTS} is not as bench/gpu/prebuild writes it") from error
    return facts


def unpack(context: Context) -> Data:
    """Unpacks the programs that were built beforehand, and sees that the first one starts."""
    if context.prebuilt is None:
        raise NotRunError("no --prebuilt was given")
    facts = read_programs(context.prebuilt)
    here = architecture()
    if facts["architecture"] != here:
        problem = f"the programs are for {facts['architecture']}, and this GPU is {here}"
        raise FailedError(f"{problem}: benchmarks are built here")
    folder = context.scratch / "programs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = context.prebuilt / ARCHIVE
    if problem := extract(context, archive, folder) or start(context, folder):
        shutil.rmtree(folder)
        raise FailedError(f"{problem}: benchmarks are built here")
    return facts


def extract(context: Context, archive: Path, folder: Path) -> str:
    """Unpacks an archive; what went wrong, or nothing."""
    if machine.find_tool("xz") and machine.find_tool("tar"):
        pipe = f"xz -dc '{archive}' | tar -x -C '{folder}'"
        finished = execute(context, "unpack", ["sh", "-c", pipe])
        return "" if finished.status == 0 else f"not unpacked: {finished.last_line}"
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return ""


def start(context: Context, folder: Path) -> str:
    """Starts the first program; why it does not start, or nothing."""
    finished = execute(context, "first start", [folder / "bench" / BENCHES[0], "--help"])
    return "" if finished.status == 0 else f"{BENCHES[0]} does not start: {finished.last_line}"


def benches(context: Context) -> Data:
    """Builds the benchmarks, unless they were built beforehand, without the tests."""
    if context.device == "emulated":
        missing = [name for name in BENCHES if not (context.build / "bench" / name).is_file()]
        if missing:
            raise NotRunError(f"{context.build} has no {', '.join(missing)}")
        return {"build": str(context.build)}
    need_to_build(context)
    carried.import_wheels(context)
    return configure(context, "-DSPECDEC_TESTS=OFF") or compile_targets(context, *BENCHES)


def tests(context: Context) -> Data:
    """Builds the CUDA test suite, unless it was built beforehand."""
    context.need_gpu()
    need_to_build(context)
    options = ["-DSPECDEC_TESTS=ON"]
    if (prefix := carried.build_googletest(context)) is not None:
        options.append(f"-DGTEST_ROOT={prefix}")
    try:
        cut = configure(context, *options)
    except FailedError:
        configure(context, "-DSPECDEC_TESTS=OFF")  # the engine can still be built
        raise
    return cut or compile_targets(context, "tests/cuda/all")


def engine(context: Context) -> Data:
    """The Python package with its module for this Python, where later steps import it.

    With the library built beforehand only the bindings are compiled; idle time of the CPU is
    enough, beside what is measured.
    """
    context.need_gpu()
    carried.import_wheels(context)
    pybind11 = pybind11_folder(context)
    if pybind11 is None:
        raise NotRunError("pybind11 or Python's headers are neither installed nor beside it")
    library = context.programs() / LIBRARY
    if library.is_file():
        folder = context.build / "bindings"
        command = ["cmake", "-S", str(context.root / "bench/gpu/module"), "-B", str(folder)]
        command += ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-Dpybind11_DIR={pybind11}"]
        command += [f"-DSPECDEC_LIBRARY={library}", f"-DPython_EXECUTABLE={sys.executable}"]
        cut = run(context, "configure", command, idle=True)
    else:
        folder = context.build
        cut = configure(context)
    data = cut or compile_targets(context, "_core", folder=folder, idle=True)
    site = context.build / "module"
    package = site / "specdec_native"
    for each in (context.root / "python").glob("specdec_*"):
        shutil.copytree(each, site / each.name, dirs_exist_ok=True)
    for module in folder.glob("**/_core*.so"):
        if package not in module.parents:
            shutil.copy(module, package)
    carried.extend_path(context, site)
    return data


def need_to_build(context: Context) -> None:
    """Raises NotRunError where the programs were built beforehand."""
    if context.programs() != context.build:
        raise NotRunError("the programs were built beforehand")


def configure(context: Context, *options: str) -> Data:
    """Configures for this GPU; says so where time was over."""
    command = ["cmake", "-S", str(context.root), "-B", str(context.build), "-G", "Ninja"]
    command += ["-DSPECDEC_CUDA=ON", f"-DSPECDEC_CUDA_ARCHS={architecture()}"]
    command += ["-DSPECDEC_BENCH=ON", "-DCMAKE_BUILD_TYPE=Release"]
    command += [f"-DPython_EXECUTABLE={sys.executable}", *options]
    if (cutlass := carried.find_cutlass(context)) is not None:
        command.append(f"-DSPECDEC_CUTLASS={cutlass}")
    if (pybind11 := pybind11_folder(context)) is not None:
        command += ["-DSPECDEC_PYTHON=ON", f"-Dpybind11_DIR={pybind11}"]
    return run(context, "configure", command)


def compile_targets(
    context: Context, *targets: str, folder: Path | None = None, idle: bool = False
) -> Data:
    """Builds them; what does not compile keeps nothing else from it."""
    command = ["cmake", "--build", str(folder or context.build), "--target", *targets]
    return run(context, f"build of {targets[0]}", [*command, "--", "-k", "0"], idle)


def run(context: Context, name: str, command: list[str], idle: bool = False) -> Data:
    """Runs a part of the build, and shows what went wrong."""
    niced = ["nice", "-n", "19", *command] if idle else command
    finished = execute(context, name, niced, show=False)
    if finished.cut:
        return {"cut": True}
    if finished.status != 0:
        errors = [line for line in finished.output.splitlines() if "rror" in line]
        print("\n".join(errors[:20]) + "\n" + finished.output[-2000:], flush=True)
        raise FailedError(f"{name} failed: {(errors or [finished.last_line])[0]}")
    return {}


def architecture() -> str:
    """The architecture to compile kernels for: this GPU's, with its specific instructions."""
    program = machine.find_tool("nvidia-smi")
    assert program is not None
    command = [program, "--query-gpu=compute_cap", "--format=csv,noheader"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    capability = done.stdout.split()[0].replace(".", "")
    return f"{capability}a-real" if int(capability) >= 90 else f"{capability}-real"


def pybind11_folder(context: Context) -> str | None:
    """pybind11's CMake package, or None where the Python module cannot be built."""
    if machine.python_header() is None:
        return None
    command = [sys.executable, "-m", "pybind11", "--cmakedir"]
    finished = execute(context, "pybind11", command, show=False)
    return finished.last_line if finished.status == 0 else None


def need_module(context: Context) -> None:
    """Raises NotRunError where the engine cannot be imported."""
    command = [sys.executable, "-c", "import specdec_native._core"]
    finished = execute(context, "import", command, show=False)
    if finished.status != 0:
        raise NotRunError(f"the Python module is not there: {finished.last_line}")
