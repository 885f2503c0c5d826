"""The server's refusals by key, path, size and time, and their errors."""

import logging
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from server_life import living
from server_world import BODY, World, error_of, serving
from specdec_native import Engine
from specdec_serve.http import connections
from specdec_serve.http.middleware import import_middleware
from test_server_openapi import BODIES

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


# -- keys


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer third", "Bearer firstsecond", "Basic first", "first"],
)
def test_a_request_without_a_key_is_unauthorized(world: World, authorization: str | None) -> None:
    with httpx.Client(base_url=world.url) as client:
        headers = {} if authorization is None else {"authorization": authorization}
        for path in (
            *("/v1/models", "/v1/completions", "/v1/nowhere", "/v2/x", "/inference/x"),
            *("/infill", "/server_info", "/reset_prefix_cache"),
        ):
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
        assert client.post(f"{root_path}/reset_prefix_cache").status_code == 401
        for path in ("/v1/models", f"{root_path}/v1/models"):
            assert client.get(path).status_code == 401, path
            if root_path == "/v1" and path == "/v1/models":
                continue  # is /models behind that proxy, which does not exist
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
    if path.startswith("/v1/messages"):  # Anthropic's errors have no member for the field
        assert (response.status_code, response.json()["type"]) == (400, "error")
        assert "body" in response.json()["error"]["message"]
    else:
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
