"""Clients that are slow, vanish or come by the thousand leave nothing behind and harm nobody."""

import asyncio
import contextlib
import json
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from asgi_caller import JSON_HEADERS, scope_of
from paced_engine import LONG, Pace, paced_engine
from server_world import MODEL, World, serving
from specdec_native import Engine
from specdec_serve.http.app import make_app
from specdec_serve.http.connections import HttpProtocol
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.service import Service
from tiny_text_model import TEXT_TOKEN_IDS, text_params
from waiting import wait_until

PATIENCE = 20.0  # seconds; what is waited for takes milliseconds, what must not happen far longer
MUCH_PATIENCE = 120.0
# Would run for a minute at the pace of `slow`.
ENDLESS: dict[str, Any] = {
    "prompt": "abc",
    "max_tokens": LONG - 8,
    "ignore_eos": True,
    "seed": 5,
    "allowed_token_ids": TEXT_TOKEN_IDS,
}
SHORT = {**ENDLESS, "max_tokens": 24}


@pytest.fixture(scope="module")
def engine(model: Path, pace: Pace) -> Engine:
    return paced_engine(model, pace)


@pytest.fixture(scope="module", autouse=True)
def soon() -> Iterator[None]:
    """Clients that send nothing more are soon looked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpProtocol, "half_closed_seconds", 0.2)
        yield


@pytest.fixture
def slow(pace: Pace) -> Iterator[None]:
    pace.seconds = 0.03
    yield
    pace.seconds = 0.0


@pytest.fixture(scope="module")
def expected(engine: Engine) -> str:
    return engine.generate("abc", text_params(), use_tqdm=False)[0].outputs[0].text


def check_nothing_is_left(world: World) -> None:
    """Soon nothing runs, and every block is free; those kept for their prefix are, too."""

    def is_free() -> bool:
        stats = world.engine.stats()
        free = stats.num_free_kv_blocks == stats.num_kv_blocks
        return free and stats.num_running == stats.num_waiting == world.service.num_open == 0

    wait_until(is_free)


def num_running(world: World) -> int:
    return world.engine.stats().num_running


def check_it_answers(world: World, expected: str) -> None:
    assert world.ask("/v1/completions", **SHORT)["choices"][0]["text"] == expected


def request_bytes(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def connect(world: World) -> socket.socket:
    return socket.create_connection(("127.0.0.1", world.port), timeout=PATIENCE)


def vanish(client: socket.socket, *, reset: bool) -> None:
    """Closes a connection; a reset tells the server at once, also while it only reads."""
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def read_all(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


# -- clients that leave

MANY = {"n": 3, "prompt": ["abc", "xyz"]}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("more", [{}, MANY], ids=["one", "many"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_as_its_tokens_are_made(
    world: World, stream: bool, more: dict[str, Any], reset: bool
) -> None:
    client = connect(world)
    client.sendall(request_bytes({**ENDLESS, **more, "stream": stream}))
    wait_until(lambda: num_running(world) > 0)
    if stream:
        assert b"data: " in client.recv(4096) + client.recv(4096)
    vanish(client, reset=reset)
    check_nothing_is_left(world)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_before_its_first_token(
    world: World, pace: Pace, stream: bool, expected: str
) -> None:
    pace.gate.clear()
    try:
        client = connect(world)
        client.sendall(request_bytes({**ENDLESS, "stream": stream}))
        wait_until(lambda: world.service.num_open == 1)
        vanish(client, reset=False)
        wait_until(lambda: world.service.num_open == 0)
    finally:
        pace.gate.set()
    check_nothing_is_left(world)
    check_it_answers(world, expected)


@pytest.mark.usefixtures("slow")
def test_clients_that_vanish_in_the_queue(model: Path, pace: Pace) -> None:
    with (
        paced_engine(model, pace, max_num_seqs=2) as engine,
        serving(engine) as world,
    ):
        clients = [connect(world) for _ in range(8)]
        for client in clients:
            client.sendall(request_bytes({**ENDLESS, "stream": True}))
        wait_until(lambda: engine.stats().num_waiting == 6)
        for client in reversed(clients):
            vanish(client, reset=True)
        check_nothing_is_left(world)


@pytest.mark.usefixtures("slow")
def test_clients_that_run_out_of_patience(world: World, pace: Pace, expected: str) -> None:
    async def run() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=world.url, timeout=0.5, limits=limits) as client:
            posts = [client.post("/v1/completions", json=ENDLESS) for _ in range(200)]
            ends = await asyncio.gather(*posts, return_exceptions=True)
        assert all(isinstance(end, httpx.TimeoutException) for end in ends)

    asyncio.run(run())
    pace.seconds = 0.0
    world.client.post("/v1/completions", json=SHORT, timeout=PATIENCE).raise_for_status()
    check_it_answers(world, expected)
    check_nothing_is_left(world)


@pytest.mark.parametrize("reset", [True, False])
def test_a_client_that_vanishes_within_its_body(world: World, expected: str, reset: bool) -> None:
    for length in (10, 60, -1):
        client = connect(world)
        client.sendall(request_bytes(ENDLESS)[:length])
        vanish(client, reset=reset)
    check_it_answers(world, expected)
    check_nothing_is_left(world)


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
EMPTY_LINE = b"1\r\n\n\r\n"  # in chunks


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("stream", [True, False])
def test_a_half_closed_client_gets_its_answers(
    world: World, pace: Pace, expected: str, stream: bool, waits: bool
) -> None:
    """A client like `nc -N`; while it waits, the server checks whether it is still there."""
    client = connect(world)
    if waits:
        pace.gate.clear()
    try:
        client.sendall(request_bytes({**SHORT, "stream": stream}) * 2)
        client.shutdown(socket.SHUT_WR)
        asked = EMPTY_LINE if stream else CONTINUE
        received = b""
        while waits and not received.endswith(asked):
            received += client.recv(1)
    finally:
        pace.gate.set()
    received += read_all(client)
    assert received.count(b"HTTP/1.1 200 OK") == 2
    if stream:
        assert received.count(b"data: [DONE]") == 2
    else:
        assert received.count(json.dumps(expected).encode()) == 2
    check_nothing_is_left(world)


@pytest.mark.parametrize("is_soon", [True, False])
def test_a_half_closed_client_of_http_1_0_is_not_asked(
    world: World, pace: Pace, monkeypatch: pytest.MonkeyPatch, is_soon: bool
) -> None:
    """It does not know "100 Continue": it has its answer soon, or is taken for gone."""
    if is_soon:
        monkeypatch.setattr(HttpProtocol, "half_closed_seconds", MUCH_PATIENCE)
    pace.gate.clear()
    try:
        client = connect(world)
        client.sendall(request_bytes(SHORT).replace(b"HTTP/1.1", b"HTTP/1.0"))
        wait_until(lambda: world.service.num_open == 1)
        client.shutdown(socket.SHUT_WR)
        if not is_soon:
            wait_until(lambda: world.service.num_open == 0)
    finally:
        pace.gate.set()
    assert read_all(client).count(b"200 OK") == is_soon
    check_nothing_is_left(world)


def test_a_client_that_closes_within_a_request_has_left(world: World) -> None:
    client = connect(world)
    client.sendall(request_bytes(SHORT)[:-4])
    client.shutdown(socket.SHUT_WR)
    assert read_all(client) == b""


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_with_requests_in_a_row(
    world: World, monkeypatch: pytest.MonkeyPatch, stream: bool, reset: bool
) -> None:
    """None of those that wait for the first one's answer begins."""
    started: list[object] = []
    client = connect(world)
    client.sendall(request_bytes({**ENDLESS, "stream": stream}) * 5)
    wait_until(lambda: num_running(world) == 1)
    monkeypatch.setattr(world.service.observer, "started", started.append)
    vanish(client, reset=reset)
    check_nothing_is_left(world)
    time.sleep(0.1)
    assert not started


