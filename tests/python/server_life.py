"""Servers that tests end: run as `specdec-native serve` runs them, in a thread."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from server_world import MODEL
from specdec_native import Engine
from specdec_native.server.options import ListenOptions, ServerOptions
from specdec_native.server.run import Listener, Server
from specdec_native.server.service import Service

PATIENCE = 20.0


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < end, "what was waited for has not come true"
        time.sleep(0.005)


@dataclasses.dataclass
class Life:
    """A server that runs."""

    service: Service
    server: Server
    url: str
    thread: threading.Thread

    def ended(self) -> bool:
        """Whether it ends, within some time."""
        self.thread.join(PATIENCE)
        return not self.thread.is_alive()


@contextlib.contextmanager
def living(engine: Engine, listen: dict[str, Any], **options: Any) -> Iterator[Life]:
    """A server with these options of ListenOptions and ServerOptions."""
    service = Service(engine, ServerOptions(**{"model_names": (MODEL,), **options}))
    listener = Listener(ListenOptions(**{"host": "127.0.0.1", "port": 0, **listen}))
    server = Server(service, listener)
    url = listener.url
    thread = threading.Thread(target=server.serve_until_ended)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Life(service, server, url, thread)
    finally:
        for _ in range(2):
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                server.end()
        thread.join()
        service.close()
