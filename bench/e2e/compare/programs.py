"""Programs that a peer runs beside itself: converters, a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def run_program(command: Sequence[str]) -> None:
    """Runs a program; what it prints goes to the worker's log.

    Raises RuntimeError with the last line it printed where it fails.
    """
    run = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(run.stdout, file=sys.stderr, flush=True)
    if run.returncode != 0:
        name = " ".join(Path(word).name for word in command[:2])
        raise RuntimeError(f"{name}: exit status {run.returncode}: {last_line(run.stdout)}")


def last_line(text: str) -> str:
    """The last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def last_line_of(log: Path) -> str:
    """The last line of a log that is not empty."""
    return last_line(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else ""
