"""Servers for tests: an API over an engine, listening on a free port in a thread of its own."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from specdec_native import Engine
from specdec_serve.http.app import make_app
from specdec_serve.http.connections import HttpProtocol
from specdec_serve.http.served_engine import ServedEngine
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.service import Service

MODEL = "tiny"
BODY: dict[str, Any] = {"prompt": "abc", "max_tokens": 4, "ignore_eos": True}


class World:
    """A server under test, with a client that knows its address."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=60)

    @property
    def engine(self) -> Engine:
        """The engine, where it is one of this process."""
        assert isinstance(self.service.engine, Engine)
        return self.service.engine

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """The JSON of an answer that must be good."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def error(self, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
        """The error of an answer with that status."""
        response = self.post(path, **body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert error["code"] == status
        return error

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which must end with [DONE]."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@contextlib.contextmanager
def serving(
    engine: ServedEngine, wrap: Callable[[ASGIApp], ASGIApp] | None = None, /, **options: Any
) -> Iterator[World]:
    """A server with these ServerOptions, which the block's end stops; the engine stays.

    `wrap` makes the application that is served of the server's own.
    """
    service = Service(engine, ServerOptions(**{"model_names": (MODEL,), **options}))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app: ASGIApp = make_app(service)
        app = app if wrap is None else wrap(app)
        config = uvicorn.Config(app, log_level="error", loop="uvloop", http=HttpProtocol)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.01)
            world = World(service, listener.getsockname()[1])
            yield world
            world.client.close()
        finally:
            server.should_exit = True
            thread.join()
            service.close()


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer with that status, whose members are vLLM's."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == status
    assert isinstance(error["message"], str) and error["message"]
    return error
