"""The steps of a report, in the order of their worth when time is short."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import carried, checkpoints, googletest, machine
from .steps import Context, Data, FailedError, NotRunError, Step, execute, measured

BENCHES = ["cuda_machine_bench", "cuda_kernel_bench", "cuda_step_bench"]
ACCEPTANCE = 0.8  # of each synthetic draft
_SANITIZERS = 6  # at once


# ---- what the others need


def build(context: Context) -> Data:
    """Configures and builds everything for this GPU; the emulated device uses a build there is."""
    if context.device == "emulated":
        missing = [name for name in BENCHES if not (context.build / "bench" / name).is_file()]
        if missing:
            raise NotRunError(f"{context.build} has no {', '.join(missing)}")
        return {"build": str(context.build)}
    carried.extend_path(context, carried.unpack_wheels(context))
    options = [
        "-DSPECDEC_CUDA=ON",
        f"-DSPECDEC_CUDA_ARCHS={architecture()}",
        "-DSPECDEC_TESTS=ON",
        "-DSPECDEC_BENCH=ON",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    if (prefix := carried.build_googletest(context)) is not None:
        options.append(f"-DGTEST_ROOT={prefix}")
    cutlass = carried.find_cutlass(context)
    if cutlass is not None:
        options.append(f"-DSPECDEC_CUTLASS={cutlass}")
    pybind11 = pybind11_folder(context) if machine.python_header() else None
    if pybind11 is not None:
        options += ["-DSPECDEC_PYTHON=ON", f"-Dpybind11_DIR={pybind11}"]
    configure: list[str | Path] = ["cmake", "-S", context.root, "-B", context.build]
    configure += ["-G", "Ninja", *options]
    # What most depends on first; what does not compile must not keep the rest from it.
    parts = [BENCHES, ["_core"] if pybind11 is not None else [], ["tests/cuda/all"]]
    commands: list[tuple[str, list[str | Path]]] = [("configure", configure)]
    for part in filter(None, parts):
        compile_part: list[str | Path] = ["cmake", "--build", context.build, "--target", *part]
        commands.append((f"build of {part[0]}", [*compile_part, "--", "-k", "0"]))
    failed = []
    for name, command in commands:
        finished = execute(context, name, command, show=False)
        if finished.status != 0:
            errors = [line for line in finished.output.splitlines() if "rror" in line]
            print("\n".join(errors[:20]) + "\n" + finished.output[-2000:], flush=True)
            failed.append(f"{name} {'was cut' if finished.cut else 'failed'}")
        if failed and name == "configure":
            break
    if pybind11 is not None:
        install_module(context)
    data = {
        "architecture": architecture(),
        "python_module": pybind11 is not None,
        "cutlass": str(cutlass) if cutlass is not None else "only if CMake found it",
    }
    if failed:
        raise FailedError("; ".join(failed), data)
    return data


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
    done = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | context.environment,
    )
    return done.stdout.strip() if done.returncode == 0 else None


def install_module(context: Context) -> None:
    """The Python package with the module just built, where later steps import it."""
    site = context.build / "module"
    shutil.copytree(
        context.root / "python/specdec_native", site / "specdec_native", dirs_exist_ok=True
    )
    for module in (context.build / "python/bindings").glob("_core*.so"):
        shutil.copy(module, site / "specdec_native")
    carried.extend_path(context, site)


def write_checkpoints(context: Context) -> Data:
    """Random weights of the shapes that are measured."""
    names = ["llama-3.2-1b", "llama-one-layer", "llama-3.1-8b"]
    if context.smoke:
        names = ["tiny", "tiny-draft"]
    for name in names:
        checkpoints.write(name, context.scratch, time.monotonic() + context.remaining())
    return {name: checkpoints.weight_bytes(checkpoints.SHAPES[name]) for name in names}


def checkpoint(context: Context, name: str) -> Path:
    """A checkpoint that an earlier step wrote."""
    path = context.scratch / name
    if not (path / "config.json").is_file():
        raise NotRunError(f"{name} was not written")
    return path


# ---- is it right


def test_programs(context: Context) -> list[Path]:
    """The CUDA test suite's programs, those of single instructions first."""
    context.need_gpu()
    found = [path for path in (context.build / "tests/cuda").glob("*_test") if path.is_file()]
    if not found:
        raise NotRunError("the tests were not built")
    return sorted(found, key=lambda path: ("ptx" not in path.name, path.name))


