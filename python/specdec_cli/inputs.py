"""The command line's input: prompts from arguments, files and the keyboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from specdec_native.text.chat_template import Message


def read_prompts(arguments: list[str] | None, file: Path | None) -> list[str]:
    """The prompts of the arguments, of a file or of standard input."""
    if arguments and file is not None:
        raise typer.BadParameter("give prompts as arguments or in a file, not both")
    if file is not None:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip()]
        prompts = [
            _json_prompt(line, i, file) if file.suffix == ".jsonl" else line
            for i, line in enumerate(lines)
        ]
        if not prompts:
            raise ValueError(f"{file}: holds no prompts")
        return prompts
    if arguments:
        return arguments
    if sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, --file, or text on standard input")
    return [sys.stdin.read()]


def _json_prompt(line: str, index: int, file: Path) -> str:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{file}, line {index + 1}: not valid JSON ({error})") from error
    if isinstance(entry, dict):
        entry = entry.get("prompt", (entry.get("turns") or [None])[0])
    if not isinstance(entry, str):
        raise ValueError(f'{file}, line {index + 1}: needs a string, or an object with "prompt"')
    return entry


def conversation(text: str, system: str | None) -> list[Message]:
    """The system message, if any, and the user's first turn."""
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


def user_lines() -> Iterator[str]:
    """The lines that the user types, or the lines of a pipe."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            if sys.stdin.isatty():
                print()
            return
        if line:
            yield line
