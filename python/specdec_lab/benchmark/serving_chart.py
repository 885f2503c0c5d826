"""The picture of a report: how times are distributed, and time per token by category."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from specdec_lab.benchmark.answers import Answer
from specdec_lab.benchmark.serving_report import ServeReport
from specdec_lab.evaluation.head_chart import make_figure

_COLOURS = ("#b2182b", "#5f7d95", "#d6a24a", "#4d9221")


def draw(report: ServeReport, file: Path) -> None:
    """Writes a picture in the format of the file's ending: .png, .svg or .pdf.

    Panels: the share of answers within a time to the first token, within a time per output token,
    and the mean time per output token of each category. A colour is a server.
    Raises MissingDependencyError, ValueError for another ending, OSError.
    """
    figure = make_figure(13, 4)
    first, per_token, categories = figure.subplots(1, 3)
    _draw_shares(first, report, "time to the first token", lambda answer: answer.ttft)
    _draw_shares(per_token, report, "time per output token", lambda answer: answer.tpot)
    _draw_categories(categories, report)
    if first.lines:
        figure.legend(handles=first.lines, fontsize=8, loc="outside lower center")
    figure.savefig(file, dpi=150)


def _draw_shares(
    axis: Any, report: ServeReport, title: str, time_of: Callable[[Answer], float | None]
) -> None:
    for i, server in enumerate(report.servers):
        complete = [answer for answer in server.answers if answer.error is None]
        times = sorted(1e3 * t for t in map(time_of, complete) if t is not None)
        if times:
            shares = np.arange(1, len(times) + 1) / len(times)
            colour = _COLOURS[i % len(_COLOURS)]
            axis.step(times, shares, where="post", color=colour, label=server.name)
    axis.set_xlim(left=0)
    axis.set_ylim(0, 1)
    axis.set_xlabel("ms")
    axis.set_ylabel("share of the answers")
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_categories(axis: Any, report: ServeReport) -> None:
    names = list(report.servers[0].categories)
    height = 0.8 / len(report.servers)
    for i, server in enumerate(report.servers):
        found = [server.categories[name].tpot for name in names]
        bars = axis.barh(
            np.arange(len(names)) + i * height,
            [0.0 if times is None else times.mean for times in found],
            height=height,
            color=_COLOURS[i % len(_COLOURS)],
        )
        axis.bar_label(bars, fmt="%.3g", padding=3, fontsize=7)
    axis.set_yticks(np.arange(len(names)) + (len(report.servers) - 1) * height / 2, names)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.tick_params(labelsize=7)
    axis.set_xlabel("ms")
    axis.set_title("mean time per output token, by category", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
