"""The picture of a plan: speed-up by batch size and acceptance, and the roofline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_lab.evaluation.head_chart import require_matplotlib
from specdec_lab.planning.plan import RATES, Plan
from specdec_lab.planning.plan_report import drafter_name, sentence
from specdec_native.checkpoints.optional import import_optional

_MARKS = {"decode": "o", "verify": "s", "prompt": "^"}


def draw(plan: Plan, file: Path) -> None:
    """Writes a picture, of the kind that the file's ending says: .png, .svg or .pdf.

    A panel for each context: colours are speed-ups, numbers are best draft lengths, a line is the
    break-even. The last panel is the roofline.
    Raises MissingDependencyError, ValueError for another ending, OSError.
    """
    require_matplotlib().use("Agg")
    pyplot = import_optional("matplotlib.pyplot", purpose="drawing a chart", extra="chart")
    columns = len(plan.contexts) + 1
    figure, axes = pyplot.subplots(1, columns, figsize=(5 * columns, 4.6), layout="constrained")
    highest = max(2.0, *(p.speedup for p in plan.predictions))
    for axis, context in zip(axes, plan.contexts, strict=False):
        image = _draw_speedups(axis, plan, context, highest)
    figure.colorbar(image, ax=axes[-2], label="speed-up over plain decoding")
    _draw_roofline(axes[-1], plan)
    figure.suptitle(f"{plan.model}, drafts by {drafter_name(plan)}\n{sentence(plan)}", fontsize=9)
    try:
        figure.savefig(file, dpi=150)
    finally:
        pyplot.close(figure)


def _draw_speedups(axis: Any, plan: Plan, context: int, highest: float) -> Any:
    table = [plan.predicted(rate, context) for rate in RATES]
    values = [[p.speedup for p in row] for row in table]
    image = axis.imshow(values, origin="lower", aspect="auto", cmap="YlGn", vmin=1.0, vmax=highest)
    for y, row in enumerate(table):
        for x, prediction in enumerate(row):
            text = f"{prediction.speedup:.2f}\nK={prediction.length}" if prediction.length else "-"
            dark = prediction.speedup > (1 + highest) / 2
            axis.text(x, y, text, ha="center", va="center", fontsize=6, color="w" if dark else "k")
    step = RATES[1] - RATES[0]
    rates = [b.rate for b in plan.break_even if b.context == context]
    places = [(x, (rate - RATES[0]) / step) for x, rate in enumerate(rates) if rate is not None]
    if places:
        axis.plot(*zip(*places, strict=True), color="#ca0020", marker=".", label="break-even")
        axis.legend(fontsize=7, loc="lower right")
    axis.set_xlim(-0.5, len(plan.batches) - 0.5)
    axis.set_ylim(-0.5, len(RATES) - 0.5)
    axis.set_xticks(range(len(plan.batches)), [str(b) for b in plan.batches])
    axis.set_yticks(range(len(RATES)), [f"{rate:.0%}" for rate in RATES])
    axis.set_xlabel("requests")
    axis.set_ylabel("drafts kept at each position")
    axis.set_title(f"{context} tokens of context", fontsize=10)
    return image


def _draw_roofline(axis: Any, plan: Plan) -> None:
    machine = plan.machine
    intensities = [point.intensity for point in plan.points]
    ends = (min([*intensities, machine.ridge]) / 2, max([*intensities, machine.ridge]) * 4)
    line = [ends[0], machine.ridge, ends[1]]
    axis.plot(line, [machine.reachable_flops(x) / 1e9 for x in line], color="#5f7d95")
    for name, mark in _MARKS.items():
        points = [point for point in plan.points if point.name == name]
        if points:
            axis.plot(
                [p.intensity for p in points],
                [p.flops / 1e9 for p in points],
                mark,
                label=name,
                markersize=5,
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("floating-point operations a byte")
    axis.set_ylabel("GFLOP/s")
    axis.set_title("roofline", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7)
