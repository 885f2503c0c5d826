"""The report's picture: tokens/s of every contestant, one panel a cell."""

from __future__ import annotations

from pathlib import Path

from .results import OURS, PLAIN, Result, Row, make_rows
from .workloads import LONG

_COLUMNS = 3
_ROW_INCHES = 0.26


def draw(result: Result, stem: Path) -> list[Path]:
    """Writes STEM.png and STEM.svg. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[str, list[Row]] = {}
    for row in make_rows(result):
        if row.workload != LONG:
            title = f"{row.workload}, batch {row.batch}, {row.contestant.kernels}"
            panels.setdefault(title, []).append(row)
    columns = min(_COLUMNS, max(1, len(panels)))
    lines = -(-max(1, len(panels)) // columns)
    tallest = max(map(len, panels.values()), default=1)
    figure, axes = pyplot.subplots(
        lines,
        columns,
        figsize=(5.2 * columns, lines * (1.0 + _ROW_INCHES * tallest)),
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, rows) in zip(axes.flat, panels.items(), strict=False):
        ordered = sorted(rows, key=lambda row: row.tokens_per_s)
        bars = axis.barh(
            [f"{row.contestant.peer} {row.contestant.speculation}" for row in ordered],
            [row.tokens_per_s for row in ordered],
            color=[_colour(row) for row in ordered],
        )
        axis.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        axis.margins(x=0.15)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("tokens/s")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    files = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return files


def _colour(row: Row) -> str:
    """Dark for speculation, warm for this engine."""
    plain = row.contestant.speculation == PLAIN
    if row.contestant.peer == OURS:
        return "#f4a582" if plain else "#ca0020"
    return "#bdc9d3" if plain else "#5f7d95"
