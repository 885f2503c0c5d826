"""The picture of a plan over several devices: speed by layout, drafting by the link's latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_lab.evaluation.head_chart import require_matplotlib
from specdec_lab.planning.layouts import LayoutPlan
from specdec_lab.planning.layouts_report import sentence
from specdec_lab.planning.plan_report import milliseconds
from specdec_native.checkpoints.optional import import_optional


def draw(plan: LayoutPlan, file: Path) -> None:
    """Writes a picture, of the kind that the file's ending says: .png, .svg or .pdf.

    A panel for each batch size, at the shortest context: colours and numbers are tokens/s, over
    tensor and pipeline parallel sizes, each with its best draft size; a frame is around the best.
    Where a model drafts, the last panel is its time by the link's latency.
    Raises MissingDependencyError, ValueError for another ending, OSError.
    """
    require_matplotlib().use("Agg")
    pyplot = import_optional("matplotlib.pyplot", purpose="drawing a chart", extra="chart")
    has_drafts = len(plan.draft_sizes) > 1
    columns = len(plan.batches) + has_drafts
    figure, axes = pyplot.subplots(
        1, columns, figsize=(4.5 * columns, 4.6), layout="constrained", squeeze=False
    )
    for axis, batch in zip(axes[0], plan.batches, strict=False):
        _draw_speeds(axis, plan, batch, pyplot.Rectangle)
    if has_drafts:
        _draw_drafting(axes[0][-1], plan)
    said = sentence(plan).replace(". With", ".\nWith")
    figure.suptitle(f"{plan.model} on {plan.devices.count} devices, computed\n{said}", fontsize=8)
    try:
        figure.savefig(file, dpi=150)
    finally:
        pyplot.close(figure)


def _draw_speeds(axis: Any, plan: LayoutPlan, batch: int, rectangle: Any) -> None:
    found = plan.best_draft(batch, plan.contexts[0])
    tensor = sorted({sizes[0] for sizes in found})
    stages = sorted({sizes[1] for sizes in found})
    values = [
        [found[t, p].tokens_per_second if (t, p) in found else float("nan") for p in stages]
        for t in tensor
    ]
    axis.imshow(values, origin="lower", aspect="auto", cmap="YlGn", vmin=0)
    highest = max(speed.tokens_per_second for speed in found.values())
    best = plan.best(batch, plan.contexts[0]).layout
    for (t, p), speed in found.items():
        x, y = stages.index(p), tensor.index(t)
        drafts = f"\nK{speed.length} d{speed.layout.draft_tensor_parallel_size}"
        text = f"{speed.tokens_per_second:.0f}\n{milliseconds(speed.step_seconds)} ms"
        axis.text(
            x,
            y,
            text + (drafts if speed.length else ""),
            ha="center",
            va="center",
            fontsize=6,
            color="w" if speed.tokens_per_second > highest / 2 else "k",
        )
        if (t, p) == (best.tensor_parallel_size, best.pipeline_parallel_size):
            frame = rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor="#ca0020", lw=2)
            axis.add_patch(frame)
    axis.set_xticks(range(len(stages)), [str(p) for p in stages])
    axis.set_yticks(range(len(tensor)), [str(t) for t in tensor])
    axis.set_xlabel("pipeline parallel size")
    axis.set_ylabel("tensor parallel size")
    axis.set_title(f"tokens/s with batch {batch}", fontsize=10)


def _draw_drafting(axis: Any, plan: LayoutPlan) -> None:
    latency = plan.devices.link.latency
    crossings = [d.break_even_latency for d in plan.draft_sizes if d.break_even_latency]
    end = 1.5 * max([latency, *crossings])
    for draft in plan.draft_sizes:
        ends = [draft.seconds + (t - latency) * draft.num_waits for t in (0.0, end)]
        label = f"{draft.size} rank{'' if draft.size == 1 else 's'}"
        axis.plot([0, 1e6 * end], [1e3 * s for s in ends], label=label)
    axis.axvline(1e6 * latency, color="#5f7d95", linestyle=":", label="the link")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("latency of the link, us")
    axis.set_ylabel("ms")
    axis.set_title(f"drafting {plan.draft_sizes[0].length} tokens", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7)
