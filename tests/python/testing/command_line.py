"""Runs the command line as a user does, in a process of its own; or reads one of the server's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import typer.main

from specdec_cli.main import app

_COMMANDS: Any = typer.main.get_command(app)


def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdec_native", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def serve_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that a command line of the server gives, by name."""
    context = _COMMANDS.commands["serve"].make_context("serve", list(arguments))
    return {name: value for name, value in context.params.items() if value not in (None, ())}
