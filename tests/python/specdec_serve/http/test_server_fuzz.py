"""Malformed requests get an error of the client's, and change nothing for the next request."""

import asyncio
import collections
import contextlib
import os
import random
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from asgi_caller import AsgiCaller
from hostile_requests import RequestMaker, check_answer
from server_world import MODEL, serving
from specdec_native import Engine
from specdec_serve.http.app import make_app
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.service import Service
from test_server_robust import check_nothing_is_left
from tiny_text_model import add_byte_text, is_idle

pytestmark = pytest.mark.fuzz

NUM_REQUESTS = int(os.environ.get("SPECDEC_FUZZ_REQUESTS", "4000"))
GOOD = b'{"prompt":"abc","seed":5,"max_tokens":24,"ignore_eos":true,"logprobs":2}'
JSON_TYPE = {"content-type": "application/json"}
AT_ONCE = 8

Value = TypeVar("Value", str, bytes)


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tokenizer that grammars can be compiled for."""
    return add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("fuzz") / "llama")


def choices_of(body: bytes) -> bytes:
    return body[body.index(b'"choices"') :]


def test_malformed_requests_in_process(engine: Engine) -> None:
    async def run() -> None:
        options = ServerOptions(model_names=(MODEL,), tool_call_parser="hermes")
        service = Service(engine, options)
        caller = AsgiCaller(make_app(service))
        expected = await caller.call("POST", "/v1/completions", body=GOOD)
        assert expected.status == 200
        maker = RequestMaker(seed=1)
        failures: list[str] = []

        async def one_after_the_other(num: int) -> None:
            for i in range(num):
                request = maker.make()
                try:
                    check_answer(
                        request,
                        await caller.call(
                            request.method,
                            request.path,
                            headers=request.headers,
                            body=request.body,
                            query=request.query,
                            num_pieces=1 + i % 3,
                        ),
                    )
                except Exception as error:
                    failures.append(f"{type(error).__name__}: {error!s:.300} for {request!r:.600}")

        each = NUM_REQUESTS // AT_ONCE
        await asyncio.gather(*(one_after_the_other(each) for _ in range(AT_ONCE)))
        assert not failures, f"{len(failures)} of {NUM_REQUESTS}:\n" + "\n".join(failures[:10])
        again = await caller.call("POST", "/v1/completions", body=GOOD)
        assert choices_of(again.body) == choices_of(expected.body)
        assert service.num_open == 0
        service.close()

    asyncio.run(run())
    assert is_idle(engine)


# -- bytes that are no HTTP, or almost


class WireMaker:
    """Makes what is written to a socket, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._maker = RequestMaker(seed)

    def make(self) -> bytes:
        """The next client's bytes."""
        draw = self._random
        requests = [self._request() for _ in range(draw.choice([1, 1, 1, 2, 5]))]  # pipelined
        data = b"".join(requests)
        kind = draw.randrange(8)
        if kind == 0:
            data = data[: draw.randrange(len(data))]
        elif kind == 1:
            changed = bytearray(data)
            for _ in range(draw.randint(1, 6)):
                changed[draw.randrange(min(300, len(changed)))] = draw.randrange(256)
            data = bytes(changed)
        elif kind == 2:
            at = draw.randrange(len(data))
            data = data[:at] + draw.randbytes(draw.randint(1, 50)) + data[at:]
        elif kind == 3:
            data = draw.choice([draw.randbytes(200), b"\r\n" * 100, b"\x16\x03\x01" * 50, b"G"])
        elif kind == 4:
            data = data.replace(b"\r\n", b"\n")
        return data

    def _request(self) -> bytes:
        draw = self._random
        request = self._maker.make()
        method = self._mostly(request.method, ["POST", "PRI * HTTP/2.0", "\x00"])
        path = request.path.encode("utf-8", "surrogateescape")
        target = self._mostly(path, [b"http://a/v1/models", b"*", b"/" + b"a" * 70_000])
        version = self._mostly(b"HTTP/1.1", [b"HTTP/1.0", b"HTTP/9.9", b"HTTP/1.1x", b""])
        length = self._mostly(
            b"Content-Length: %d\r\n" % len(request.body),
            [
                b"Content-Length: %d\r\n" % (len(request.body) + draw.choice([-1, 1, 10**12])),
                b"Content-Length: -1\r\n",
                b"Content-Length: 1\r\nContent-Length: 2\r\n",
                b"Content-Length: 18446744073709551617\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
                b"Transfer-Encoding: gzip, x\r\n",
                b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(request.body),
                b"",
            ],
        )
        body = request.body
        if length == b"Transfer-Encoding: chunked\r\n" and draw.random() < 0.7:
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        odd = [b" folded\r\n", b"Y\r\n", b": z\r\n", b"Z:" + b"a" * 9000, b"a: \x00\r\n"]
        extra = self._mostly(b"X: y\r\n", odd)
        upgrade = self._mostly(b"", [b"Connection: Upgrade\r\nUpgrade: websocket\r\n"])
        kind = b"Content-Type: application/json\r\n"
        start = method.encode() + b" " + target + b" " + version + b"\r\nHost: x\r\n"
        return start + kind + upgrade + length + extra + b"\r\n" + body

    def _mostly(self, usual: Value, others: list[Value]) -> Value:
        return usual if self._random.random() < 0.9 else self._random.choice(others)


def exchange(port: int, data: bytes) -> bytes:
    """What the server says to the bytes of a client that then sends no more."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.15) as client:
        received = b""
        with contextlib.suppress(OSError):  # closed in its middle, or still waiting for more
            client.sendall(data)
            while part := client.recv(1 << 16):
                received += part
        return received


def test_malformed_bytes_over_sockets(engine: Engine) -> None:
    with serving(engine) as world:
        expected = world.client.post("/v1/completions", content=GOOD, headers=JSON_TYPE).content
        maker = WireMaker(seed=2)
        sent = [maker.make() for _ in range(max(400, NUM_REQUESTS // 10))]
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda data: exchange(world.port, data), sent))
        statuses: collections.Counter[int] = collections.Counter()
        for data, answer in zip(sent, answers, strict=True):
            for status in re.findall(rb"(?:^|\r\n|\})HTTP/1\.1 (\d\d\d) ", answer):
                statuses[int(status)] += 1
                assert int(status) < 500, (data[:1000], answer[:1000])
            assert answer.startswith(b"HTTP/1.1 ") or not answer, (data[:1000], answer[:1000])
        assert statuses[200] and statuses[400], statuses
        again = world.client.post("/v1/completions", content=GOOD, headers=JSON_TYPE).content
        assert choices_of(again) == choices_of(expected)
        check_nothing_is_left(world)
