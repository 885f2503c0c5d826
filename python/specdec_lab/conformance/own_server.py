"""A server of this package as a process, for a model that nobody serves yet."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

_URL = re.compile(r" at (http\S+)")


@contextlib.contextmanager
def served(model: str, arguments: Sequence[str]) -> Iterator[str]:
    """The URL of `specdec-native serve MODEL ARGUMENTS` at a free port; ends with the context.

    Raises RuntimeError with the last line it printed where it does not start.
    """
    command = [sys.executable, "-m", "specdec_native", "serve", model, *arguments]
    command += ["--host", "127.0.0.1", "--port", "0"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            found = _URL.search(process.stdout.readline())
            if found is None:
                process.wait()
                errors.seek(0)
                lines = errors.read().strip().splitlines() or ["it printed nothing"]
                raise RuntimeError(f"the server of {model} did not start: {lines[-1]}")
            yield found[1]
        finally:
            process.terminate()
