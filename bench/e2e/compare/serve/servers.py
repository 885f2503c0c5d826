"""The servers that are compared: how each is started, and when it is ready."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..peers import vllm as vllm_peer

START_SECONDS = 600.0
MODEL = "m"
_MAX_MODEL_LEN = 2048


@dataclasses.dataclass
class Command:
    """How a server is started on a port."""

    arguments: list[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def specdec(model: Path, port: int, slots: int, num_threads: int) -> Command:
    return Command(
        [
            *(sys.executable, "-m", "specdec_native", "serve", str(model)),
            *("--served-model-name", MODEL, "--port", str(port)),
            *("--max-model-len", str(_MAX_MODEL_LEN), "--max-num-seqs", str(slots)),
            *("--num-threads", str(num_threads), "--no-enable-prefix-caching"),
            *("--disable-log-stats", "--disable-uvicorn-access-log"),
        ]
    )


def vllm(model: Path, port: int, slots: int, num_threads: int) -> Command:
    home = _home("vllm")
    return Command(
        [
            *(str(home / "bin/vllm"), "serve", str(model), "--served-model-name", MODEL),
            *("--port", str(port), "--max-model-len", str(_MAX_MODEL_LEN)),
            *("--max-num-seqs", str(slots), "--dtype", "bfloat16", "--no-enable-prefix-caching"),
            *("--disable-log-stats", "--disable-uvicorn-access-log"),
        ],
        vllm_peer.PEER.environment(home, num_threads),
    )


def llama_cpp(model: Path, port: int, slots: int, num_threads: int) -> Command:
    home = _home("llama.cpp")
    file = model.with_suffix(".gguf")
    if not file.is_file():
        # The converter knows tokenizers by what they make of a text; this one is cut.
        script = (
            f"import sys; sys.path.insert(0, {str(home)!r}); import convert_hf_to_gguf as c; "
            "from conversion.base import TextModel; "
            "TextModel.get_vocab_base_pre = lambda *_: 'smollm'; c.main()"
        )
        arguments = [str(model), "--outtype", "bf16", "--outfile", str(file)]
        subprocess.run([str(home / "venv/bin/python"), "-c", script, *arguments], check=True)
    threads = str(num_threads)
    return Command(
        [
            *(str(home / "build-auto/bin/llama-server"), "-m", str(file), "--port", str(port)),
            *("-t", threads, "-tb", threads, "-np", str(slots)),
            *("-c", str(slots * _MAX_MODEL_LEN), "--no-webui", "--cache-ram", "0"),
        ]
    )


SERVERS: dict[str, Callable[[Path, int, int, int], Command]] = {
    "specdec_native": specdec,
    "vllm": vllm,
    "llama.cpp": llama_cpp,
}


def _home(name: str) -> Path:
    base = Path(os.environ.get("SPECDEC_HOME", Path.home() / ".cache/specdec_native"))
    return base / "peers" / name


class Server:
    """A running server. Raises RuntimeError where it does not start."""

    def __init__(self, name: str, model: Path, slots: int, num_threads: int, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.name = name
        command = SERVERS[name](model, self.port, slots, num_threads)
        self.process = subprocess.Popen(
            command.arguments,
            env={**os.environ, **command.environment},
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"{name} did not start: {log}")
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request for a completion."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{self.name}: {answer}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