def test_requests_in_a_row_are_answered_in_their_order(world: World) -> None:
    client = connect(world)
    bodies = [{**SHORT, "max_tokens": length} for length in range(1, 9)]
    client.sendall(b"".join(request_bytes(body) for body in bodies))
    received = b""
    while received.count(b'"usage"') < len(bodies) or not received.endswith(b"}"):
        received += client.recv(1 << 16)
    answers = [
        json.loads(answer.partition(b"\r\n\r\n")[2])
        for answer in received.split(b"HTTP/1.1 200 OK")[1:]
    ]
    lengths = [len(answer["choices"][0]["text"]) for answer in answers]
    assert lengths == list(range(1, 9))
    client.close()


@pytest.mark.usefixtures("slow")
def test_too_many_requests_in_a_row_end_the_connection(world: World, expected: str) -> None:
    client = connect(world)
    client.sendall(request_bytes(ENDLESS))
    wait_until(lambda: num_running(world) == 1)
    with contextlib.suppress(ConnectionError):
        client.sendall(request_bytes(SHORT) * 40)
        read_all(client)
    check_nothing_is_left(world)
    check_it_answers(world, expected)


# -- clients that are slow


def test_requests_that_come_byte_by_byte_hold_nobody_up(world: World, expected: str) -> None:
    text = request_bytes(SHORT)
    clients = [connect(world) for _ in range(200)]
    for i, client in enumerate(clients):
        client.sendall(text[: 1 + i * (len(text) - 2) // len(clients)])
    check_it_answers(world, expected)
    for client in clients[:-2]:
        vanish(client, reset=True)
    for byte in text[1 + 198 * (len(text) - 2) // len(clients) :]:
        clients[-2].sendall(bytes([byte]))
    assert json.dumps(expected).encode() in clients[-2].recv(1 << 16)
    clients[-1].close()
    check_nothing_is_left(world)


def test_a_slow_readers_deltas_are_merged(model: Path, expected: str) -> None:
    """Events wait for the reader as tokens of the request, not as events."""

    async def run(engine: Engine) -> None:
        service = Service(engine, ServerOptions(model_names=(MODEL,)))
        body = json.dumps({**ENDLESS, "max_tokens": 400, "stream": True}).encode()
        events: list[bytes] = []
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message.get("body"):
                events.extend(message["body"].split(b"\n\n")[:-1])
                await asyncio.sleep(0.05)

        await make_app(service)(scope_of("POST", "/v1/completions", JSON_HEADERS), receive, send)
        assert events.pop() == b"data: [DONE]"
        texts = [json.loads(event[6:])["choices"][0]["text"] for event in events]
        assert "".join(texts).startswith(expected) and len("".join(texts)) == 400
        assert len(texts) < 200
        assert service.num_open == 0
        service.close()

    with Engine(model, dtype="float32", hf_overrides={"max_position_embeddings": LONG}) as engine:
        asyncio.run(run(engine))


def test_a_reader_who_stops_reading_holds_nobody_up(world: World, expected: str) -> None:
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.connect(("127.0.0.1", world.port))
    body = {**ENDLESS, "max_tokens": 1000, "n": 16, "temperature": 1, "stream": True}
    lazy.sendall(request_bytes(body))
    wait_until(lambda: world.service.num_open == 1)
    check_it_answers(world, expected)
    wait_until(lambda: num_running(world) == 0)  # what it does not read runs to its end
    lazy.settimeout(PATIENCE)
    received = b""
    while b"[DONE]" not in received[-100:]:
        received += lazy.recv(1 << 16)
    texts = [""] * 16
    for line in received.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] += choice["text"]
    assert [len(text) for text in texts] == [1000] * 16
    assert texts[0].startswith(expected)  # completion 0 has the request's own seed
    vanish(lazy, reset=False)
    check_nothing_is_left(world)


@pytest.mark.parametrize("leaves", [False, True])
def test_silent_streams_are_kept_alive(
    engine: Engine, pace: Pace, expected: str, leaves: bool
) -> None:
    with serving(engine, sse_keep_alive_seconds=0.05) as world:
        pace.gate.clear()
        try:
            body = {**SHORT, "stream": True}
            with world.client.stream("POST", "/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                read = [next(lines)]
                while ": keep-alive" not in read[-1:]:
                    read.append(next(lines))
                if not leaves:
                    pace.gate.set()
                    read += lines
            wait_until(lambda: world.service.num_open == 0)
        finally:
            pace.gate.set()
        if not leaves:
            *events, done = [line[6:] for line in read if line.startswith("data: ")]
            texts = [json.loads(event)["choices"][0]["text"] for event in events]
            assert ("".join(texts), done) == (expected, "[DONE]")
        check_nothing_is_left(world)


def test_streams_that_are_not_silent_have_no_comments(engine: Engine) -> None:
    with serving(engine, sse_keep_alive_seconds=60) as world:
        answer = world.post("/v1/completions", **SHORT, stream=True).text
    assert all(line.startswith("data: ") for line in answer.splitlines() if line)


# -- clients by the thousand


@contextlib.contextmanager
def many_files(number: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < number:
        pytest.skip(f"needs {number} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(number, limits[0]), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.fuzz
def test_two_thousand_streams_at_once(world: World, pace: Pace, engine: Engine) -> None:
    number = 2000

    async def stream(seed: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        body = {**SHORT, "max_tokens": 8, "seed": seed, "stream": True}
        writer.write(request_bytes(body).replace(b"Host: x", b"Host: x\r\nConnection: close"))
        answer = await reader.read()
        writer.close()
        return answer

    async def run() -> list[bytes]:
        streams = [asyncio.ensure_future(stream(seed)) for seed in range(number)]
        end = time.monotonic() + MUCH_PATIENCE
        while world.service.num_open < number:
            assert time.monotonic() < end, "not all are let in"
            await asyncio.sleep(0.05)
        pace.gate.set()
        return await asyncio.wait_for(asyncio.gather(*streams), MUCH_PATIENCE)

    with many_files(2 * number + 500):
        pace.gate.clear()
        try:
            answers = asyncio.run(run())
        finally:
            pace.gate.set()
    texts = []
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"data: [DONE]") == 1
        lines = [line for line in answer.split(b"\n") if line.startswith(b"data: {")]
        choices = [json.loads(line[6:])["choices"][0] for line in lines]
        assert [choice["finish_reason"] for choice in choices][-1] == "length"
        texts.append("".join(choice["text"] for choice in choices))
    sample = range(0, number, 37)
    params = [text_params(seed=seed, max_tokens=8) for seed in sample]
    outputs = engine.generate(["abc"] * len(params), params, use_tqdm=False)
    assert [texts[i] for i in sample] == [output.outputs[0].text for output in outputs]
    assert all(len(text) == 8 for text in texts)
    check_nothing_is_left(world)
