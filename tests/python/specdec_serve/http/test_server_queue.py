"""Requests that wait: full queues, texts that are long to tokenize, streams in chunks."""

import concurrent.futures
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from paced_engine import LONG, Pace, paced_engine
from server_world import BODY, error_of, serving
from specdec_native import Engine
from tiny_text_model import TEXT_TOKEN_IDS
from waiting import wait_until

# -- the queue


@pytest.fixture(scope="module")
def slow_engine(model: Path, pace: Pace) -> Engine:
    return paced_engine(model, pace, max_num_seqs=1)


@pytest.mark.parametrize(
    ("limit", "last"),
    [({"max_queued_requests": 2}, {}), ({"max_queued_tokens": 8}, {"prompt": "abc"})],
)
def test_a_full_queue_answers_503(
    slow_engine: Engine, pace: Pace, limit: dict[str, Any], last: dict[str, Any]
) -> None:
    body = {**BODY, "max_tokens": LONG - 8, "stream": True}
    with serving(slow_engine, track_load=True, **limit) as world:
        pace.seconds = 0.01
        with world.client.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)  # it has the only seat
            pace.gate.clear()
            with httpx.Client(base_url=world.url, timeout=60) as client:
                queued = [client.stream("POST", "/v1/completions", json=body) for _ in range(2)]
                for stream in queued:
                    assert stream.__enter__().status_code == 200
                refused = client.post("/v1/completions", json={**BODY, **last})
                error = error_of(refused, 503)
                assert "queue is full" in error["message"]
                assert int(refused.headers["retry-after"]) > 0
                assert client.get("/load").json() == {"server_load": 3}
                assert client.get("/v1/models").status_code == 200
                for stream in queued:
                    stream.__exit__(None, None, None)
                wait_until(lambda: client.get("/load").json() == {"server_load": 1})
                pace.gate.set()
                wait_until(lambda: slow_engine.load().num_waiting == 0)
                last_stream = client.stream("POST", "/v1/completions", json=body)
                assert last_stream.__enter__().status_code == 200  # there is room again
                last_stream.__exit__(None, None, None)
        pace.seconds = 0.0
        wait_until(lambda: world.client.get("/load").json() == {"server_load": 0})
        assert world.ask("/v1/completions", **BODY)


def test_what_is_longer_than_the_queue_runs_alone(engine: Engine) -> None:
    with serving(engine, max_queued_tokens=4) as world:
        assert world.ask("/v1/completions", **{**BODY, "prompt": "a" * 20})
    with serving(engine, max_queued_requests=0) as closed:
        messages = [{"role": "user", "content": "a"}]
        for stream in (False, True):  # which has not begun
            closed.error("/v1/completions", 503, **BODY, stream=stream)
            closed.error("/v1/chat/completions", 503, messages=messages, stream=stream)
            closed.error("/v1/responses", 503, input="a", stream=stream)


# -- long texts

SECONDS = 20.0  # what is waited for comes at once, what must not come not at all

LONG_TEXT = "a" * 100_000  # of tokens of 5 bytes at most, where 96 fit
TOKENIZING: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": LONG_TEXT},
    "/v1/completions?list": {"prompt": ["a", LONG_TEXT]},
    "/v1/completions?echo": {"prompt": LONG_TEXT, "echo": True},
    "/v1/completions?words": {"prompt": "a", "bad_words": ["b", LONG_TEXT]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG_TEXT}]},
    "/v1/responses": {"input": LONG_TEXT},
    "/tokenize": {"prompt": LONG_TEXT},
    "/tokenize?chat": {"messages": [{"role": "user", "content": LONG_TEXT}]},
}


class Tokenizing:
    """Watches the texts that an engine's tokenizer is given; those in `held` wait for a gate."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.lengths: list[int] = []
        self.num_held = 0
        self._tokenizer = engine.tokenizer
        self._encode_batch = engine.tokenizer.encode_batch
        patch.setattr(self._tokenizer, "encode_batch", self.encode_batch)
        patch.setattr(self._tokenizer, "encode", lambda *args: self.encode_batch([args[0]])[0])

    def encode_batch(self, texts: list[str], *args: Any) -> list[list[int]]:
        self.lengths += map(len, texts)
        if max(map(len, texts)) > 50_000:
            self.num_held += 1
            assert self.gate.wait(SECONDS)
        return self._encode_batch(texts, *args)


@pytest.mark.parametrize("case", TOKENIZING)
def test_what_can_never_fit_is_not_tokenized(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    tokenizing = Tokenizing(engine, monkeypatch)
    tokenizing.gate.set()
    with serving(engine) as plain:
        error = plain.error(case.partition("?")[0], **TOKENIZING[case])
        assert not any(length > 50_000 for length in tokenizing.lengths)
        field = "bad_words" if "words" in case else error["param"]
        assert error["param"] == field and field is not None
        for number in ("100", "20", "96"):  # characters, tokens, and how many fit
            assert number in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_is_cut_may_be_long(engine: Engine, path: str) -> None:
    messages = [{"role": "user", "content": LONG_TEXT}]
    asked = {"prompt": LONG_TEXT} if path == "/v1/completions" else {"messages": messages}
    with serving(engine) as plain:
        answer = plain.ask(path, **asked, truncate_prompt_tokens=7, max_tokens=2)
        assert answer["usage"]["prompt_tokens"] == 7


def test_a_short_text_does_not_wait_for_long_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one whose body is short, and whose template makes it long, hold it up."""
    tokenizing = Tokenizing(engine, monkeypatch)
    template = "{% for i in range(70000) %}a{% endfor %}"
    long = {"prompt": LONG_TEXT, "truncate_prompt_tokens": 7, "max_tokens": 2}
    grown = {**long, "messages": [{"role": "user", "content": "a"}], "chat_template": template}
    del grown["prompt"]
    with (
        serving(engine, request_chat_template=True) as world,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        calls = [("/v1/completions", long)] * 4 + [("/v1/chat/completions", grown)] * 4
        try:
            held = [pool.submit(httpx.post, world.url + p, json=b, timeout=60) for p, b in calls]
            wait_until(lambda: world.service._long_thread._work_queue.qsize() == 7)
            assert tokenizing.num_held == 1
            body = {"prompt": "a" * 5000, "truncate_prompt_tokens": 7, "max_tokens": 2}
            assert world.ask("/v1/completions", **body)["usage"]["prompt_tokens"] == 7
            assert not any(call.done() for call in held)
        finally:
            tokenizing.gate.set()
        for call in held:
            assert call.result().status_code == 200, call.result().text


# -- chunks


def test_a_stream_comes_in_chunks_of_so_many_tokens(slow_engine: Engine, pace: Pace) -> None:
    body = {**BODY, "seed": 5, "max_tokens": 18, "allowed_token_ids": TEXT_TOKEN_IDS}
    body["prompt"] = ["abc", "de"]
    with serving(slow_engine, stream_interval=5) as world:
        whole = [choice["text"] for choice in world.ask("/v1/completions", **body)["choices"]]
        pace.seconds = 0.01
        events = world.events("/v1/completions", **body)
        pace.seconds = 0.0
    for index in (0, 1):
        pieces = [e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == index]
        assert "".join(pieces) == whole[index]
        assert 2 <= len(pieces) <= 5 and all(len(piece) >= 5 for piece in pieces[1:-1])
