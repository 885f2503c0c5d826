"""A program that serves HTTP at a free port of this machine."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .programs import last_line_of


class HttpServer:
    """A server that answers GET /health with 200."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        start_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it and waits until it is ready; what it prints is appended to `log`.

        `command` is without --port. Raises RuntimeError where it does not start.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.name = name
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                env={**os.environ, **(environment or {})},
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + start_seconds
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"{name} did not start: {last_line_of(log)} (see {log})")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def post(self, path: str, body: Mapping[str, Any], timeout: float | None = None) -> Any:
        """The JSON of an answer. Raises RuntimeError for one that is not 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{self.name}: {answer}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
