"""What fails behind the API: an error of one request is its own, one of the engine everybody's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from paced_engine import Pace, paced_engine
from server_world import World, serving
from specdec_native import Engine
from specdec_native.errors import EngineFailed
from specdec_native.requests.request import Request
from test_server_robust import ENDLESS, SHORT, check_nothing_is_left, num_running
from tiny_text_model import END
from waiting import wait_until

BAD = {**SHORT, "prompt": "!bc"}


class FailsLater(Pace):
    """A drafter that raises for prompts beginning with "!", once they have ten tokens."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad = bad

    def propose(self, tokens: list[int], max_tokens: int) -> list[int]:
        if tokens[0] == self.bad and len(tokens) > 10:
            raise KeyError("nothing to propose")
        return super().propose(tokens, max_tokens)


@pytest.fixture
def pace() -> FailsLater:
    return FailsLater(END + 1 + ord("!") - ord(" "))


@pytest.fixture
def engine(model: Path, pace: FailsLater) -> Iterator[Engine]:
    with paced_engine(model, pace) as engine:
        yield engine


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    with serving(engine) as world:
        yield world


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["text"]
    return text


def test_an_error_of_a_request_is_its_own(world: World, caplog: pytest.LogCaptureFixture) -> None:
    expected = text_of(world.ask("/v1/completions", **SHORT))
    error = world.error("/v1/completions", 500, **BAD)
    assert error["type"] == "InternalServerError" and "propose" not in error["message"]
    assert "nothing to propose" in caplog.text
    chat = {"messages": [{"role": "!", "content": "a"}], "max_tokens": 20}
    # The chat template writes the role first.
    assert world.error("/v1/chat/completions", 500, **chat)["message"]
    assert world.error("/v1/completions", 500, **{**BAD, "prompt": ["abc", "!bc"]})
    assert text_of(world.ask("/v1/completions", **SHORT)) == expected
    assert world.client.get("/health").status_code == 200
    check_nothing_is_left(world)


def test_an_error_ends_a_stream_with_an_event(world: World, pace: FailsLater) -> None:
    pace.gate.clear()
    with (
        httpx.Client(base_url=world.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json={**SHORT, "stream": True}) as good,
        client.stream("POST", "/v1/completions", json={**BAD, "stream": True}) as bad,
    ):
        wait_until(lambda: world.service.num_open == 2)
        pace.gate.set()
        events, good_events = (
            [line[6:] for line in stream.iter_lines() if line] for stream in (bad, good)
        )
    assert events[-1] == good_events[-1] == "[DONE]"
    error = json.loads(events[-2])["error"]
    assert error["code"] == 500 and "propose" not in error["message"]
    assert all("choices" in json.loads(event) for event in events[:-2])
    text = "".join(json.loads(event)["choices"][0]["text"] for event in good_events[:-1])
    expected = text_of(world.ask("/v1/completions", **SHORT))
    assert text == expected
    check_nothing_is_left(world)


def test_a_failure_of_the_engine_ends_every_request(
    world: World, pace: FailsLater, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the core reports it: requests that ran, and all that come later, raise EngineFailed."""
    failures = []
    world.service.on_failure = lambda: failures.append(world.service.failure)
    pace.seconds = 0.02

    def fail(*_: Any) -> Any:
        raise EngineFailed("the device is gone")

    with (
        httpx.Client(base_url=world.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as stream,
    ):
        wait_until(lambda: num_running(world) == 1)
        monkeypatch.setattr(Request, "apply", fail)
        monkeypatch.setattr(world.engine._runner, "enter", fail)
        lines = [line[6:] for line in stream.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    assert json.loads(lines[-2])["error"]["code"] == 500
    for body in (SHORT, {**SHORT, "stream": True}):
        assert "engine has failed" in world.error("/v1/completions", 500, **body)["message"]
    assert len(failures) == 1 and isinstance(failures[0], EngineFailed)
    assert world.client.get("/health").status_code == 503
    assert world.client.get("/v1/models").status_code == 200


def test_an_engine_that_was_closed(
    world: World, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.close()
    world.error("/v1/completions", 500, **SHORT)
    assert "closed" in caplog.text
