"""Building for the GPU of this machine, what most depends on first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from . import carried, machine
from .steps import Context, Data, FailedError, NotRunError, execute

BENCHES = ["cuda_machine_bench", "cuda_kernel_bench", "cuda_step_bench", "cuda_head_bench"]
INSTRUCTION_TESTS = "specdec_cuda_ptx_test"


def benches(context: Context) -> Data:
    """Configures for this GPU and builds the benchmarks; the emulated device uses a build there is.

    Googletest is not needed: where there is none, everything but the tests is built and runs.
    """
    if context.device == "emulated":
        missing = [name for name in BENCHES if not (context.build / "bench" / name).is_file()]
        if missing:
            raise NotRunError(f"{context.build} has no {', '.join(missing)}")
        return {"build": str(context.build)}
    carried.extend_path(context, carried.unpack_wheels(context))
    cutlass = carried.find_cutlass(context)
    data: Data = {
        "architecture": architecture(),
        "python_module": pybind11_folder(context) is not None,
        "cutlass": str(cutlass) if cutlass is not None else "only if CMake found it",
    }
    return data | (configure(context, "-DSPECDEC_TESTS=OFF") or compile_targets(context, *BENCHES))


def instructions(context: Context) -> Data:
    """The tests of single instructions; from here on the build has the tests."""
    context.need_gpu()
    options = ["-DSPECDEC_TESTS=ON"]
    if (prefix := carried.build_googletest(context)) is not None:
        options.append(f"-DGTEST_ROOT={prefix}")
    try:
        cut = configure(context, *options)
    except FailedError:
        configure(context, "-DSPECDEC_TESTS=OFF")  # the engine can still be built
        raise
    return cut or compile_targets(context, INSTRUCTION_TESTS)


def engine(context: Context) -> Data:
    """The Python package with its module, where later steps import it."""
    context.need_gpu()
    if pybind11_folder(context) is None:
        raise NotRunError("pybind11 or Python's headers are neither installed nor beside it")
    data = compile_targets(context, "_core")
    site = context.build / "module"
    shutil.copytree(
        context.root / "python/specdec_native", site / "specdec_native", dirs_exist_ok=True
    )
    for module in (context.build / "python/bindings").glob("_core*.so"):
        shutil.copy(module, site / "specdec_native")
    carried.extend_path(context, site)
    return data


def tests(context: Context) -> Data:
    """All tests of the CUDA suite."""
    context.need_gpu()
    if not (context.build / "tests/cuda").is_dir():
        raise NotRunError("the build has no tests")
    return compile_targets(context, "tests/cuda/all")


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


def compile_targets(context: Context, *targets: str) -> Data:
    """Builds them; what does not compile keeps nothing else from it."""
    command = ["cmake", "--build", str(context.build), "--target", *targets, "--", "-k", "0"]
    return run(context, f"build of {targets[0]}", command)


def run(context: Context, name: str, command: list[str]) -> Data:
    """Runs a part of the build, and shows what went wrong."""
    finished = execute(context, name, command, show=False)
    if finished.cut:
        return {"cut": True}
    if finished.status != 0:
        errors = [line for line in finished.output.splitlines() if "rror" in line]
        print("\n".join(errors[:20]) + "\n" + finished.output[-2000:], flush=True)
        raise FailedError(f"{name} failed")
    return {}


def architecture() -> str:
    """What to compile kernels for: this GPU's, with the instructions of that one alone."""
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
    done = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | context.environment,
    )
    return done.stdout.strip() if done.returncode == 0 else None


def need_module(context: Context) -> None:
    """Raises NotRunError where the engine cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", "import specdec_native._core"],
        check=False,
        capture_output=True,
        env=os.environ | context.environment,
    )
    if done.returncode != 0:
        raise NotRunError("the Python module is not there (pybind11 must be installed or beside)")
