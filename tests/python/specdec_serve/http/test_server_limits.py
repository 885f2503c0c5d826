"""What a server does not let in: keys, sizes, times, full queues; and what it says then."""

import concurrent.futures
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from paced_engine import LONG, Pace, paced_engine
from server_life import living
from server_world import World, serving
from specdec_native import Engine
from specdec_serve.http import connections
from specdec_serve.http.middleware import import_middleware
from test_server_openapi import BODIES
from tiny_text_model import TEXT_TOKEN_IDS
from waiting import wait_until

BODY: dict[str, Any] = {"prompt": "abc", "max_tokens": 4, "ignore_eos": True}
MAX_BYTES = 4096


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    options: dict[str, Any] = {
        "api_keys": ("first", "second"),
        "allowed_origins": ("https://page",),
        "request_id_headers": True,
        "track_load": True,
        "max_body_bytes": MAX_BYTES,
        "middleware": ("test_server_limits.Outermost", "test_server_limits.add_header"),
    }
    with serving(engine, **options) as world:
        world.client.headers["authorization"] = "Bearer second"
        yield world


class Outermost:
    """A middleware as a user would write it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["outermost"] = "seen"
        await self.app(scope, receive, send)


async def add_header(request: Any, call_next: Any) -> Any:
    response = await call_next(request)
    response.headers["x-added"] = request.state.outermost
    return response


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == status
    assert isinstance(error["message"], str) and error["message"]
    return error


# -- keys


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer third", "Bearer firstsecond", "Basic first", "first"],
)
def test_a_request_without_a_key_is_unauthorized(world: World, authorization: str | None) -> None:
    with httpx.Client(base_url=world.url) as client:
        headers = {} if authorization is None else {"authorization": authorization}
        for path in ("/v1/models", "/v1/completions", "/v1/nowhere", "/v2/x", "/inference/x"):
            error = error_of(client.get(path, headers=headers), 401)
            assert error["type"] == "Unauthorized" and "second" not in error["message"]
        assert client.post("/v1/completions", json=BODY, headers=headers).status_code == 401


@pytest.mark.parametrize("authorization", ["Bearer first", "Bearer second", "bearer first"])
def test_every_key_opens(world: World, authorization: str) -> None:
    answer = httpx.get(f"{world.url}/v1/models", headers={"authorization": authorization})
    assert answer.status_code == 200


def test_health_and_versions_need_no_key(world: World) -> None:
    with httpx.Client(base_url=world.url) as client:
        for path in ("/health", "/ping", "/version", "/load"):
            assert client.get(path).status_code == 200, path


@pytest.mark.parametrize("root_path", ["", "/llm", "/a/b", "/v", "/v1"])
def test_keys_behind_a_proxys_path(engine: Engine, root_path: str) -> None:
    """A proxy may or may not leave its path before those of the API."""
    with (
        living(engine, {}, api_keys=("key",), root_path=root_path) as life,
        httpx.Client(base_url=life.url) as client,
    ):
        for path in ("/v1/models", f"{root_path}/v1/models"):
            assert client.get(path).status_code == 401, path
            if root_path == "/v1" and path == "/v1/models":
                continue  # is /models behind that proxy, of which there is none
            good = client.get(path, headers={"authorization": "Bearer key"})
            assert good.status_code == 200, path
        for path in ("//v1/models", f"{root_path}v1/models", f"{root_path}//v1/models"):
            assert client.get(path).status_code in (401, 404), path


# -- paths and methods


def test_unknown_paths_and_wrong_methods_have_the_shape_of_errors(world: World) -> None:
    assert error_of(world.client.get("/v1/nowhere"), 404)["type"] == "NotFoundError"
    assert error_of(world.client.get("/nowhere"), 404)["type"] == "NotFoundError"
    response = world.client.get("/v1/completions")
    assert error_of(response, 405)["type"] == "MethodNotAllowedError"
    assert response.headers["allow"] == "POST"
    assert error_of(world.client.delete("/v1/models"), 405)


@pytest.mark.parametrize(
    "path", ["/health", "/ping", "/version", "/v1/models", "/metrics", "/", "/openapi.json"]
)
def test_head_is_get_without_a_body(world: World, path: str) -> None:
    head, get = world.client.head(path), world.client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"] if get.content else True
    assert world.client.head("/v1/completions").status_code == 405
    assert world.client.head("/v1/models/none").status_code == 404


def test_the_description_of_the_api_can_be_left_out(world: World, engine: Engine) -> None:
    paths = world.client.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/health"} <= set(paths)
    with serving(engine, openapi=False) as quiet:
        assert quiet.client.get("/openapi.json").status_code == 404
        error_of(quiet.client.get("/load"), 404)


# -- bodies


def padded(num_bytes: int) -> bytes:
    body = b'{"prompt": "abc", "max_tokens": 1, "user": "%s"}'
    return body % (b"x" * (num_bytes - len(body) + 2))


def pieces(body: bytes) -> Iterator[bytes]:
    for i in range(0, len(body), 1000):
        yield body[i : i + 1000]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_be_as_long_as_allowed(world: World, chunked: bool) -> None:
    for num_bytes, status in ((MAX_BYTES, 200), (MAX_BYTES + 1, 413), (MAX_BYTES * 500, 413)):
        body = padded(num_bytes)
        assert len(body) == num_bytes
        response = world.client.post(
            "/v1/completions",
            content=pieces(body) if chunked else body,
            headers={"content-type": "application/json"},
        )
        assert response.status_code == status, response.text
        if status == 413:
            assert "max-body-bytes" in error_of(response, 413)["message"]
            assert response.headers["connection"] == "close"


def test_a_field_of_the_wrong_kind_is_named_once(world: World) -> None:
    for field, value, message in (
        ("stop", 5, "stop: Input should be a valid string, or a valid list"),
        ("temperature", "hot", "temperature: Input should be a valid number"),
        ("prompt", {"a": 1}, "prompt: "),
    ):
        response = world.client.post("/v1/completions", json={**BODY, field: value})
        error = error_of(response, 400)
        assert error["message"].startswith(message) and error["param"] == field
    text = b'{"prompt": "abc", max_tokens: 4}'
    response = world.client.post(
        "/v1/completions", content=text, headers={"content-type": "application/json"}
    )
    error = error_of(response, 400)
    assert error["param"] == "body" and f"character {text.index(b'max')}" in error["message"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("text", ["not json{{{", '"text"', '["a"]', "42", "null", "true", ""])
def test_bodies_are_objects(world: World, path: str, text: str) -> None:
    headers = {"content-type": "application/json"}
    response = world.client.post(path, content=text, headers=headers)
    assert error_of(response, 400)["param"] == "body"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_bodies_are_json(world: World, kind: str) -> None:
    headers = {"content-type": kind}
    response = world.client.post("/v1/completions", content=padded(100), headers=headers)
    assert "Content-Type" in error_of(response, 400)["message"]


def raw(world: World, text: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", world.port), timeout=20)
    connection.sendall(text)
    return connection


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    connection.close()
    return data


HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer first\r\n"
    b"content-type: application/json\r\ncontent-length: 100\r\n\r\n"
)


def answer_to_drops(connection: socket.socket, drop: bytes, count: int, pause: float) -> bytes:
    """Sends one drop after the other until an answer begins; that, or nothing after so many."""
    connection.settimeout(pause)
    for _ in range(count):
        try:
            connection.sendall(drop)
            return connection.recv(65536)
        except TimeoutError:
            continue
    return b""


def test_a_body_that_does_not_come_ends_in_408(engine: Engine) -> None:
    with serving(engine, max_body_seconds=0.3) as world:
        answer = read_all(raw(world, HEAD + b'{"prompt"'))
        assert answer.startswith(b"HTTP/1.1 408 ") and b'"code": 408' in answer
        with raw(world, HEAD) as dripping:  # a byte at a time is too slow, too
            assert answer_to_drops(dripping, b" ", 90, 0.05).startswith(b"HTTP/1.1 408 ")
        assert world.client.get("/health").status_code == 200


@pytest.mark.parametrize("start", [b"", b"POST /v1/completions HTTP/1.1\r\nhost: "])
def test_headers_that_do_not_come_end_in_408(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(connections.HttpProtocol, "header_seconds", 2.0)
    with living(engine, {}) as life:
        port = int(life.url.rpartition(":")[2])
        if start:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
                connection.sendall(start)
                assert read_all(connection).startswith(b"HTTP/1.1 408 ")
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(start)
            assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_headers_that_are_too_large_or_too_many(engine: Engine) -> None:
    with (
        living(engine, {"max_header_bytes": 5000, "max_headers": 20}) as life,
        httpx.Client(base_url=life.url) as client,
    ):
        assert client.get("/health", headers={"x": "y" * 4000}).status_code == 200
        port = int(life.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nx: " + b"y" * 6000)
            assert read_all(connection).startswith(b"HTTP/1.1 431 ")
        many = {f"x-{i}": "y" for i in range(30)}
        assert client.get("/health", headers=many).status_code == 400
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000,
        b"GET /health HTTP/1.1\r\nhost: x" + b"\r\nx: " * 200 + b"y" * 70_000,
        b"GET /health?" + b"y" * 70_000 + b" HTTP/1.1\r\nhost: x",
        b"GET /health HTTP/1.1\r\nhost: x" + (b"\r\nx: " + b"y" * 1000) * 70,
    ],
    ids=["one", "the last", "address", "together"],
)
def test_headers_are_too_large_however_they_come(engine: Engine, head: bytes) -> None:
    """Also in one read; a request after a good one, too."""
    good = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    with living(engine, {}) as life:
        port = int(life.url.rpartition(":")[2])
        for before, answers in ((b"", 0), (good, 1)):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(before)
                if before:
                    assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
                connection.sendall(head + b"\r\n\r\n")
                assert read_all(connection).startswith(b"HTTP/1.1 431 "), answers
        long = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: " + b"y" * 60_000
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(long + b"\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 200 ")


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED + b"0\r\nx: " + b"y" * 6000,  # a trailer
        CHUNKED + b"2;x=" + b"y" * 6000,  # an extension of a chunk
        CHUNKED + b"2\r\n{}\r\n2;x=" + b"y" * 6000,
    ],
    ids=["trailer", "extension", "second extension"],
)
def test_what_comes_with_a_body_that_is_too_large(engine: Engine, sent: bytes) -> None:
    with living(engine, {"max_header_bytes": 5000}) as life:
        port = int(life.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(sent)
            # What comes with the headers is not counted.
            assert answer_to_drops(connection, b"y" * 6000, 3, 5.0).startswith(b"HTTP/1.1 431 ")
        assert httpx.get(f"{life.url}/health").status_code == 200


def test_bodies_are_no_headers(engine: Engine) -> None:
    """However many chunks a body has."""
    with living(engine, {"max_header_bytes": 5000}) as life:
        content = padded(60000)
        for sent in (content, pieces(content)):
            answer = httpx.post(
                f"{life.url}/v1/completions",
                content=sent,
                headers={"content-type": "application/json"},
            )
            assert answer.status_code == 200, answer.text


# -- ids, browsers, what users put around


def test_request_ids_are_echoed_or_made(world: World) -> None:
    given = world.client.post("/v1/completions", json=BODY, headers={"x-request-id": "abc-7"})
    assert given.headers["x-request-id"] == "abc-7" and given.json()["id"] == "cmpl-abc-7"
    made = [world.client.post("/v1/completions", json=BODY) for _ in range(2)]
    ids = {response.headers["x-request-id"] for response in made}
    assert len(ids) == 2
    assert {response.json()["id"] for response in made} == {f"cmpl-{each}" for each in ids}
    for path, prefix in (("completions", "cmpl-"), ("chat/completions", "chatcmpl-")):
        body = {**BODY, "messages": [{"role": "user", "content": "a"}], "request_id": "mine"}
        of_body = world.client.post(f"/v1/{path}", json=body)
        assert of_body.json()["id"] == f"{prefix}mine"
        assert of_body.headers["x-request-id"] == "mine"
    both = world.client.post("/v1/completions", json=body, headers={"x-request-id": "abc"})
    assert (both.headers["x-request-id"], both.json()["id"]) == ("abc", "cmpl-abc")
    for unsafe in ("a\r\nb: c", "\u00e9", " "):
        answer = world.client.post("/v1/completions", json={**BODY, "request_id": unsafe})
        assert answer.json()["id"] == f"cmpl-{unsafe}"
        assert len(answer.headers["x-request-id"]) == 32
    odd = world.client.get("/health", headers={"x-request-id": "y" * 1000})
    assert len(odd.headers["x-request-id"]) < 100
    assert world.client.get("/nowhere").headers["x-request-id"]


def test_pages_of_allowed_origins_may_ask(world: World) -> None:
    asked = {"access-control-request-method": "POST", "origin": "https://page"}
    with httpx.Client(base_url=world.url) as client:  # a browser sends no key with this
        answer = client.options("/v1/completions", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://page"
        other = client.options("/v1/completions", headers={**asked, "origin": "https://other"})
        assert other.status_code == 400
        refused = client.get("/v1/models", headers={"origin": "https://page"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://page"


def test_without_flags_no_page_may_ask_and_answers_have_no_ids(engine: Engine) -> None:
    asked = {"access-control-request-method": "POST", "origin": "https://page"}
    with serving(engine) as plain:
        answer = plain.client.get("/v1/models", headers=asked)
        preflight = plain.client.options("/v1/completions", headers=asked)
    assert (answer.status_code, preflight.is_success) == (200, False)
    for response in (answer, preflight):
        assert "access-control-allow-origin" not in response.headers
        assert "x-request-id" not in response.headers


def test_middleware_of_the_user_runs(world: World) -> None:
    assert world.client.get("/health").headers["x-added"] == "seen"


@pytest.mark.parametrize("path", ["nowhere.Name", "json.nothing", "name", "json.dumps", "", "a."])
def test_middleware_that_is_none_is_named(path: str) -> None:
    with pytest.raises(ValueError, match="middleware"):
        import_middleware(path)


# -- the queue


@pytest.fixture(scope="module")
def pace() -> Pace:
    return Pace()


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
    world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch, case: str
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


# -- logs


def test_nothing_of_a_request_is_logged_unless_asked(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "my secret 1234567"
    with serving(engine) as world:
        world.ask("/v1/completions", **{**BODY, "prompt": secret})
        world.error("/v1/completions", 400, **{**BODY, "prompt": secret, "n": 0})
    assert "secret" not in caplog.text
    with serving(engine, log_requests=True, max_log_len=9) as world:
        world.ask("/v1/completions", **{**BODY, "prompt": secret})
    assert "my secret" in caplog.text and "1234567" not in caplog.text
    assert "max_tokens=4" in caplog.text
