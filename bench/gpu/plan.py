"""The steps of a report, in the order of their worth when time is short."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import build, checkpoints, machine, profiles, suites
from .steps import Context, Data, NotRunError, Step, measured

ACCEPTANCE = 0.8  # of each synthetic draft
_8B, _1B, _1L = "llama-3.1-8b", "llama-3.2-1b", "llama-one-layer"
_HYBRID, _EXPERTS = "qwen3.5-4b", "qwen3-30b-a3b"
_DUMMY = "--load_format=dummy"
Run = Callable[[Context], Data]


def checkpoint(context: Context, name: str, tiny: str = "tiny") -> Path:
    """A folder with the config.json of a shape, or of a tiny one on the emulated device."""
    return checkpoints.write(tiny if context.smoke else name, context.scratch)


def head_of(context: Context, target: str) -> Path:
    """An EAGLE-3 head of a shape, likewise."""
    return checkpoint(context, f"{target}-eagle3", "tiny-eagle3")


# ---- how fast is it


def bench(name: str, *arguments: str, tiny: Sequence[str] = (), launch: str = "") -> Run:
    """Records of a microbenchmark, with sizes of its own on the emulated device.

    `launch` are words of SPECDEC_CUDA_LAUNCH.
    """

    def run(context: Context) -> Data:
        return run_bench(context, name, [*(tiny if context.smoke else arguments)], launch)

    return run


def run_bench(context: Context, name: str, arguments: list[str], launch: str = "") -> Data:
    """Records of a microbenchmark."""
    program = context.programs() / "bench" / name
    if not program.is_file():
        raise NotRunError(f"{name} was not built")
    command: list[str | Path] = [program, f"--device={context.device}", *arguments]
    if launch:
        command.append(f"--launch={launch}")
    if context.smoke:
        command.append("--smoke")
    else:  # it stops by itself a little earlier
        command.append(f"--budget={max(1, int(0.8 * context.remaining()))}")
    return measured(context, command)


def kernels(shape: str, weight_format: str, *arguments: str, launch: str = "") -> Run:
    """Kernels of one model with weights in that format; attention and sampler only with `act`.

    `launch` are words of SPECDEC_CUDA_LAUNCH.
    """
    wanted = shape if weight_format == "act" else f"{shape} {weight_format}"
    return bench(
        "cuda_kernel_bench",
        f"--format={weight_format}",
        f"--filter={wanted}",
        *arguments,
        tiny=[f"--format={weight_format}", *arguments],
        launch=launch,
    )


def passes(shape: str, contexts: str, batches: str, drafts: str, launch: str = "") -> Run:
    """Decoding and verifying of one shape, as the engine's greedy steps have them."""
    sizes = [f"--contexts={contexts}", f"--batches={batches}", f"--drafts={drafts}"]

    def run(context: Context) -> Data:
        tiny = ["--contexts=40", "--batches=1,2", "--drafts=0,3"]
        model = [f"--model={checkpoint(context, shape)}", _DUMMY, "--greedy"]
        arguments = [*model, *(tiny if context.smoke else sizes)]
        return run_bench(context, "cuda_step_bench", arguments, launch)

    return run


def heads(shape: str) -> Run:
    """Passes of an EAGLE-3 head of one shape, and what it costs its target."""

    def run(context: Context) -> Data:
        models = [f"--model={checkpoint(context, shape)}", _DUMMY, "--greedy"]
        models.append(f"--head={head_of(context, shape)}")
        sizes = ["--context=40"] if context.smoke else []
        return run_bench(context, "cuda_head_bench", [*models, *sizes])

    return run


def engine_sizes(context: Context, batches: str) -> list[str]:
    """Arguments of the runs that compare engines."""
    if context.smoke:
        return ["--batches=1,2", "--context=20", "--new-tokens=12"]
    return [f"--batches={batches}", "--context=1024", "--new-tokens=128"]


def engine(shape: str, batches: str, *arguments: str, draft: str = "", head: bool = False) -> Run:
    """This engine: plain, or with drafts that are accepted at a given rate."""

    def run(context: Context) -> Data:
        build.need_module(context)
        command = [sys.executable, "-m", "bench.gpu.engine_run", f"--device={context.device}"]
        command += [f"--model={checkpoint(context, shape)}", _DUMMY]
        if draft:
            command += [
                "--speculation=draft_model",
                f"--draft={checkpoint(context, draft, 'tiny-draft')}",
            ]
        if head:
            command += ["--speculation=eagle3", f"--head={head_of(context, shape)}"]
        if draft or head:
            command.append(f"--acceptance={ACCEPTANCE}")
        return measured(context, [*command, *engine_sizes(context, batches), *arguments])

    return run


