"""Writes the table of docs/methods.md: measured speed-ups by method of speculation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Results of bench.e2e.compare, and the model that was measured.
RESULTS = {
    "bench/results/cpu/zen5/smollm2-bf16-batch1.json": "SmolLM2-135M",
    "bench/results/cpu/zen5/qwen-pair-bf16.json": "Qwen2.5-Coder-1.5B",
    "bench/results/cpu/zen3/smollm2-heads-chat.json": "SmolLM2-135M",
}
_NAMES = {
    "draft": "`draft_model` (the 0.5B)",
    "suffix+draft": "`suffix`, else `draft_model`",
    "suffix+eagle3": "`suffix`, else `eagle3`",
}
_BETWEEN = re.compile(r"(<!-- measured:.*?-->\n).*?(<!-- end of measured -->)", re.S)


def write_methods(text: str) -> str:
    """docs/methods.md with the rows of RESULTS between the marks."""
    table = "\n".join(
        [
            "| model | prompts | method | tokens/s | over plain | least | tokens a step | source |",
            "|---|---|---|---|---|---|---|---|",
            *(line for file, model in RESULTS.items() for line in _lines(file, model)),
        ]
    )
    text, count = _BETWEEN.subn(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", text)
    if count != 1:
        raise ValueError("docs/methods.md has no place for the table")
    return text


def _lines(file: str, model: str) -> list[str]:
    rows: list[dict[str, Any]] = [
        row
        for row in json.loads((ROOT / file).read_text())["rows"]
        if row["contestant"]["peer"] == "specdec"
    ]
    speculated = {row["workload"] for row in rows if row["contestant"]["speculation"] != "plain"}
    return [_line(row, file, model) for row in rows if row["workload"] in speculated]


def _line(row: dict[str, Any], file: str, model: str) -> str:
    if not row["same_as_plain"]:
        raise ValueError(f"{file}: an answer differs from the plain one")
    method = row["contestant"]["speculation"]
    cells = [
        model,
        row["workload"],
        method if method == "plain" else _NAMES.get(method, f"`{method}`"),
        f"{row['tokens_per_s']:.1f}",
        f"{row['times_plain']:.2f}",
        f"{row['worst_times_plain']:.2f}",
        f"{row['tokens_per_step'] or 1:.2f}",
        f"`{file.removeprefix('bench/results/')}`",
    ]
    return "| " + " | ".join(cells) + " |"
