"""Prompts for measurements: each is a user's turn with the category of its task."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class PromptsError(ValueError):
    """The prompts cannot be used."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A user's turn and what kind of task it is."""

    category: str
    text: str


PROMPTS = (
    Prompt("chat", "Why is the sky blue? Explain it to a ten-year-old in a few sentences."),
    Prompt("code", "Write a Python function that returns the n-th Fibonacci number."),
    Prompt(
        "edit",
        "Rename the variable `x` to `total` in this function. Answer with the code only.\n\n"
        "```python\n"
        "def mean(values):\n"
        "    x = 0.0\n"
        "    for value in values:\n"
        "        x += value\n"
        "    if not values:\n"
        '        raise ValueError("mean of nothing")\n'
        "    return x / len(values)\n"
        "```",
    ),
    Prompt("chat", "Suggest three names for a small bakery and say what each one evokes."),
    Prompt("code", "Write a SQL query that counts the orders of each customer in 2024."),
    Prompt("chat", "What should I look at when I buy a used bicycle?"),
    Prompt("code", "Write a C function that reverses a string in place."),
    Prompt("chat", "Write a short poem about rain on a tin roof."),
)
"""Default prompts, a few of each category."""


def read_prompts(files: Iterable[Path]) -> list[Prompt]:
    """The prompts of JSON-lines files.

    A line is a string or an object. An object's text is its "prompt", or the first user's text in
    "turns" or "messages". Its category is "category", else the name of the file.

    Raises PromptsError that names the file and the line.
    """
    prompts: list[Prompt] = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise PromptsError(f"{file}: cannot be read ({error})") from error
        found = [
            _prompt_of(line, file.stem, f"{file}, line {number}")
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
        if not found:
            raise PromptsError(f"{file}: holds no prompts; give a file with one JSON object a line")
        prompts += found
    return prompts


def select(
    prompts: Sequence[Prompt], categories: Sequence[str] = (), limit: int | None = None
) -> dict[str, list[Prompt]]:
    """The prompts by category, in the order in which categories are first met.

    categories: the categories to keep; empty for all.
    limit: how many prompts of each category to keep, the first ones.

    Raises PromptsError for a category that no prompt has.
    """
    grouped: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        grouped.setdefault(prompt.category, []).append(prompt)
    unknown = [name for name in categories if name not in grouped]
    if unknown:
        raise PromptsError(
            f"no prompt has the category {', '.join(map(repr, unknown))}; there are "
            f"{', '.join(grouped)}"
        )
    return {
        name: found[:limit]
        for name, found in grouped.items()
        if not categories or name in categories
    }


def _prompt_of(line: str, category: str, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptsError(f"{where}: is not valid JSON ({error})") from error
    if isinstance(entry, dict) and isinstance(entry.get("category"), str):
        category = entry["category"]
    text = _text_of(entry)
    if text is None or not text.strip():
        raise PromptsError(
            f'{where}: holds no text; it needs a string, or an object with "prompt", "turns" or '
            '"messages"'
        )
    return Prompt(category, text)


def _text_of(entry: Any) -> str | None:
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        return None
    candidates = [entry.get("prompt")]
    if isinstance(entry.get("turns"), list):
        candidates += entry["turns"][:1]
    if isinstance(entry.get("messages"), list):
        turns = [turn for turn in entry["messages"] if isinstance(turn, dict)]
        candidates += [turn.get("content") for turn in turns if turn.get("role") == "user"][:1]
    return next((text for text in candidates if isinstance(text, str)), None)