def run_tests(context: Context) -> Data:
    """Every test of the CUDA suite, on the GPU."""
    results = {
        program.name: googletest.run_program(context, program) for program in test_programs(context)
    }
    bad = [name for name, result in results.items() if result["status"] != 0]
    if bad:
        raise FailedError(", ".join(bad), {"programs": results})
    if not any(result["ran"] for result in results.values()):
        raise FailedError("no test ran: the programs see no GPU", {"programs": results})
    return {"programs": results}


def engine_tests(context: Context) -> Data:
    """The tests of whole models, which the emulated device passes, on the GPU."""
    context.need_gpu()
    need_module(context)
    command = [sys.executable, "-m", "pytest", "--gpu", "-v", "--tb=short", "--no-header"]
    finished = execute(context, "pytest", [*command, "tests/python/test_cuda.py"], show=False)
    if "No module named pytest" in finished.output:
        raise NotRunError("pytest is neither installed nor beside it")
    found = dict(re.findall(r"^\S+::(\S+) (PASSED|FAILED|ERROR)\b", finished.output, re.MULTILINE))
    failed = [name for name, outcome in found.items() if outcome != "PASSED"]
    result = {"ran": len(found), "passed": len(found) - len(failed), "failed": failed}
    data: Data = {"programs": {"test_cuda.py": result | {"status": finished.status}}}
    print(f"    {result['passed']} of {result['ran']} passed", flush=True)
    if failed or finished.status not in {0, None}:
        print(finished.output[-3000:])
        raise FailedError(f"{len(failed)} failed, exit status {finished.status}", data)
    return data | {"cut": finished.cut}


def sanitize(context: Context) -> Data:
    """The same tests under compute-sanitizer: bad addresses, and races in shared memory."""
    programs = test_programs(context)
    tool = machine.find_tool("compute-sanitizer")
    if tool is None:
        raise NotRunError("compute-sanitizer is not installed")

    def run(check: str, program: Path) -> Data:
        if context.remaining() <= 2:
            return {"status": None, "summary": "no time left"}
        # Some tests ask the runtime for what it must refuse.
        command = [tool, "--tool", check, "--error-exitcode", "9", "--report-api-errors", "no"]
        command += ["--print-limit", "20", str(program), f"--gtest_filter={googletest.GPU_TESTS}"]
        finished = execute(context, f"{check}-{program.name}", command, show=False)
        summary = re.findall(r"========= (.*SUMMARY.*)", finished.output)
        print(f"    {check} {program.name}: {'cut' if finished.cut else finished.status} {summary}")
        return {"status": finished.status, "summary": " ".join(summary)}

    # They take the host's time more than the GPU's.
    with ThreadPoolExecutor(_SANITIZERS) as pool:
        under_way = {
            f"{check}-{program.name}": pool.submit(run, check, program)
            for check in ("memcheck", "racecheck")
            for program in programs
        }
    results = {name: future.result() for name, future in under_way.items()}
    if any(result["status"] not in {0, None} for result in results.values()):
        raise FailedError("see the summaries", results)
    return results | {"cut": any(result["status"] is None for result in results.values())}


# ---- how fast is it


def bench(context: Context, name: str, log: str, *arguments: str) -> Data:
    """Records of one of the microbenchmarks."""
    program = context.build / "bench" / name
    if not program.is_file():
        raise NotRunError(f"{name} was not built")
    command: list[str | Path] = [program, f"--device={context.device}", *arguments]
    if context.smoke:
        command.append("--smoke")
    else:  # it stops by itself a little earlier
        command.append(f"--budget={max(1, int(0.8 * context.remaining()))}")
    return measured(context, log, command)


