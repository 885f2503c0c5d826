"""Runs the command line as a user does, in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def run(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdec_native", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
