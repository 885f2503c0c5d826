"""A server whose engine has lost a rank says so, ends its streams, and leaves no process."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rank_models import CONFIG, processes_of, write
from server_process import serve
from waiting import PATIENCE, wait_until

TIMEOUT = 2.0  # distributed_timeout_seconds


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ranks") / "target", CONFIG)


@contextlib.contextmanager
def server(model: Path) -> Iterator[Any]:
    size = ["--tensor-parallel-size", 2, "--distributed-executor-backend", "mp"]
    tiny = ["--load-format", "dummy", "--skip-tokenizer-init", "--num-threads", 1]
    with serve(model, *tiny, *size, "--distributed-timeout-seconds", TIMEOUT) as process:
        yield process


def test_a_servers_health_tells_of_a_rank_that_is_gone(model: Path) -> None:
    with server(model) as process, process.client() as client:
        assert client.get("/health").status_code == 200
        os.kill(processes_of(process.process.pid)[1], signal.SIGKILL)
        wait_until(lambda: bool(client.get("/health").status_code == 503))
        assert process.process.wait(PATIENCE) == 1
        assert processes_of(process.process.pid) == {}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_servers_streams_end_with_a_lost_rank(model: Path, number: int) -> None:
    body = {"prompt": [5, 6], "max_tokens": 480, "ignore_eos": True, "stream": True}
    with server(model) as process, process.client() as client:
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            next(lines)
            os.kill(processes_of(process.process.pid)[1], number)
            rest = list(lines)
        assert '"error"' in rest[-1] or '"error"' in rest[-2], rest[-2:]
        with contextlib.suppress(ProcessLookupError):
            process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(PATIENCE) == 1
        assert processes_of(process.process.pid) == {}
