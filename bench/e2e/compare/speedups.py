"""The README's picture, from results of bench.e2e.compare: speed-ups measured on one machine.

python -m bench.e2e.compare.speedups FOLDER   writes FOLDER/speedups.svg (needs matplotlib)
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .report import read_json
from .results import OURS, PLAIN, Row, make_rows

_OURS = "#b2182b"
_PEERS = "#bdc9d3"


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar and the words at its two ends."""

    label: str
    ratio: float
    text: str


@dataclasses.dataclass(frozen=True)
class Cell:
    """Rows of one file, workload and batch at one precision."""

    label: str
    file: str
    workload: str
    batch: int = 1
    precision: str = "bf16"


SPECULATION = (
    Cell("Qwen2.5-Coder-1.5B, code", "qwen-pair-bf16", "code"),
    Cell("SmolLM2-135M, edit", "smollm2-bf16-batch1", "edit"),
    Cell("Qwen2.5-Coder-1.5B, chat", "qwen-pair-bf16", "chat"),
    Cell("SmolLM2-135M, chat", "smollm2-bf16-batch1", "chat"),
)
ENGINES = (
    Cell("int4, 1 request", "smollm2-int", "chat", precision="int4"),
    Cell("int8, 1 request", "smollm2-int", "chat", precision="int8"),
    Cell("bfloat16, 1 request", "smollm2-bf16-batch1", "chat"),
    Cell("bfloat16, 8 requests", "smollm2-bf16-batches", "chat", batch=8),
    Cell("bfloat16, 32 requests", "smollm2-bf16-batches", "chat", batch=32),
)
SPECULATION_TITLE = "Speculation over plain decoding, the same tokens"
ENGINES_TITLE = "SmolLM2-135M in three engines, all plain"
NAMES = {"llama.cpp": "llama.cpp", "openvino-genai": "OpenVINO GenAI"}
DRAFTERS = {
    "draft": "draft model",
    "ngram": "n-gram",
    "suffix": "suffix",
    "eagle3": "EAGLE-3 head",
    "medusa": "Medusa head",
}


def rows_of(cell: Cell, folder: Path) -> list[Row]:
    wanted = (cell.workload, cell.batch, cell.precision)
    rows = make_rows(read_json(folder / f"{cell.file}.json"))
    return [row for row in rows if (row.workload, row.batch, row.contestant.precision) == wanted]


def fastest(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.tokens_per_s)


def speculation_bar(cell: Cell, folder: Path) -> Bar:
    """This engine's fastest drafter over its own plain decoding."""
    rows = [row for row in rows_of(cell, folder) if row.contestant.peer == OURS]
    plain = next(row for row in rows if row.contestant.speculation == PLAIN)
    best = fastest(rows)
    drafter = DRAFTERS.get(best.contestant.speculation, best.contestant.speculation)
    ratio = best.tokens_per_s / plain.tokens_per_s
    text = f"{ratio:.2f} x  ({plain.tokens_per_s:.3g} to {best.tokens_per_s:.3g} tokens/s)"
    return Bar(f"{cell.label}\n{drafter}", ratio, text)


def engine_bars(cell: Cell, folder: Path) -> list[Bar]:
    """Plain decoding of every engine over the fastest of the others; this engine comes first."""
    plain = [row for row in rows_of(cell, folder) if row.contestant.speculation == PLAIN]
    peer = fastest([row for row in plain if row.contestant.peer != OURS])
    bars = []
    for row in plain:
        ratio = row.tokens_per_s / peer.tokens_per_s
        is_ours = row.contestant.peer == OURS
        label = cell.label if is_ours else NAMES[row.contestant.peer]
        text = f"{row.tokens_per_s:.0f} tokens/s"
        bars.append(Bar(label, ratio, f"{ratio:.2f} x  ({text})" if is_ours else text))
    return bars


def draw(folder: Path, file: Path) -> None:
    """Writes the picture; its format is that of the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "speedups"})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    _panel(left, SPECULATION_TITLE, [[speculation_bar(cell, folder)] for cell in SPECULATION])
    _panel(right, ENGINES_TITLE, [engine_bars(cell, folder) for cell in ENGINES])
    metadata = {"Date": None} if file.suffix == ".svg" else None
    figure.savefig(file, metadata=metadata, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, title: str, groups: Sequence[Sequence[Bar]]) -> None:
    """Bars from top to bottom; the first of a group is this engine's."""
    y = 0.0
    ticks, labels = [], []
    for group in groups:
        for index, bar in enumerate(group):
            axis.barh(y, bar.ratio, height=0.8, color=_PEERS if index else _OURS)
            axis.text(bar.ratio + 0.03, y, bar.text, va="center")
            ticks.append(y)
            labels.append(bar.label)
            y += 1.0
        y += 0.6
    axis.set_yticks(ticks, labels)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.7 * max(bar.ratio for group in groups for bar in group))
    axis.set_xticks([])
    axis.set_title(title, fontsize=10)
    axis.tick_params(length=0)
    axis.spines[["top", "right", "bottom"]].set_visible(False)


if __name__ == "__main__":
    results = Path(sys.argv[1])
    draw(results, results / "speedups.svg")