def real_weights(*arguments: str, draft: bool = False) -> Run:
    """A checkpoint of real weights, plain or drafting, with exact verification."""

    def run(context: Context) -> Data:
        if context.checkpoint is None:
            raise NotRunError("no --checkpoint was given")
        if draft and context.draft_checkpoint is None:
            raise NotRunError("no --draft-checkpoint was given")
        build.need_module(context)
        prompts = context.scratch / "prompts.jsonl"
        prompts.parent.mkdir(parents=True, exist_ok=True)
        tokens = tokenized_prompts(context, context.checkpoint)
        prompts.write_text("\n".join(map(json.dumps, tokens)) + "\n")
        command = [sys.executable, "-m", "bench.gpu.engine_run", f"--device={context.device}"]
        command += [f"--model={context.checkpoint}", f"--prompts={prompts}"]
        command += [f"--draft={context.draft_checkpoint}"] if draft else []
        return measured(context, [*command, *engine_sizes(context, "1,4,16"), *arguments])

    return run


def tokenized_prompts(context: Context, model: Path) -> list[list[int]]:
    """The chats the CPU comparison uses, as token ids."""
    import tokenizers

    load: Any = tokenizers.Tokenizer
    tokenizer = load.from_file(str(model / "tokenizer.json"))
    lines = (context.root / "bench/e2e/prompts/chat.jsonl").read_text().splitlines()
    return [tokenizer.encode(json.dumps(json.loads(line))).ids[:512] for line in lines]


# ---- beside others


def need_package(name: str) -> None:
    """Raises NotRunError where a Python package is not installed."""
    if importlib.util.find_spec(name) is None:
        raise NotRunError(f"{name} is not installed")


def torch_products(context: Context) -> Data:
    """torch's own products and attention at the shapes of the 8B."""
    context.need_gpu()
    need_package("torch")
    return measured(context, [sys.executable, "-m", "bench.gpu.torch_run"])


def transformers(shape: str) -> Run:
    """transformers on the same shape."""

    def run(context: Context) -> Data:
        need_package("transformers")
        command = [sys.executable, "-m", "bench.gpu.transformers_run"]
        command += [f"--model={checkpoint(context, shape)}"]
        command.append(f"--device={'cpu' if context.smoke else 'cuda'}")
        return measured(context, [*command, *engine_sizes(context, "1,4,16")])

    return run


def vllm(shape: str, draft: str = "", head: bool = False) -> Run:
    """vLLM on the same shape: plain, with a draft model, or with an EAGLE-3 head."""

    def run(context: Context) -> Data:
        context.need_gpu()
        need_package("vllm")
        environment = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        command = [sys.executable, "-m", "bench.gpu.vllm_run"]
        command += [f"--model={checkpoint(context, shape)}", *engine_sizes(context, "1,4,16")]
        if draft or head:
            command += [f"--acceptance={ACCEPTANCE}", "--drafts=4"]
        if draft:
            command.append(f"--draft={checkpoint(context, draft, 'tiny-draft')}")
        if head:
            command.append(f"--head={head_of(context, shape)}")
        return measured(context, command, environment=environment)

    return run


# Builds that other steps need; they run in the background, in the remaining time.
_BUILDS = [
    Step("programs", "Programs built beforehand", 60, build.unpack, background=True),
    Step(
        "build", "Build of the benchmarks", math.inf, build.benches, ("programs",), background=True
    ),
    Step("build-tests", "Build of the CUDA tests", math.inf, build.tests, ("build",), True),
    Step(
        "build-engine", "Build of the Python module", math.inf, build.engine, ("build-tests",), True
    ),
]
_BENCH, _TESTS, _ENGINE = ("build",), ("build-tests",), ("build-engine",)
# One switch each, so that one mechanism that does not work hides nothing else.
LAUNCH_WORDS = (
    "no_overlap",
    "own_carveouts",
    "no_meeting",
    "no_plan",
    "streaming=9",
)
# Kernels that no GPU has run yet.
_NEW_WORDS = "streaming=1,wide_rows"


def launch_step(word: str) -> str:
    """The name of the step with passes of the 8B launched that way."""
    return f"steps-8b-{word.replace('=', '-')}"


_MACHINE = Step("machine", "The machine", 4, machine.describe)
_SHORT = ("1024", "1", "0,1,3,7,15")  # contexts, batches, drafts
_HEADS_8B = Step("heads-8b", "Passes of an EAGLE-3 head of Llama-3.1-8B", 14, heads(_8B), _BENCH)
_SAMPLER = ["--filter=sample"]
_FEW = "1,2,4,8,16,32,64"  # rows

