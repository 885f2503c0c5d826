"""`specdec-native eval-head`: the speed-up of a draft head, by category of prompts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import rich.console
import typer

from specdec_cli.command_options import (
    SPECULATION_OPTIONS,
    Group,
    Json,
    MaxTokens,
    command,
    engine_options,
)
from specdec_cli.models import resolve, target_of
from specdec_cli.printed_outputs import head_table, print_report_head
from specdec_lab.evaluation import head_chart
from specdec_lab.evaluation.decoding_methods import HEAD_METHODS, methods_of_head
from specdec_lab.evaluation.method_report import HeadReport, Sample, make_rows
from specdec_lab.evaluation.prompts import PROMPTS, read_prompts, select
from specdec_lab.evaluation.runner import (
    Runner,
    describe,
    fit_together,
    make_tasks,
    with_small_cache,
)
from specdec_native.checkpoints import hub
from specdec_native.common.progress import StepBar, make_step_bar
from specdec_native.engine import Engine

_MAX_TEMPERATURE = 100.0


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    add = command(app, "eval-head", engine=engine_options(), speculation=SPECULATION_OPTIONS)
    add(eval_head_command)


def eval_head_command(
    *,
    model: Annotated[
        str, typer.Argument(help="The target: a directory, a .gguf file or a model name.")
    ],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help='A .jsonl file of prompts: "prompt", "turns" or "messages", and "category", '
            "which is the file's name if left out. Repeatable; without any, a few of ours."
        ),
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="Measure only this category. Repeatable.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Prompts of each category at most.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Measure only this one, beside plain: {', '.join(HEAD_METHODS[1:])}. Repeatable."
        ),
    ] = None,
    tree_width: Annotated[
        int, typer.Option("--tree-width", "--tree", min=2, help="Alternatives of trees.")
    ] = 3,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="0 is greedy. Repeatable; 0 and 1 if left out."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Prompts answered together. Repeatable; 1 if left out."),
    ] = None,
    max_tokens: MaxTokens = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Of each call; medians count.")] = 1,
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--in-turns",
            help="Load all methods and alternate call by call, or one after the other; together "
            "if left out, where they fit in memory.",
        ),
    ] = None,
    chart_file: Annotated[
        Path | None, typer.Option("--chart", help="Draw a picture to this .png, .svg or .pdf.")
    ] = None,
    engine: Group,
    speculation: Group,
    as_json: Json = False,
) -> None:
    """Measure a draft head (--spec-model) beside plain decoding, n-grams and suffixes.

    A draft head guesses tokens ahead, and the model keeps those that it would have written itself.
    Shows, by category of prompts: tokens/s over plain decoding, tokens a step, the share of drafts
    kept at each position, and whether the answers are those of plain decoding, as they must be.
    --spec-tokens says how many tokens fixed methods draft. Exit code 1 if an answer differs.
    """
    target = target_of(model, **speculation)
    head = dict(target.speculative_config or {})
    methods = methods_of_head(head, hub.find_config, tree_width=tree_width, names=method or ())
    chosen = select(read_prompts(prompts) if prompts else PROMPTS, category or (), limit)
    temperatures = _checked(temperature or [0.0, 1.0])
    if chart_file is not None:
        head_chart.check_chart(chart_file)
    batches = sorted(set(batch or [1]))
    directory = resolve(target, engine)
    out = rich.console.Console(highlight=False, soft_wrap=True, quiet=as_json)
    tasks = make_tasks(chosen, batches, temperatures)
    num_calls = len(methods) * repeats * sum(len(task.calls) for task in tasks)
    progress = _Progress(out, model, num_calls)
    runner = Runner(
        directory,
        methods,
        tasks,
        max_tokens,
        with_small_cache(directory, batches[-1], engine),
        repeats=repeats,
        on_load=progress.on_load,
        on_sample=progress.on_sample,
    )
    if together is None:
        together = fit_together(directory, len(methods))
    try:
        is_complete = _run(runner, together)
    finally:
        progress.close()
    report = HeadReport(
        **progress.facts,
        rows=make_rows(runner.samples, with_totals=True),
        head=head,
        configs={method.name: method.speculative_config for method in methods},
        max_tokens=max_tokens,
        repeats=repeats,
        loaded="together" if together else "in turns",
    )
    if as_json:
        print(json.dumps({**dataclasses.asdict(report), "model": model}, indent=2))
    out.print(head_table(report))
    out.print(
        "lowest: speedup of the slowest call; per step: tokens that a step emits; kept: share of "
        "the first, second, ... drafted tokens",
        style="dim",
    )
    if chart_file is not None:
        head_chart.draw(report, chart_file)
        out.print(f"The chart is {chart_file}", markup=False)
    if not is_complete:
        raise KeyboardInterrupt
    _check_answers(report)


def _checked(temperatures: list[float]) -> list[float]:
    for value in temperatures:
        if not 0 <= value <= _MAX_TEMPERATURE:
            raise ValueError(f"--temperature must be in [0, {_MAX_TEMPERATURE:g}], got {value}")
    return list(dict.fromkeys(temperatures))


@dataclasses.dataclass
class _Progress:
    """Shows what is being loaded and the progress of the run."""

    out: rich.console.Console
    model: str
    num_calls: int
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_samples: int = 0
    bar: StepBar | None = None

    def on_load(self, engine: Engine, load_seconds: float) -> None:
        self.facts = describe(engine, load_seconds)
        print_report_head(self.out, HeadReport(**self.facts), self.model)

    def on_sample(self, sample: Sample) -> None:
        self.num_samples += 1
        self.bar = self.bar or make_step_bar("calls", self.num_calls)
        self.bar.update(self.num_samples, f"{sample.workload.name}, {sample.method}")

    def close(self) -> None:
        """Takes the bar away."""
        if self.bar is not None:
            self.bar.close()


def _run(runner: Runner, together: bool) -> bool:
    """Runs the measurement; False if the user ended it early. Results up to then are kept."""
    try:
        if together:
            runner.run_together()
        else:
            runner.run_in_turns()
    except KeyboardInterrupt:
        if not runner.samples:
            raise
        return False
    return True


def _check_answers(report: HeadReport) -> None:
    changed = dict.fromkeys(row.method for row in report.rows if not row.same_answers)
    if changed:
        raise RuntimeError(
            f"answers differ from those of plain decoding: {', '.join(changed)}; this is a bug of "
            "the engine, or the options make answers depend on speed (--no-deterministic)"
        )
