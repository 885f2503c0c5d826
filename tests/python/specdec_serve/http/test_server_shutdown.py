"""How a server ends: it drains, or ends what runs, or what runs has failed."""

import concurrent.futures
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from command_line import run
from paced_engine import LONG, Pace, paced_engine
from server_life import Life, living
from server_process import serve
from specdec_native import Engine
from specdec_native.errors import EngineFailed
from specdec_native.requests.request import Request
from tiny_text_model import TEXT_TOKEN_IDS, is_idle
from waiting import wait_until

BODY: dict[str, Any] = {
    "prompt": "abc",
    "seed": 5,
    "max_tokens": 24,
    "ignore_eos": True,
    "allowed_token_ids": TEXT_TOKEN_IDS,
    "stream": True,
}
ENDLESS = {**BODY, "max_tokens": LONG - 8}


@pytest.fixture
def slow(pace: Pace) -> Iterator[Pace]:
    pace.seconds = 0.02
    yield pace
    pace.seconds = 0.0
    pace.gate.set()


@pytest.fixture(scope="module")
def engine(model: Path, pace: Pace) -> Engine:
    return paced_engine(model, pace, max_num_seqs=2)


class Stream:
    """A running stream; its first token was read."""

    def __init__(self, client: httpx.Client, **body: Any) -> None:
        self._context = client.stream("POST", "/v1/completions", json={**BODY, **body})
        self._lines = self._context.__enter__().iter_lines()
        self.events = [self._next()]

    def _next(self) -> str:
        return next(line for line in self._lines if line).removeprefix("data: ")

    def rest(self) -> list[dict[str, Any]]:
        """All events; the last must be [DONE]."""
        self.events += [line.removeprefix("data: ") for line in self._lines if line]
        self._context.__exit__(None, None, None)
        assert self.events[-1] == "[DONE]"
        return [json.loads(event) for event in self.events[:-1]]


def client_of(life: Life) -> httpx.Client:
    return httpx.Client(base_url=life.url, timeout=60)


def finish_reason(events: list[dict[str, Any]]) -> str:
    reason: str = events[-1]["choices"][0]["finish_reason"]
    return reason


def test_without_time_to_drain_all_streams_end_at_once(engine: Engine, slow: Pace) -> None:
    with living(engine, {}) as life, client_of(life) as client:
        streams = [Stream(client, max_tokens=LONG - 8) for _ in range(2)]
        slow.gate.clear()
        with httpx.Client(base_url=life.url, timeout=60) as waiting:  # no seat is free for it
            queued = waiting.stream("POST", "/v1/completions", json={**ENDLESS})
            with queued as response:
                life.server.end()
                slow.gate.set()
                lines = [line for line in response.iter_lines() if line]
        for stream in streams:
            events = stream.rest()
            assert finish_reason(events) == "abort"
            assert 0 < len(events) < LONG - 8
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "abort"
        assert life.ended()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{life.url}/health")
    wait_until(lambda: is_idle(engine))


@pytest.mark.parametrize("more", [{}, {"stream": False}, {"stream": False, "prompt_logprobs": 1}])
def test_an_echo_of_what_never_ran_ends_with_abort(
    engine: Engine, slow: Pace, more: dict[str, Any]
) -> None:
    body = {**BODY, "echo": True, "logprobs": 1, **more}
    with living(engine, {}) as life, client_of(life) as client:
        streams = [Stream(client, max_tokens=LONG - 8) for _ in range(2)]
        slow.gate.clear()
        with (
            concurrent.futures.ThreadPoolExecutor(1) as pool,
            httpx.Client(base_url=life.url, timeout=60) as waiting,
        ):
            answer = pool.submit(waiting.post, "/v1/completions", json=body)
            try:
                wait_until(lambda: life.service.num_open == 3)
                life.server.end()
            finally:
                slow.gate.set()
            text = answer.result().text
        for stream in streams:
            stream.rest()
    assert answer.result().status_code == 200
    if body["stream"]:
        *lines, done = [line for line in text.splitlines() if line]
        assert done == "data: [DONE]"
        text = lines[-1].removeprefix("data: ")
    assert json.loads(text)["choices"][0]["finish_reason"] == "abort"


def test_a_drain_lets_streams_end_and_nothing_begin(engine: Engine, slow: Pace) -> None:
    with living(engine, {"shutdown_timeout": 300}) as life, client_of(life) as client:
        stream = Stream(client)
        slow.gate.clear()
        assert client.get("/health").status_code == 200
        life.server.end()
        wait_until(lambda: life.service.is_draining)
        refused = client.post("/v1/completions", json=BODY)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        assert client.get("/health").status_code == 503
        assert client.get("/v1/models").status_code == 200
        slow.gate.set()
        events = stream.rest()
        assert finish_reason(events) == "length"
        assert len("".join(event["choices"][0]["text"] for event in events)) == 24
        assert life.ended()


def test_a_drain_that_takes_too_long_ends_what_is_left(engine: Engine, slow: Pace) -> None:
    with living(engine, {"shutdown_timeout": 0.2}) as life, client_of(life) as client:
        stream = Stream(client, max_tokens=LONG - 8)
        life.server.end()
        assert finish_reason(stream.rest()) == "abort"
        assert life.ended()


def test_the_second_signal_waits_for_nobody(engine: Engine, slow: Pace) -> None:
    with living(engine, {"shutdown_timeout": 300}) as life, client_of(life) as client:
        stream = Stream(client, max_tokens=LONG - 8)
        life.server.end()
        wait_until(lambda: life.service.is_draining)
        life.server.end()
        with pytest.raises((httpx.TransportError, AssertionError)):
            stream.rest()
        assert life.ended()
    wait_until(lambda: is_idle(engine))


def test_a_server_ends_when_its_engine_has_failed(
    model: Path, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise EngineFailed("the device is gone")

    engine = paced_engine(model, pace)
    pace.seconds = 0.02
    with living(engine, {"shutdown_timeout": 300}) as life, client_of(life) as client:
        streams = [Stream(client, max_tokens=LONG - 8) for _ in range(3)]
        monkeypatch.setattr(Request, "apply", fail)
        for stream in streams:
            assert stream.rest()[-1]["error"]["code"] == 500
        assert life.ended()
        assert isinstance(life.service.failure, EngineFailed)
    pace.seconds = 0.0


def test_sigterm_ends_the_command_with_its_streams(model: Path) -> None:
    """An `abort` and [DONE] for the stream, exit code 0 for who started the command."""
    with serve(model, "--shutdown-timeout", 0, "--max-model-len", "96") as process:
        with httpx.Client(base_url=process.url, timeout=60) as client:
            stream = Stream(client, n=8, max_tokens=90)
            os.kill(process.process.pid, signal.SIGTERM)
            events = stream.rest()
        reasons = {choice["finish_reason"] for event in events for choice in event["choices"]}
        assert reasons <= {None, "abort", "length"} and reasons & {"abort", "length"}
        assert process.process.wait(60) == 0


def test_an_address_that_is_taken_is_an_error_before_the_model_is_loaded(
    engine: Engine, model: Path
) -> None:
    with living(engine, {}) as life:
        port = life.url.rpartition(":")[2]
        command = ("serve", str(model.parent / "nowhere"), "--host", "127.0.0.1", "--port", port)
        result = run(*command)
    assert result.returncode == 1
    assert result.stderr.startswith("error: cannot listen") and port in result.stderr
