"""The report: tables to read, JSON to keep."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .results import Result, Row, Verdict, cells_of, find_noisy, make_rows, make_verdicts

_HEADINGS = (
    "engine",
    "speculation",
    "tok/s",
    "x plain",
    "least x",
    "specdec x",
    "first ms",
    "decode tok/s",
    "of read bw",
    "tok/step",
    "peak MiB",
    "= plain",
    "runs",
)
_LEGEND = """\
x plain: over the same engine's plain decoding; least x: on the prompt where that is least.
specdec x: this engine over that row, plain against plain, best speculation against speculation.
first ms: to the first token. of read bw: weights read by plain decoding over what memory delivers.
tok/step: tokens a pass through the target yields. = plain: tokens equal those without speculation.
runs: quiet repetitions (+ dropped ones, during which others used the machine)."""


def render(result: Result) -> str:
    """The whole report as text."""
    rows = make_rows(result)
    parts = [_header(result)]
    for (kernels, workload, batch), cell in cells_of(rows).items():
        parts.append(
            f"{kernels}, {workload}, batch {batch}\n" + _table(_HEADINGS, map(_cells, cell))
        )
    parts.append(_LEGEND)
    verdicts = make_verdicts(rows)
    if verdicts:
        headings = ("specdec over the best peer", "kernels", "workload", "batch", "ratio", "of")
        parts.append(_table(headings, map(_verdict_cells, verdicts)))
    parts += [f"never quiet: {name}" for name in find_noisy(result)]
    parts += [f"absent: {name}\n" + _indented(how) for name, how in result.absent.items()]
    parts += [f"failed: {name}: {why}" for name, why in result.failed.items()]
    return "\n\n".join(parts)


def to_json(result: Result) -> dict[str, Any]:
    """Everything, for a file that Result.from_json reads again."""
    rows = make_rows(result)
    return {
        **dataclasses.asdict(result),
        "rows": [dataclasses.asdict(row) for row in rows],
        "verdicts": [dataclasses.asdict(verdict) for verdict in make_verdicts(rows)],
    }


def write_json(result: Result, file: Path) -> None:
    """Writes a result at once or not at all."""
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(to_json(result), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(file)


def read_json(file: Path) -> Result:
    """Reads what write_json wrote."""
    return Result.from_json(json.loads(file.read_text(encoding="utf-8")))


def _header(result: Result) -> str:
    lines = [", ".join(f"{key} {value}" for key, value in result.machine.items())]
    lines.append("versions: " + ", ".join(f"{k} {v}" for k, v in result.versions.items()))
    if result.bandwidths:
        gigabytes = [value / 1e9 for value in result.bandwidths]
        lines.append(
            f"read bandwidth {statistics.median(gigabytes):.1f} GB/s "
            f"({min(gigabytes):.1f} to {max(gigabytes):.1f})"
        )
    else:
        lines.append("read bandwidth not measured: build the target read_bandwidth")
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    runs = str(row.num_samples) + (f" +{row.num_noisy}" if row.num_noisy else "")
    return [
        row.contestant.peer,
        row.contestant.speculation,
        f"{row.tokens_per_s:.1f}",
        _number(row.times_plain, 2),
        _number(row.worst_times_plain, 2),
        _number(row.ours_over_it, 2),
        _number(row.first_token_ms, 1),
        _number(row.decode_tokens_per_s, 1),
        "-" if row.of_bandwidth is None else f"{100 * row.of_bandwidth:.0f}%",
        _number(row.tokens_per_step, 2),
        f"{row.peak_bytes / 2**20:.0f}",
        {None: "-", True: "yes", False: "NO"}[row.same_as_plain],
        runs,
    ]


def _verdict_cells(verdict: Verdict) -> list[str]:
    return [
        verdict.kind,
        verdict.kernels,
        verdict.workload,
        str(verdict.batch),
        f"{verdict.ratio:.2f}",
        f"{verdict.ours.speculation} over {verdict.best_peer.peer} {verdict.best_peer.speculation}",
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, aligned so that it reads well in a terminal too."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    texts = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
