"""One client with hundreds of completions does not hold up the others of a server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paced_engine import LONG, Pace, paced_engine
from server_world import World, serving
from tiny_text_model import TEXT_TOKEN_IDS, is_idle
from waiting import wait_until


@pytest.fixture(scope="module")
def world(model: Path, pace: Pace) -> Iterator[World]:
    with paced_engine(model, pace, max_num_seqs=16) as engine, serving(engine) as world:
        yield world


BODY: dict[str, Any] = {
    "max_tokens": LONG - 32,
    "ignore_eos": True,
    "allowed_token_ids": TEXT_TOKEN_IDS,
}
MESSAGES = [{"role": "user", "content": "abc"}]
GREEDY: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc", "n": 500},
    "/v1/completions?prompts": {"prompt": ["abc", "de"] * 250},
    "/v1/chat/completions": {"messages": MESSAGES, "n": 500},
}


@pytest.mark.parametrize("case", GREEDY)
@pytest.mark.parametrize("num_greedy", [1, 3])
def test_one_client_does_not_hold_the_others(
    world: World, pace: Pace, case: str, num_greedy: int
) -> None:
    """Who asks for one answer has it while nearly all of the greedy ones' are still to come."""
    body = {**BODY, **GREEDY[case], "stream": True}
    pace.seconds = 0.002
    path = case.partition("?")[0]
    streams = [world.client.stream("POST", path, json=body) for _ in range(num_greedy)]
    for stream in streams:
        assert stream.__enter__().status_code == 200
    for _ in range(3):
        answer = world.ask("/v1/completions", **{**BODY, "prompt": "xyz", "max_tokens": 3})
        assert answer["choices"][0]["finish_reason"] == "length"
    assert world.engine.stats().num_waiting > 480 * num_greedy
    pace.seconds = 0.0
    for stream in streams:
        stream.__exit__(None, None, None)
    wait_until(lambda: is_idle(world.engine) and world.service.num_open == 0)


def test_what_waits_for_its_turn_fills_the_queue(world: World, pace: Pace) -> None:
    with serving(world.engine, max_queued_requests=4) as limited:
        pace.gate.clear()
        try:
            body = {**BODY, "prompt": ["abc"] * 20, "stream": True}
            with limited.client.stream("POST", "/v1/completions", json=body) as stream:
                assert stream.status_code == 200
                limited.error("/v1/completions", 503, prompt="xyz")
        finally:
            pace.gate.set()


def test_a_server_may_allow_fewer_completions(world: World) -> None:
    with serving(world.engine, max_n_sequences=4) as limited:
        refused: list[tuple[str, dict[str, Any]]] = [
            ("/v1/completions", {"prompt": "abc", "n": 5}),
            ("/v1/completions", {"prompt": ["abc", "de", "f"], "n": 2}),
            ("/v1/chat/completions", {"messages": MESSAGES, "n": 5}),
        ]
        for path, body in refused:
            error = limited.error(path, **body, max_tokens=1)
            assert error["param"] == "n" and "--max-n-sequences" in error["message"]
        body = {"prompt": ["abc", "de"], "n": 2, "max_tokens": 1}
        assert len(limited.ask("/v1/completions", **body)["choices"]) == 4
