"""Servers that tests end: run as `specdec-native serve` runs them, in a thread."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from server_world import MODEL
from specdec_native import Engine
from specdec_serve.http.run_server import Listener, Server
from specdec_serve.http.server_options import ListenOptions, ServerOptions
from specdec_serve.http.service import Service
from waiting import PATIENCE, wait_until


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
