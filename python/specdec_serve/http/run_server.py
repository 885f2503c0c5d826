"""Runs a server until a signal or a failure of the engine ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import uvicorn
import uvicorn.config

from specdec_native.common.file_limit import raise_file_limit
from specdec_serve.http.app import make_app
from specdec_serve.http.connections import HttpProtocol
from specdec_serve.http.server_options import ListenOptions
from specdec_serve.http.service import Service

_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 5  # how long a connection without a request stays
_LAST_WORDS_SECONDS = 5  # time for aborted streams to be written to their end


class Listener:
    """The address of a server, bound before the model is loaded, so that errors show at once.

    Raises OSError where the address is in use, ValueError for unusable TLS files.
    """

    def __init__(self, listen: ListenOptions) -> None:
        self.options = listen
        _check_tls(listen)
        self.socket: socket.socket | None = None
        if listen.uds is None:
            host = listen.host or "0.0.0.0"
            self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self.socket.bind((host, listen.port))
            except (OSError, OverflowError) as error:
                self.socket.close()
                raise OSError(f"cannot listen at {host}:{listen.port}: {error}") from error

    @property
    def url(self) -> str:
        """The server's URL."""
        if self.socket is None:
            return f"unix:{self.options.uds}"
        host, port = self.socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.options.ssl_certfile else 'http'}://{shown}:{port}"


def run(service: Service, listener: Listener) -> int:
    """Serves until a signal. Returns the exit code: 0, or 1 where the engine failed.

    On SIGTERM or SIGINT, running requests get shutdown_timeout seconds to finish, new requests are
    answered with 503 meanwhile, and the rest is aborted. A second signal ends the server at once.
    """
    raise_file_limit()
    _show_logs(listener.options)
    Server(service, listener).serve_until_ended()
    return 0 if service.failure is None else 1


class Server(uvicorn.Server):
    """uvicorn's server with this package's shutdown."""

    def __init__(self, service: Service, listener: Listener) -> None:
        super().__init__(_uvicorn_config(service, listener.options))
        self._service = service
        self._listener = listener
        self._ending: asyncio.Task[None] | None = None

    def serve_until_ended(self) -> None:
        """Serves until end() or a failure of the engine."""
        own = self._listener.socket
        self.run(sockets=None if own is None else [own])
        if own is None and self._listener.options.uds:
            Path(self._listener.options.uds).unlink(missing_ok=True)

    async def startup(self, *args: Any, **kwargs: Any) -> None:
        """Listens, and logs the address."""
        self._loop = asyncio.get_running_loop()
        self._service.on_failure = self.end
        await super().startup(*args, **kwargs)
        if self.started:
            names = ", ".join(self._service.options.model_names)
            print(f"Serving {names} at {self._listener.url} ({self._listener.options.about})")
            sys.stdout.flush()

    def end(self) -> None:
        """Starts the shutdown; a second call ends the server at once. Any thread may call it."""
        self._loop.call_soon_threadsafe(self._begin_to_end)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handles signals by end()."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._begin_to_end)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _begin_to_end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        elif self._service.failure is None:  # a failed engine ends the server anyway
            self.should_exit = True
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    async def _end(self) -> None:
        service = self._service
        service.is_draining = True
        if service.failure is None:
            await service.wait_until_idle(self._listener.options.shutdown_timeout)
            service.abort_all()
        await service.wait_until_idle(_LAST_WORDS_SECONDS)
        self.should_exit = True


def _uvicorn_config(service: Service, listen: ListenOptions) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(service),
        uds=listen.uds,
        loop="uvloop",
        http=_protocol(listen),
        ws="none",
        log_level=listen.log_level,
        access_log=listen.access_log,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        ssl_keyfile=listen.ssl_keyfile,
        ssl_certfile=listen.ssl_certfile,
        ssl_ca_certs=listen.ssl_ca_certs,
        ssl_cert_reqs=listen.ssl_cert_reqs,
        ssl_ciphers=listen.ssl_ciphers,
    )


def _protocol(listen: ListenOptions) -> type[HttpProtocol]:
    limits = {"max_header_bytes": listen.max_header_bytes, "max_headers": listen.max_headers}
    return type("LimitedHttpProtocol", (HttpProtocol,), limits)


def _show_logs(listen: ListenOptions) -> None:
    """Writes this package's log to standard error in uvicorn's format."""
    logger = logging.getLogger("specdec_native")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel({"trace": "DEBUG"}.get(listen.log_level, listen.log_level.upper()))
    if listen.unlogged_paths:
        access = logging.getLogger("uvicorn.access")
        access.addFilter(lambda record: _path_of(record) not in listen.unlogged_paths)


def _path_of(record: logging.LogRecord) -> str:
    """The path of a line of uvicorn's access log: the third of its arguments."""
    arguments = record.args
    if isinstance(arguments, tuple) and len(arguments) > 2:
        return str(arguments[2]).partition("?")[0]
    return ""


def _check_tls(listen: ListenOptions) -> None:
    if not listen.ssl_certfile:
        if listen.ssl_keyfile or listen.ssl_ca_certs:
            raise ValueError("TLS needs --ssl-certfile")
        return
    try:
        uvicorn.config.create_ssl_context(
            listen.ssl_certfile,
            listen.ssl_keyfile,
            None,
            uvicorn.config.SSL_PROTOCOL_VERSION,
            listen.ssl_cert_reqs,
            listen.ssl_ca_certs,
            listen.ssl_ciphers,
        )
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(f"the files of TLS cannot be used: {error}") from error
