"""`specdec-native serve` as a process."""

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping

import httpx


@dataclasses.dataclass
class Process:
    """A server's process, and where it says that it serves."""

    process: subprocess.Popen[str]
    first_line: str
    url: str

    def client(self, **options: object) -> httpx.Client:
        """A client of the server."""
        return httpx.Client(base_url=self.url, timeout=60, **options)  # type: ignore[arg-type]


@contextlib.contextmanager
def serve(*arguments: object, environment: Mapping[str, str] | None = None) -> Iterator[Process]:
    """The command with these arguments, at a free port of 127.0.0.1 unless they say another."""
    command = [sys.executable, "-m", "specdec_native", "serve", *map(str, arguments)]
    if "--host" not in command and "--uds" not in command:
        command += ["--host", "127.0.0.1"]
    if "--port" not in command and "--uds" not in command:
        command += ["--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            found = re.search(r" at (\S+)", line)
            assert found is not None, f"{line}{process.stderr.read()}"
            yield Process(process, line, found[1])
        finally:
            process.kill()
