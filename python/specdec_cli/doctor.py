"""`specdec-native doctor`: why the drafts of a head are not accepted, and what mends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import rich.box
import rich.console
import rich.table
import rich.text
import typer

from specdec_cli.command_options import (
    SPECULATION_OPTIONS,
    Group,
    Json,
    command,
    engine_options,
)
from specdec_cli.models import resolve, target_of
from specdec_lab.doctor.examine import examine
from specdec_lab.doctor.findings import UNASKED, Finding, Report, Trial
from specdec_lab.evaluation.prompts import read_prompts
from specdec_native.common.progress import show_stage


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    add = command(app, "doctor", engine=engine_options(), speculation=SPECULATION_OPTIONS)
    add(doctor_command)


def doctor_command(
    *,
    model: Annotated[
        str, typer.Argument(help="The target: a directory, a .gguf file or a model name.")
    ],
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help='A .jsonl file of prompts: "prompt", "turns" or "messages". Repeatable; without '
            "any, a few of ours."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=24, help="Tokens of each answer.")] = 48,
    write_mended: Annotated[
        Path | None, typer.Option(help="Write the mended head to this new directory.")
    ] = None,
    engine: Group,
    speculation: Group,
    as_json: Json = False,
) -> None:
    """Find out why drafts of a head (--spec-model) are not accepted, and what mends it.

    Looks at the head's tensors, measures what is accepted of its drafts, and tries the readings on
    which checkpoints disagree: layers off by one, orders of matrices, norms, ropes, token ids.
    Exit code 0 if the head is sound, 1 if a fault was found, 2 if it could not be examined.
    """
    out = rich.console.Console(highlight=False, soft_wrap=True, quiet=as_json)
    try:
        target = target_of(model, **speculation)
        if write_mended is not None and write_mended.exists():
            raise ValueError(f"--write-mended: {write_mended} exists; name a new directory")
        texts = [prompt.text for prompt in read_prompts(prompts)] if prompts else None
        report = examine(
            model,
            resolve(target, engine),
            target.speculative_config,
            texts=texts,
            max_tokens=max_tokens,
            engine_options=engine,
            write_mended=write_mended,
            on_trial=lambda what: show_stage(f"measuring: {what}"),
        )
    except (ValueError, RuntimeError, MemoryError, OSError, ImportError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(UNASKED) from error
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    _print_report(out, report)
    raise typer.Exit(report.status)


def _print_report(out: rich.console.Console, report: Report) -> None:
    name = report.head or "the layer of the target's checkpoint"
    out.print(f"{report.model} with {name} ({report.method})", markup=False)
    out.print(_table(report))
    out.print(
        "drafted: share of the answers' tokens that came from drafts; kept: of first, second, ... "
        "drafts; gain: of the drafted share, in points, with the half of its interval of 99%",
        style="dim",
    )
    for finding in report.findings:
        out.print(_text_of(finding))
    if report.status == 0:
        out.print("The head is sound: no other reading of it is accepted more.")
    if report.written is not None:
        out.print(f"The mended head is {report.written}", markup=False)


def _table(report: Report) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("reading", no_wrap=True)
    for column in ("drafted", "per step", "kept, %", "gain"):
        table.add_column(column, justify="right", no_wrap=True)
    last = 0
    for trial in report.trials:
        if trial.round != last:
            table.add_section()
        last = trial.round
        style = "bold" if trial.confirmed or not trial.round else None
        table.add_row(*_cells(trial), style=style)
    return table


def _cells(trial: Trial) -> list[str | rich.text.Text]:
    label = rich.text.Text(trial.label)
    if trial.share is None or trial.tokens_per_step is None:
        return [label, "refused", "", "", ""]
    kept = " ".join(f"{100 * share:.0f}" for share in trial.by_depth)
    gain = ""
    if trial.gain is not None:
        value, low, _ = (100 * points for points in trial.gain)
        gain = f"{value:+.1f} \u00b1{value - low:.1f}"
    return [label, f"{trial.share:.1%}", f"{trial.tokens_per_step:.2f}", kept, gain]


def _text_of(finding: Finding) -> rich.text.Text:
    text = rich.text.Text()
    text.append("fault: " if finding.is_fault else "note: ", "bold red" if finding.is_fault else "")
    text.append(f"{finding.subject}: {finding.text}.")
    if finding.remedy:
        text.append(f"\n       {finding.remedy[0].upper()}{finding.remedy[1:]}.", "green")
    return text
