"""The command line's output: outputs as JSON, the tables of `demo`."""

from __future__ import annotations

import dataclasses
from typing import Any

import rich.box
import rich.console
import rich.table
import rich.text

from specdec_lab.evaluation.method_report import ALL, HeadReport, Report, Row
from specdec_native.requests.outputs import RequestOutput

_MOST_POSITIONS = 4  # positions of a draft in a table's line


def output_json(output: RequestOutput) -> dict[str, Any]:
    """An output's fields, for `generate --json`."""
    fields = dataclasses.asdict(output)
    del fields["lora_request"]
    for part in (fields["metrics"], *fields["outputs"]):
        counts = part.pop("acceptance")
        part["speculative_decoding"] = (
            None if counts is None else dataclasses.asdict(counts.metrics)
        )
        part.pop("lora_request", None)
    return fields


def shortened(text: str, max_lines: int = 8) -> str:
    """The first lines of a text."""
    lines = text.strip().splitlines()
    return "\n".join([*lines[:max_lines], *(["..."] if len(lines) > max_lines else [])])


def print_report_head(out: rich.console.Console, report: Report, model: str) -> None:
    """The line about the model and its device."""
    units = "threads" if report.device == "cpu" else "multiprocessors"
    out.print(
        f"{model}: {report.architecture}, {report.num_parameters / 1e6:.0f}M parameters, "
        f"{report.weight_format} on {report.device} ({report.isa}, {report.num_threads} {units}), "
        f"loaded in {report.load_seconds:.1f} s",
        markup=False,
    )


def speed_table(report: Report) -> rich.table.Table:
    """How fast each method was."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    several = len({row.method for row in report.rows}) > 1
    table.add_column("decoding")
    table.add_column("prompts")
    table.add_column("tokens/s", justify="right")
    if not several:
        table.add_column("first token", justify="right")
    else:
        for column in ("speedup", "per step", "accepted", "identical"):
            table.add_column(column, justify="right")
    for row in report.rows:
        prompts = row.workload if row.batch == 1 else f"{row.workload} x{row.batch}"
        cells = [row.method, prompts, f"{row.tokens_per_s:.1f}"]
        table.add_row(*cells, *(_comparison(row) if several else [f"{row.first_token_ms:.0f} ms"]))
    return table


def _comparison(row: Row) -> list[str]:
    """A row's cells that compare it with the first method."""
    drafts = ["", ""]
    if row.acceptance_length is not None and row.acceptance_rate is not None:
        drafts = [f"{row.acceptance_length:.2f}", f"{row.acceptance_rate:.0%}"]
    return [f"{row.speedup:.2f}", *drafts, "yes" if row.same_answers else "NO"]


def head_table(report: HeadReport) -> rich.table.Table:
    """A head's results: a line for each method, grouped by category of prompts."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("decoding")
    for column in ("tokens/s", "speedup", "lowest", "per step", "kept, %", "identical"):
        table.add_column(column, justify="right", no_wrap=True)
    situation = None
    for row in sorted(report.rows, key=_situation):
        if situation != _situation(row):
            table.add_section()
            table.add_row(rich.text.Text(_prompts_of(row), style="bold"))
        situation = _situation(row)
        drafts = ["", "", ""]
        if row.acceptance_per_position is not None:
            shares = [f"{100 * share:.0f}" for share in row.acceptance_per_position]
            more = " .." if len(shares) > _MOST_POSITIONS else ""
            drafts = [
                f"{row.lowest_speedup:.2f}",
                f"{row.tokens_per_step:.2f}",
                " ".join(shares[:_MOST_POSITIONS]) + more,
            ]
        figures = [f"{row.tokens_per_s:.1f}", f"{row.speedup:.2f}", *drafts]
        table.add_row(row.method, *figures, "yes" if row.same_answers else "NO")
    return table


def _situation(row: Row) -> tuple[int, float, bool, str]:
    return (row.batch, row.temperature, row.workload == ALL, row.workload)


def _prompts_of(row: Row) -> str:
    batch = "" if row.batch == 1 else f" x{row.batch}"
    return f"{row.workload}{batch}, T={row.temperature:g}"
