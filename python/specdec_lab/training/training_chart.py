"""The chart of a training: loss and acceptance over the number of trained tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_lab.training.files import write_whole
from specdec_native.checkpoints.optional import import_optional


def draw_chart(log: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Writes a PNG image, without a display.

    Args:
        log: the entries of a training's log: steps and evaluations.
        title: the chart's title.
        path: the image file.

    Raises MissingDependencyError without matplotlib.
    """
    import_optional("matplotlib", purpose="drawing the chart", extra="train")
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    figure = Figure(figsize=(13, 4), layout="constrained")
    figure.suptitle(title)
    losses, positions, lengths = figure.subplots(1, 3)
    steps = [entry for entry in log if "loss" in entry]
    evaluations = [entry for entry in log if "tokens_per_step" in entry]
    for depth in range(max((len(entry["depth_losses"]) for entry in steps), default=0)):
        trained = [entry for entry in steps if len(entry["depth_losses"]) > depth]
        smooth = _smoothed([entry["depth_losses"][depth] for entry in trained])
        losses.plot([entry["tokens"] for entry in trained], smooth, label=f"depth {depth + 1}")
    losses.set_ylabel("loss")
    tokens = [entry["tokens"] for entry in evaluations]
    for position in range(len(evaluations[0]["rates"]) if evaluations else 0):
        rates = [entry["rates"][position] for entry in evaluations]
        positions.plot(tokens, rates, marker=".", label=f"position {position + 1}")
    positions.set_ylabel("accepted, share of steps")
    positions.set_ylim(0, 1)
    lengths.plot(tokens, [entry["tokens_per_step"] for entry in evaluations], marker=".")
    lengths.set_ylabel("tokens a step")
    lengths.set_xscale("log")
    for axes in (losses, positions, lengths):
        axes.set_xlabel("answer tokens trained on")
        axes.grid(alpha=0.3)
    for axes in (losses, positions):
        if axes.lines:
            axes.legend()
    write_whole(path, lambda part: figure.savefig(part, format="png", dpi=110))


def _smoothed(values: Sequence[float], share: float = 0.05) -> list[float]:
    """Running means over a share of the values."""
    width = max(1, int(share * len(values)))
    means, total = [], 0.0
    for i, value in enumerate(values):
        total += value - (values[i - width] if i >= width else 0.0)
        means.append(total / min(i + 1, width))
    return means
