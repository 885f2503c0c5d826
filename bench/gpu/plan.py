"""The steps of a report, in the order of their worth when time is short."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import build, carried, checkpoints, machine, suites
from .steps import Context, Data, FailedError, NotRunError, Step, measured

ACCEPTANCE = 0.8  # of each synthetic draft
_8B, _1B, _1L = "llama-3.1-8b", "llama-3.2-1b", "llama-one-layer"
_HEAD = "-eagle3"  # behind the name of its target
_DUMMY = "--load_format=dummy"
# Passes as the engine's steps have them: its runs are greedy, so nothing but the likeliest tokens
# is wanted.
_GREEDY = "--greedy"


def write_checkpoints(context: Context) -> Data:
    """A config.json of every shape that is measured."""
    names = [_1B, _1L, _8B, f"{_1B}{_HEAD}", f"{_8B}{_HEAD}"]
    if context.smoke:
        names = ["tiny", "tiny-draft", f"tiny{_HEAD}"]
    for name in names:
        checkpoints.write(name, context.scratch)
    return {"shapes": names}


def checkpoint(context: Context, name: str) -> Path:
    """The folder of a shape, which an earlier step wrote."""
    path = context.scratch / name
    if not (path / "config.json").is_file():
        raise NotRunError(f"{name} was not written")
    return path


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
    """What the GPU can do at most, and what its mechanisms cost; gaps with both carveouts."""
    first = replace(context, deadline=context.clock() + 0.7 * context.remaining())
    data = bench(first, "cuda_machine_bench", "ceilings")
    own = ["--own_carveouts", "--filter=graph_reads"]
    other = bench(context, "cuda_machine_bench", "ceilings-own-carveouts", *own)
    cut = bool(data.pop("cut", False)) or bool(other.pop("cut", False))
    return data | {"own_carveouts": other, "cut": cut}


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
        shape = [f"--model={model}", _DUMMY, _GREEDY]
        return bench(context, "cuda_step_bench", f"steps-{name}", *shape, *sizes)

    return run


def heads(name: str) -> Callable[[Context], Data]:
    """Passes of an EAGLE-3 head of one shape, and what it costs its target."""

    def run(context: Context) -> Data:
        target = "tiny" if context.smoke else name
        models = [f"--model={checkpoint(context, target)}"]
        models += [f"--head={checkpoint(context, f'{target}{_HEAD}')}", _DUMMY, _GREEDY]
        return bench(context, "cuda_head_bench", f"heads-{name}", *models, *head_sizes(context))

    return run


def head_sizes(context: Context) -> list[str]:
    """Arguments of the passes of heads."""
    return ["--context=40"] if context.smoke else []


def launches(name: str) -> Callable[[Context], Data]:
    """Short passes of one shape by how kernels are launched."""
    ways = {"default": [], "no_overlap": ["--no_overlap"], "own_carveouts": ["--own_carveouts"]}

    def run(context: Context) -> Data:
        model = checkpoint(context, "tiny" if context.smoke else name)
        sizes = [f"--contexts={40 if context.smoke else 1024}", "--batches=1", "--drafts=0,7"]
        runs: Data = {}
        for number, (way, arguments) in enumerate(ways.items()):
            own = replace(context, deadline=context.clock() + context.share(len(ways) - number))
            log = f"launches-{way}"
            shape = [f"--model={model}", _DUMMY, _GREEDY, *sizes]
            runs[way] = bench(own, "cuda_step_bench", log, *shape, *arguments)
        return {"ways": runs, "cut": any(run.pop("cut", False) for run in runs.values())}

    return run


def engine_sizes(context: Context) -> list[str]:
    """Arguments of the runs that compare engines."""
    if context.smoke:
        return ["--batches=1,2", "--context=20", "--new-tokens=12"]
    return ["--batches=1,4,16", "--context=1024", "--new-tokens=128"]


def engine_runs(name: str, draft_name: str, *chosen: str) -> Callable[[Context], Data]:
    """This engine: plain, with speculation that never drafts, with drafts at a given acceptance."""

    def run(context: Context) -> Data:
        build.need_module(context)
        model = checkpoint(context, "tiny" if context.smoke else name)
        draft = checkpoint(context, "tiny-draft" if context.smoke else draft_name)
        drafted = ["--speculation=draft_model", f"--draft={draft}", f"--acceptance={ACCEPTANCE}"]
        variants = {
            "plain": ["--speculation=none"],
            "off": ["--speculation=off"],
            "drafts-4": [*drafted, "--drafts=4"],
            "drafts-7": [*drafted, "--drafts=7"],
        }
        wanted = {variant: variants[variant] for variant in chosen}
        return run_variants(context, f"engine-{name}", wanted, f"--model={model}", _DUMMY)

    return run


def head_runs(name: str) -> Callable[[Context], Data]:
    """This engine with an EAGLE-3 head at a given acceptance: chains of 0 to 7 drafts, a tree."""

    def run(context: Context) -> Data:
        build.need_module(context)
        target = "tiny" if context.smoke else name
        model = checkpoint(context, target)
        head = checkpoint(context, f"{target}{_HEAD}")
        drafted = ["--speculation=eagle3", f"--head={head}", f"--acceptance={ACCEPTANCE}"]
        each = ",".join(map(str, range(8)))
        variants = {
            "eagle3": [*drafted, "--drafts=7", f"--each-drafts={each}"],
            "eagle3-tree-8x4": [*drafted, "--drafts=4", "--tree-width=8"],
        }
        shape = [f"--model={model}", _DUMMY]
        return run_variants(context, f"heads-engine-{name}", variants, *shape)

    return run


def run_variants(context: Context, log: str, variants: dict[str, list[str]], *shared: str) -> Data:
    """One process of the engine for each variant, each with its share of the time."""
    runs: Data = {}
    problems = []
    cut = False
    for number, (variant, arguments) in enumerate(variants.items()):
        command = [sys.executable, "-m", "bench.gpu.engine_run", *shared, *arguments]
        command += [f"--device={context.device}", *engine_sizes(context)]
        share = context.share(len(variants) - number)
        try:
            runs[variant] = measured(context, f"{log}-{variant}", command, limit=share)
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
    build.need_module(context)
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


def vllm_runs(name: str, draft_name: str | None = None) -> Callable[[Context], Data]:
    """vLLM on the same shape, plain and with a draft model; without one, with an EAGLE-3 head."""

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
        drafted = [f"--acceptance={ACCEPTANCE}", "--drafts=4"]
        runs: Data = {}
        variants: dict[str, list[str]] = {}
        if draft_name is None:
            head = checkpoint(context, f"{name}{_HEAD}")
            variants["eagle3-4"] = [f"--head={head}", *drafted]
        else:
            draft = checkpoint(context, draft_name)
            variants = {"plain": [], "drafts-4": [f"--draft={draft}", *drafted]}
        for number, (variant, arguments) in enumerate(variants.items()):
            runs[variant] = measured(
                context,
                f"vllm-{name}-{variant}",
                [*shared, *arguments],
                limit=context.share(len(variants) - number),
                environment=environment,
            )
        return {"runs": runs, "cut": any(run.pop("cut", False) for run in runs.values())}

    return run


# What others need is made beside them.
_BUILDS = [
    Step("checkpoints", "Shapes", 5, write_checkpoints, background=True),
    Step("build", "Build of the benchmarks", 120, build.benches, background=True),
    Step(
        "build-instructions",
        "Build of the tests of instructions",
        60,
        build.instructions,
        ("build",),
        background=True,
    ),
    Step(
        "build-engine",
        "Build of the engine",
        60,
        build.engine,
        ("build-instructions",),  # one after the other in one folder
        background=True,
    ),
    Step(
        "build-tests",
        "Build of the CUDA test suite",
        130,
        build.tests,
        ("build-engine",),
        background=True,
    ),
]
_BENCH = ("build",)
_PEER = ("checkpoints",)
_PASS = ("build", "checkpoints")
_ENGINE = ("build-engine", "checkpoints")
_TESTS = ("build-tests",)

# Each part is a run of its own, in which every step has its time whatever the others do.
PARTS: Sequence[Sequence[Step]] = [
    [
        *_BUILDS,
        Step("machine", "The machine", 10, machine.describe),
        Step("ceilings", "Ceilings: memory, graph nodes, barriers", 20, ceilings, _BENCH),
        Step("kernels-act", "Kernels, bfloat16 weights", 25, kernels("act"), _BENCH),
        Step(
            "instructions",
            "Tests of instructions on the GPU",
            15,
            suites.instruction_tests,
            ("build-instructions",),
        ),
        Step("steps-8b", "Passes of Llama-3.1-8B", 35, target_passes(_8B), _PASS),
        Step("steps-1b", "Passes of Llama-3.2-1B", 20, target_passes(_1B), _PASS),
        Step("launches", "How kernels are launched, Llama-3.2-1B", 24, launches(_1B), _PASS),
        Step("kernels-many-rows", "Products of many rows", 20, many_rows, _BENCH),
        Step("kernels-int8", "Kernels, int8 weights", 12, kernels("int8"), _BENCH),
        Step("kernels-int4", "Kernels, int4 weights", 12, kernels("int4_grouped"), _BENCH),
        Step(
            "engine-8b",
            "Engine, Llama-3.1-8B",
            60,
            engine_runs(_8B, _1B, "plain", "drafts-4"),
            _ENGINE,
        ),
        Step("tests", "CUDA test suite on the GPU", 70, suites.other_tests, _TESTS),
        Step(
            "engine-1b",
            "Engine, Llama-3.2-1B",
            30,
            engine_runs(_1B, _1L, "plain", "drafts-4"),
            _ENGINE,
        ),
        Step(
            "engine-tests",
            "Tests of the engine on the GPU",
            30,
            suites.engine_tests,
            ("build-engine",),
        ),
        Step(
            "tests-again", "Tests that did not pass, by themselves", 20, suites.tests_again, _TESTS
        ),
    ],
    [
        *_BUILDS,
        Step("transformers-1b", "transformers, Llama-3.2-1B", 60, transformers_runs(_1B), _PEER),
        Step("transformers-8b", "transformers, Llama-3.1-8B", 75, transformers_runs(_8B), _PEER),
        Step(
            "engine-8b-more",
            "Engine, Llama-3.1-8B, other drafts",
            60,
            engine_runs(_8B, _1B, "off", "drafts-7"),
            _ENGINE,
        ),
        Step(
            "engine-1b-more",
            "Engine, Llama-3.2-1B, other drafts",
            30,
            engine_runs(_1B, _1L, "off", "drafts-7"),
            _ENGINE,
        ),
        Step("real", "Real weights", 30, real_weights, _ENGINE),
        Step("sanitizer", "compute-sanitizer", 100, suites.sanitize, _TESTS),
    ],
    [
        *_BUILDS[:1],
        Step("vllm-8b", "vLLM, Llama-3.1-8B", 200, vllm_runs(_8B, _1B), _PEER),
        Step("vllm-1b", "vLLM, Llama-3.2-1B", 150, vllm_runs(_1B, _1L), _PEER),
    ],
    [
        *_BUILDS[:4],
        Step("heads-8b", "Passes of an EAGLE-3 head, Llama-3.1-8B", 40, heads(_8B), _PASS),
        Step("heads-1b", "Passes of an EAGLE-3 head, Llama-3.2-1B", 20, heads(_1B), _PASS),
        Step("engine-8b-heads", "Engine, Llama-3.1-8B, EAGLE-3", 90, head_runs(_8B), _ENGINE),
        Step("engine-1b-heads", "Engine, Llama-3.2-1B, EAGLE-3", 50, head_runs(_1B), _ENGINE),
        Step("vllm-8b-heads", "vLLM, Llama-3.1-8B, EAGLE-3", 140, vllm_runs(_8B), _PEER),
    ],
]


def chosen_steps(part: int, only: Sequence[str] | None, skip: Sequence[str]) -> list[Step]:
    """The steps of a part, or those of all parts that are named, with what they need."""
    steps = {step.name: step for steps in PARTS for step in steps}
    if only is None:
        return [step for step in PARTS[part - 1] if step.name not in skip]
    wanted = set(only)
    for step in reversed(steps.values()):  # what is needed comes before
        if step.name in wanted:
            wanted.update(step.after)
    return [step for step in steps.values() if step.name in wanted and step.name not in skip]