def ceilings(context: Context) -> Data:
    """What the GPU can do at most, and what its mechanisms cost."""
    return bench(context, "cuda_machine_bench", "ceilings")


def kernels(weight_format: str) -> Callable[[Context], Data]:
    """Every kernel with weights of that format; other kernels with the first alone."""

    def run(context: Context) -> Data:
        log = f"kernels-{weight_format}"
        arguments = [f"--format={weight_format}"]
        if weight_format != "act":
            arguments.append(f"--filter={weight_format}")
        return bench(context, "cuda_kernel_bench", log, *arguments)

    return run


def many_rows(context: Context) -> Data:
    """Products of many rows on every kernel and library there is."""
    return bench(context, "cuda_kernel_bench", "kernels-many-rows", "--nondeterministic")


def target_passes(name: str) -> Callable[[Context], Data]:
    """Decoding and verifying of one shape."""

    def run(context: Context) -> Data:
        model = checkpoint(context, "tiny" if context.smoke else name)
        sizes = []
        if context.smoke:
            sizes = ["--contexts=40", "--batches=1,2", "--drafts=0,3"]
        return bench(context, "cuda_step_bench", f"steps-{name}", f"--model={model}", *sizes)

    return run


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


def engine_sizes(context: Context) -> list[str]:
    """Arguments of the runs that compare engines."""
    if context.smoke:
        return ["--batches=1,2", "--context=20", "--new-tokens=12"]
    return ["--batches=1,4,16", "--context=1024", "--new-tokens=128"]


def engine_runs(name: str, draft_name: str) -> Callable[[Context], Data]:
    """This engine: plain, with speculation that never drafts, with drafts at a given acceptance."""

    def run(context: Context) -> Data:
        need_module(context)
        model = checkpoint(context, "tiny" if context.smoke else name)
        draft = checkpoint(context, "tiny-draft" if context.smoke else draft_name)
        drafted = ["--speculation=draft_model", f"--draft={draft}", f"--acceptance={ACCEPTANCE}"]
        variants = {
            "plain": ["--speculation=none"],
            "off": ["--speculation=off"],
            "drafts-4": [*drafted, "--drafts=4"],
            "drafts-7": [*drafted, "--drafts=7"],
        }
        return run_variants(context, f"engine-{name}", variants, f"--model={model}")

    return run


def run_variants(context: Context, log: str, variants: dict[str, list[str]], *shared: str) -> Data:
    """One process of the engine for each variant, until time is over."""
    runs: Data = {}
    problems = []
    cut = False
    for variant, arguments in variants.items():
        command = [sys.executable, "-m", "bench.gpu.engine_run", *shared, *arguments]
        command += [f"--device={context.device}", *engine_sizes(context)]
        try:
            runs[variant] = measured(context, f"{log}-{variant}", command)
            cut = cut or bool(runs[variant].pop("cut", False))
        except FailedError as error:
            runs[variant] = error.data
            problems.append(f"{variant}: {error}")
    if problems:
        raise FailedError("; ".join(problems), {"runs": runs})
    return {"runs": runs, "cut": cut}


def real_weights(context: Context) -> Data:
    """A checkpoint of real weights, plain and drafting, with exact verification."""
    if context.checkpoint is None:
        raise NotRunError("no --checkpoint was given")
    need_module(context)
    variants = {
        "plain": ["--speculation=none"],
        "ngram": ["--speculation=ngram", "--drafts=8"],
        "suffix": ["--speculation=suffix", "--drafts=8"],
    }
    if context.draft_checkpoint is not None:
        drafts = [f"--draft={context.draft_checkpoint}", "--drafts=5"]
        variants["draft"] = ["--speculation=draft_model", *drafts]
    prompts = context.scratch / "prompts.jsonl"
    prompts.parent.mkdir(parents=True, exist_ok=True)
    prompts.write_text("\n".join(map(json.dumps, tokenized_prompts(context))) + "\n")
    return run_variants(
        context,
        "real",
        variants,
        f"--model={context.checkpoint}",
        f"--prompts={prompts}",
    )


