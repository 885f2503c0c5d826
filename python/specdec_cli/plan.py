"""`specdec-native plan`: predicts whether speculation pays on this machine or another."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import rich.console
import typer

from specdec_cli.command_options import SPECULATION_FLAGS, Group, command, engine_options
from specdec_cli.models import resolve, target_of
from specdec_lab.evaluation.decoding_methods import FREE_DRAFT_TOKENS, NGRAM
from specdec_lab.evaluation.prompts import PROMPTS, Prompt, read_prompts
from specdec_lab.planning.layouts import Devices, LayoutPlan
from specdec_lab.planning.layouts_report import print_layouts
from specdec_lab.planning.make import Question, computed_plan, layout_plan, measured_plan
from specdec_lab.planning.measured_acceptance import measure_acceptance
from specdec_lab.planning.plan import Plan
from specdec_lab.planning.plan_report import print_plan
from specdec_lab.planning.ranks import Link
from specdec_lab.planning.roofline import Machine
from specdec_lab.planning.speedup import Acceptance
from specdec_native.checkpoints import hub
from specdec_native.common.checks import check_number
from specdec_native.common.progress import make_step_bar, show_stage
from specdec_native.speculation.auto_drafters import asks_for_auto
from specdec_native.speculation.drafter_options import DRAFTER_KEYS
from specdec_native.speculation.speculative_config import parse_speculative_config
from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.tokenizer_backends import TokenizerNotFoundError

_BATCHES = "1,2,4,8,16,32"
_CONTEXTS = "128,1024"
_MOST_BATCH = 1024
_MOST_CONTEXT = 1 << 20
_MOST_PROMPTS = 8
_KEYS = (*DRAFTER_KEYS, "drafters", "merge_drafters", "num_speculative_tokens")
_CHOSEN_HERE = (  # the engine's sizes follow from batch sizes and contexts
    "load_format",
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_kv_blocks",
    "kv_cache_memory_bytes",
    "enable_prefix_caching",
)
_DEVICES = "Several devices"  # the panel of options that --help-all shows
_SHORT_FORMS = {"spec_model": ("--draft",), "spec_method": ("--method",)}


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    flags = [replace(flag, short=_SHORT_FORMS.get(flag.name, ())) for flag in SPECULATION_FLAGS]
    add = command(
        app,
        "plan",
        engine=engine_options(without=_CHOSEN_HERE),
        speculation=[flag.parameter("Speculation") for flag in flags],
    )
    add(plan_command)


def plan_command(
    *,
    model: Annotated[
        str, typer.Argument(help="The target: a directory, a .gguf file or a model name.")
    ],
    batch_sizes: Annotated[
        str, typer.Option(help="Numbers of requests that decode together, such as 1,8,32.")
    ] = _BATCHES,
    contexts: Annotated[
        str, typer.Option(help="Tokens that each request has before, such as 128,4096.")
    ] = _CONTEXTS,
    acceptance: Annotated[
        float | None,
        typer.Option(
            help="Share of drafts that is kept at each position; measured on prompts if left out."
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="A .jsonl file of prompts to measure it on, as of eval-head. Repeatable."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of each answer to them.")] = 96,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="GB/s of a machine that is not here: compute instead of measuring."),
    ] = None,
    flops: Annotated[
        float | None, typer.Option(help="Its GFLOP/s, at the dtype of the weights.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel=_DEVICES,
            help="So many of them: how to spread the model, instead of speed-ups.",
        ),
    ] = None,
    link_latency: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_DEVICES, help="Microseconds of a short message between two devices."
        ),
    ] = None,
    link_rate: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_DEVICES, help="GB/s that a device receives from all others together."
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(rich_help_panel=_DEVICES, help="GB of a device; enough if left out."),
    ] = None,
    engine: Group,
    speculation: Group,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything that was found to this file.")
    ] = None,
) -> None:
    """Predict when speculation pays: by acceptance, batch size and context.

    Measures on this machine what passes of the model cost by rows and context, what drafting costs,
    and how many drafts are kept. Shows the speed-up over plain decoding with the best draft length,
    from which acceptance and up to which batch size drafting pays, and the roofline; says at the
    end what to switch on. Without a drafter plans for n-grams. With --bandwidth and --flops nothing
    runs: costs follow from the bytes and operations of the model's shapes.

    With --devices, --link-latency and --link-rate as well, predicts the tokens a second of all
    tensor, pipeline and draft parallel sizes, and says which to take; without a drafter, of plain
    decoding.
    """
    machine = _machine(bandwidth, flops)
    among = _devices(devices, machine, (link_latency, link_rate), memory)
    if machine is not None:
        _check_sizes(engine)
    is_plain = not speculation and target_of(model).speculative_config is None
    if speculation.keys() <= {"spec_tokens"} and target_of(model).speculative_config is None:
        speculation["speculative_config"] = json.dumps(NGRAM)
    target = target_of(model, **speculation)
    config = _checked(target.speculative_config)
    given = (
        None
        if acceptance is None
        else check_number("--acceptance", acceptance, minimum=0, maximum=1)
    )
    if among is not None and (given is None) != is_plain:
        raise ValueError(
            "--acceptance has no drafter to be about; give --draft or --method"
            if is_plain
            else "--acceptance is missing: with --devices nothing runs that could tell it"
        )
    asked = _first_prompts(prompts)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise ValueError(f"--json: there is no directory {json_file.absolute().parent}")
    batches = _counts("--batch-sizes", batch_sizes, _MOST_BATCH)
    lengths = _counts("--contexts", contexts, _MOST_CONTEXT)
    found = None if machine is None else hub.find_config(os.fspath(target.model), target.revision)
    directory = found or resolve(target, engine)
    question = Question(model, directory, config, batches, lengths, engine)
    known = None if given is None else Acceptance.chain(given, question.longest)
    plan: Plan | LayoutPlan
    if among is not None:
        plan = layout_plan(question, among, known)
    elif machine is not None:
        plan = computed_plan(question, machine, known)
    else:
        plan = _measured(question, known, asked, max_tokens)
    if json_file is not None:
        json_file.write_text(json.dumps(plan.to_json(), indent=2) + "\n", encoding="utf-8")
    console = rich.console.Console(highlight=False, soft_wrap=True)
    if isinstance(plan, LayoutPlan):
        print_layouts(console, plan)
    else:
        print_plan(console, plan)


def _measured(
    question: Question, known: Acceptance | None, asked: Sequence[Prompt], max_tokens: int
) -> Plan:
    if known is None and _has_tokenizer(question.directory):
        show_stage(f"measuring acceptance: {len(asked)} prompts, {max_tokens} tokens each")
        known = measure_acceptance(
            question.directory, question.speculation, asked, max_tokens, question.engine_options
        )
    num_points = len(question.batches) * len(question.contexts)
    show_stage(f"measuring passes: {num_points} batch sizes and contexts")
    bar = _Bar()
    try:
        return measured_plan(question, known, bar.update)
    finally:
        bar.close()


class _Bar:
    """Progress over measured points; the first point brings their number."""

    def __init__(self) -> None:
        self._bar: Any = None

    def update(self, done: int, total: int, text: str) -> None:
        self._bar = self._bar or make_step_bar("measuring", total)
        self._bar.update(done, text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _machine(bandwidth: float | None, flops: float | None) -> Machine | None:
    if bandwidth is None and flops is None:
        return None
    if bandwidth is None or flops is None:
        missing = "--bandwidth" if bandwidth is None else "--flops"
        raise ValueError(f"{missing} is missing: a machine that is not here has both")
    for flag, value in (("--bandwidth", bandwidth), ("--flops", flops)):
        check_number(flag, value, minimum=0, above_minimum=True)
    return Machine(bandwidth * 1e9, flops * 1e9)


def _devices(
    count: int | None,
    machine: Machine | None,
    link: tuple[float | None, float | None],
    memory: float | None,
) -> Devices | None:
    latency, rate = link
    given = {"--link-latency": latency, "--link-rate": rate, "--memory": memory}
    if count is None:
        for flag, value in given.items():
            if value is not None:
                raise ValueError(f"{flag} is about several devices; give --devices, too")
        return None
    if machine is None:
        raise ValueError("--devices needs --bandwidth and --flops: nothing is measured")
    for flag, value in given.items():
        if value is not None:
            check_number(flag, value, minimum=0, above_minimum=flag != "--link-latency")
    if latency is None or rate is None:
        missing = "--link-latency" if latency is None else "--link-rate"
        raise ValueError(f"{missing} is missing: --devices needs both of the link")
    room = None if memory is None else memory * 1e9
    return Devices(count, machine, Link(latency * 1e-6, rate * 1e9), room)


def _check_sizes(engine: Mapping[str, Any]) -> None:
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if engine.get(name, 1) != 1:
            raise ValueError(
                f"--{name.replace('_', '-')} is of engines that run; for a machine that is not "
                "here --devices looks at all sizes"
            )


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter's keys and the longest draft. Raises ValueError."""
    misplaced = [key for key in config if key not in _KEYS]
    if misplaced:
        raise ValueError(
            f"{', '.join(misplaced)} in the speculative config: a plan is about chains of every "
            "length; give the drafter's keys and num_speculative_tokens"
        )
    if asks_for_auto(config):
        raise ValueError('a plan is about one drafter, and "auto" is several: name one of them')
    parsed = parse_speculative_config(config, hub.find_config)
    longest = parsed.num_speculative_tokens
    if "num_speculative_tokens" not in config:
        longest = min(longest, FREE_DRAFT_TOKENS)
    return {**config, "num_speculative_tokens": longest}


def _counts(flag: str, text: str, most: int) -> list[int]:
    """The numbers of a list, in rising order."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"{flag} must be numbers such as 1,8,32, got {text!r}") from None
    if counts[0] < 1 or counts[-1] > most:
        raise ValueError(f"{flag} must be in [1, {most}], got {text!r}")
    return counts


def _first_prompts(files: Sequence[Path] | None) -> Sequence[Prompt]:
    return read_prompts(files)[:_MOST_PROMPTS] if files else PROMPTS


def _has_tokenizer(directory: Path) -> bool:
    try:
        Tokenizer.from_directory(directory)
    except TokenizerNotFoundError:
        return False
    return True