# Each call is a run of its own, in which every step has its time whatever the others do.
BUDGETS = {1: 300.0, 2: 448.0}
CALLS: dict[int, Sequence[Step]] = {
    1: [
        *_BUILDS,
        _MACHINE,
        Step("instructions", "Tests of instructions", 5, suites.instruction_tests, _TESTS),
        Step("tests", "CUDA test suite", 60, suites.other_tests, _TESTS),
        Step("ceilings", "Ceilings", 13, bench("cuda_machine_bench"), _BENCH),
        Step("steps-8b", "Passes of Llama-3.1-8B", 8, passes(_8B, *_SHORT), _BENCH),
        *(
            Step(
                launch_step(word),
                f"Passes of Llama-3.1-8B, {word}",
                6,
                passes(_8B, *_SHORT, launch=word),
                _BENCH,
            )
            for word in LAUNCH_WORDS
        ),
        Step(
            "kernels-8b",
            "Kernels of Llama-3.1-8B",
            24,
            kernels("Llama-3.1-8B", "act", f"--rows={_FEW}"),
            _BENCH,
        ),
        Step(
            "kernels-8b-new",
            "Kernels of Llama-3.1-8B, streamed",
            24,
            kernels("Llama-3.1-8B", "act", f"--rows={_FEW}", launch=_NEW_WORDS),
            _BENCH,
        ),
        _HEADS_8B,
        *(
            Step(
                f"steps-8b-batches{suffix}",
                f"Passes of Llama-3.1-8B, batches{what}",
                14,
                passes(_8B, "1024", "4,16,64", "0,3", launch=words),
                _BENCH,
            )
            for suffix, what, words in (("", "", ""), ("-new", ", streamed", _NEW_WORDS))
        ),
        Step(
            "kernels-many-rows",
            "Products of many rows",
            18,
            kernels("Llama-3.1-8B", "act", "--nondeterministic", launch=_NEW_WORDS),
            _BENCH,
        ),
        Step("ncu-few-rows", "Counters of few_rows", 9, profiles.few_rows, _BENCH),
        Step("ncu-many-rows", "Counters of many_rows", 9, profiles.many_rows, _BENCH),
        Step("torch", "torch's products and attention", 12, torch_products),
        Step("engine-8b", "Engine, Llama-3.1-8B", 17, engine(_8B, "1"), _ENGINE),
        Step(
            "engine-8b-eagle3",
            "Engine, Llama-3.1-8B, EAGLE-3",
            20,
            engine(_8B, "1", "--drafts=5", head=True),
            _ENGINE,
        ),
    ],
    2: [
        *_BUILDS,
        _MACHINE,
        Step("tests-again", "Tests that did not pass, alone", 40, suites.tests_again, _TESTS),
        Step("sanitizer", "compute-sanitizer", 50, suites.sanitize, _TESTS),
        Step("engine-tests", "Tests of the engine", 90, suites.engine_tests, _ENGINE),
        Step("engine-8b-batches", "Engine, Llama-3.1-8B", 30, engine(_8B, "4,16,64"), _ENGINE),
        Step(
            "engine-8b-chains",
            "Engine, Llama-3.1-8B, EAGLE-3",
            50,
            engine(_8B, "1,4,16", "--drafts=7", "--each-drafts=0,1,2,3,4,5,6,7", head=True),
            _ENGINE,
        ),
        Step("kernels-int8", "Kernels, int8", 12, kernels("Llama-3.1-8B", "int8"), _BENCH),
        Step(
            "kernels-int8-new",
            "Kernels, int8, streamed",
            12,
            kernels("Llama-3.1-8B", "int8", launch=_NEW_WORDS),
            _BENCH,
        ),
        Step("kernels-int4", "Kernels, int4", 12, kernels("Llama-3.1-8B", "int4_grouped"), _BENCH),
        Step(
            "steps-1b",
            "Passes of Llama-3.2-1B",
            16,
            passes(_1B, "1024,16384", "1,4,16,64", "0,1,3,7"),
            _BENCH,
        ),
        Step(
            "steps-8b-long",
            "Passes of Llama-3.1-8B, 16k",
            9,
            passes(_8B, "16384", "1", "0,7"),
            _BENCH,
        ),
        Step("heads-1b", "Passes of an EAGLE-3 head of Llama-3.2-1B", 8, heads(_1B), _BENCH),
        Step("engine-1b", "Engine, Llama-3.2-1B", 15, engine(_1B, "1,4,16"), _ENGINE),
        Step(
            "engine-1b-chains",
            "Engine, Llama-3.2-1B, EAGLE-3",
            25,
            engine(_1B, "1,4,16", "--drafts=7", "--each-drafts=0,1,3,5,7", head=True),
            _ENGINE,
        ),
        Step("sampler", "Sampler", 5, bench("cuda_kernel_bench", *_SAMPLER, tiny=_SAMPLER), _BENCH),
        Step("transformers-8b", "transformers, Llama-3.1-8B", 65, transformers(_8B)),
    ],
}
# By their names alone.
OTHERS: Sequence[Step] = [
    Step(
        "engine-8b-tree",
        "Engine, Llama-3.1-8B, trees of 8 by 4",
        40,
        engine(_8B, "1,4,16", "--drafts=4", "--tree-width=8", head=True),
        _ENGINE,
    ),
    Step(
        "engine-8b-draft",
        "Engine, Llama-3.1-8B, a draft model",
        40,
        engine(_8B, "1,4,16", "--drafts=4", draft=_1B),
        _ENGINE,
    ),
    Step(
        "engine-8b-off",
        "Engine, Llama-3.1-8B, no drafts",
        30,
        engine(_8B, "1,4,16", "--speculation=off"),
        _ENGINE,
    ),
    Step(
        "engine-1b-off",
        "Engine, Llama-3.2-1B, no drafts",
        15,
        engine(_1B, "1,4,16", "--speculation=off"),
        _ENGINE,
    ),
    Step("engine-hybrid", "Engine, Qwen3.5-4B", 20, engine(_HYBRID, "1,4,16"), _ENGINE),
    Step(
        "engine-hybrid-draft",
        "Engine, Qwen3.5-4B, a draft model",
        25,
        engine(_HYBRID, "1,4,16", "--drafts=4", draft="qwen3.5-one-layer"),
        _ENGINE,
    ),
    Step("engine-experts", "Engine, Qwen3-30B-A3B", 40, engine(_EXPERTS, "1,4,16"), _ENGINE),
    Step(
        "steps-experts",
        "Passes of Qwen3-30B-A3B",
        25,
        passes(_EXPERTS, "1024", "1,4,16", "0,3,7"),
        _BENCH,
    ),
    Step(
        "ceilings-own-carveouts",
        "Ceilings, own_carveouts",
        8,
        bench("cuda_machine_bench", "--filter=graph_reads", launch="own_carveouts"),
        _BENCH,
    ),
    Step("transformers-1b", "transformers, Llama-3.2-1B", 45, transformers(_1B)),
    Step("kernels-fp8", "Kernels, fp8", 12, kernels("Llama-3.1-8B", "fp8"), _BENCH),
    Step("ncu-int8", "Counters of few_rows, int8", 9, profiles.few_rows_int8, _BENCH),
    Step("kernels-1b", "Kernels of Llama-3.2-1B", 25, kernels("Llama-3.2-1B", "act"), _BENCH),
    Step("real", "Real weights", 10, real_weights(), _ENGINE),
    *(
        Step(
            f"real-{method}",
            f"Real weights, {method}",
            10,
            real_weights(f"--speculation={method}", "--drafts=8"),
            _ENGINE,
        )
        for method in ("ngram", "suffix")
    ),
    Step(
        "real-draft",
        "Real weights, a draft model",
        10,
        real_weights("--speculation=draft_model", "--drafts=5", draft=True),
        _ENGINE,
    ),
    Step("vllm-8b", "vLLM, Llama-3.1-8B", 120, vllm(_8B)),
    Step("vllm-8b-draft", "vLLM, Llama-3.1-8B, a draft model", 120, vllm(_8B, draft=_1B)),
    Step("vllm-8b-heads", "vLLM, Llama-3.1-8B, EAGLE-3", 140, vllm(_8B, head=True)),
    Step("vllm-1b", "vLLM, Llama-3.2-1B", 90, vllm(_1B)),
    Step("vllm-1b-draft", "vLLM, Llama-3.2-1B, a draft model", 90, vllm(_1B, draft=_1L)),
]


def chosen_steps(call: int, only: Sequence[str] | None, skip: Sequence[str]) -> list[Step]:
    """The steps of a call, or those of all that are named, with what they need."""
    steps = {step.name: step for steps in (*CALLS.values(), OTHERS) for step in steps}
    if only is None:
        return [step for step in CALLS[call] if step.name not in skip]
    wanted = set(only)
    for step in reversed(steps.values()):  # what is needed comes before
        if step.name in wanted:
            wanted.update(step.after)
    return [step for step in steps.values() if step.name in wanted and step.name not in skip]
