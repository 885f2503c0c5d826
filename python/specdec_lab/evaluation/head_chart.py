"""The picture of a report on a head: acceptance by position, and speed by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.evaluation.decoding_methods import HEAD, PLAIN
from specdec_lab.evaluation.method_report import ALL, HeadReport, Row
from specdec_native.checkpoints.optional import import_optional

_ENDINGS = (".png", ".svg", ".pdf")
_MOST_POSITIONS = 8
_BAR_INCHES = 0.2
_MOST_BARS = 48  # above this number, categories are shown for the head alone


def make_figure(width: float, height: float) -> Any:
    """A matplotlib Figure of these inches, without a display. Raises MissingDependencyError."""
    _require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    return Figure(figsize=(width, height), layout="constrained")


def _require_matplotlib() -> None:
    import_optional("matplotlib", purpose="drawing a chart", extra="chart")


def check_chart(file: Path) -> None:
    """Refuses the file of --chart before anything is measured rather than after.

    Raises MissingDependencyError, ValueError.
    """
    _require_matplotlib()
    if file.suffix.lower() not in _ENDINGS:
        raise ValueError(f"--chart must end in {', '.join(_ENDINGS)}, got {file}")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"--chart: there is no directory {file.absolute().parent}; make it first")


def draw(report: HeadReport, file: Path) -> None:
    """Writes a picture in the format of the file's ending: .png, .svg or .pdf.

    A row of panels for each batch size and temperature: on the left the share of drafts that were
    kept at each position, over all categories; on the right tokens/s relative to plain decoding.
    Raises MissingDependencyError, ValueError for another ending, OSError.
    """
    situations: dict[tuple[int, float], list[Row]] = {}
    for row in report.rows:
        situations.setdefault((row.batch, row.temperature), []).append(row)
    tallest = min(_MOST_BARS, max(map(len, situations.values()), default=0))
    figure = make_figure(12, len(situations) * (1.6 + _BAR_INCHES * tallest))
    axes = figure.subplots(len(situations), 2, squeeze=False)
    for (left, right), ((batch, temperature), rows) in zip(axes, situations.items(), strict=True):
        title = f"batch {batch}, temperature {temperature:g}"
        _draw_acceptance(left, _summed_up(rows), title)
        _draw_speed(right, rows, title)
    figure.suptitle(f"{report.model}: draft head {report.head.get('model', '')}", fontsize=10)
    figure.savefig(file, dpi=150)


def _summed_up(rows: Sequence[Row]) -> Mapping[str, Row]:
    """One row per method: the row over all categories, where there is one."""
    chosen: dict[str, Row] = {}
    for row in rows:
        if row.method not in chosen or row.workload == ALL:
            chosen[row.method] = row
    return chosen


def _draw_acceptance(axis: Any, rows: Mapping[str, Row], title: str) -> None:
    for name, row in rows.items():
        shares = (row.acceptance_per_position or [])[:_MOST_POSITIONS]
        if shares:
            axis.plot(range(1, len(shares) + 1), shares, marker="o", markersize=3, label=name)
    axis.set_ylim(0, 1)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("position in the draft")
    axis.set_ylabel("share that was kept")
    axis.set_title(f"acceptance, {title}", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    if axis.lines:
        axis.legend(fontsize=7)


def _draw_speed(axis: Any, rows: Sequence[Row], title: str) -> None:
    drafting = [row for row in rows if row.method != PLAIN.name]
    if len(drafting) > _MOST_BARS:
        drafting = [row for row in drafting if row.workload == ALL or row.method == HEAD]
    bars = axis.barh(
        [f"{row.workload}, {row.method}" for row in drafting],
        [row.speedup for row in drafting],
        color=["#ca0020" if row.workload == ALL else "#f4a582" for row in drafting],
    )
    axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=7)
    axis.axvline(1.0, color="#5f7d95", linewidth=1)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.tick_params(labelsize=7)
    axis.set_title(f"tokens/s over plain decoding, {title}", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