def tokenized_prompts(context: Context) -> list[list[int]]:
    """The chats the CPU comparison uses, as token ids."""
    import tokenizers

    assert context.checkpoint is not None
    load: Any = tokenizers.Tokenizer
    tokenizer = load.from_file(str(context.checkpoint / "tokenizer.json"))
    lines = (context.root / "bench/e2e/prompts/chat.jsonl").read_text().splitlines()
    return [tokenizer.encode(json.dumps(json.loads(line))).ids[:512] for line in lines]


# ---- beside others


def transformers_runs(name: str) -> Callable[[Context], Data]:
    """transformers on the same shape."""

    def run(context: Context) -> Data:
        if importlib.util.find_spec("transformers") is None:
            raise NotRunError("transformers is not installed")
        model = checkpoint(context, "tiny" if context.smoke else name)
        device = "cpu" if context.smoke else "cuda"
        command = [sys.executable, "-m", "bench.gpu.transformers_run", f"--model={model}"]
        command += [f"--device={device}", *engine_sizes(context)]
        return measured(context, f"transformers-{name}", command)

    return run


def vllm_runs(name: str, draft_name: str) -> Callable[[Context], Data]:
    """vLLM on the same shape, plain and drafting."""

    def run(context: Context) -> Data:
        context.need_gpu()
        site = carried.unpack_vllm(context)
        path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", ""), str(site / "wheels")])
        environment = {
            "PYTHONPATH": path,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        model = checkpoint(context, name)
        shared = [sys.executable, "-m", "bench.gpu.vllm_run", f"--model={model}"]
        shared += engine_sizes(context)
        drafted = [f"--draft={checkpoint(context, draft_name)}", f"--acceptance={ACCEPTANCE}"]
        runs: Data = {}
        for variant, arguments in (("plain", []), ("drafts-4", [*drafted, "--drafts=4"])):
            runs[variant] = measured(
                context, f"vllm-{name}-{variant}", [*shared, *arguments], environment=environment
            )
        return {"runs": runs, "cut": any(run.pop("cut", False) for run in runs.values())}

    return run


STEPS: Sequence[Step] = [
    Step("machine", "The machine", 10, machine.describe),
    Step("build", "Build", 240, build),
    Step("checkpoints", "Checkpoints with random weights", 45, write_checkpoints),
    Step("tests", "CUDA test suite on the GPU", 90, run_tests),
    Step("engine-tests", "Tests of the engine on the GPU", 75, engine_tests),
    Step("ceilings", "Ceilings: memory, graph nodes, barriers", 25, ceilings),
    Step("steps-8b", "Passes of Llama-3.1-8B", 50, target_passes("llama-3.1-8b")),
    Step("steps-1b", "Passes of Llama-3.2-1B", 30, target_passes("llama-3.2-1b")),
    Step("kernels-act", "Kernels, bfloat16 weights", 30, kernels("act")),
    Step("kernels-many-rows", "Products of many rows", 30, many_rows),
    Step("kernels-int8", "Kernels, int8 weights", 20, kernels("int8")),
    Step("kernels-int4", "Kernels, int4 weights", 20, kernels("int4_grouped")),
    Step("engine-8b", "Engine, Llama-3.1-8B", 75, engine_runs("llama-3.1-8b", "llama-3.2-1b")),
    Step("engine-1b", "Engine, Llama-3.2-1B", 40, engine_runs("llama-3.2-1b", "llama-one-layer")),
    Step("sanitizer", "compute-sanitizer", 60, sanitize),
    Step("real", "Real weights", 30, real_weights),
    Step("transformers-1b", "transformers, Llama-3.2-1B", 75, transformers_runs("llama-3.2-1b")),
    Step("transformers-8b", "transformers, Llama-3.1-8B", 75, transformers_runs("llama-3.1-8b")),
    Step("vllm-8b", "vLLM, Llama-3.1-8B", 200, vllm_runs("llama-3.1-8b", "llama-3.2-1b")),
    Step("vllm-1b", "vLLM, Llama-3.2-1B", 150, vllm_runs("llama-3.2-1b", "llama-one-layer")),
]
