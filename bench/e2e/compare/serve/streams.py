"""Clients: streams that begin together, and a flood of streams by wrk."""

from __future__ import annotations

import json
import re
import selectors
import socket
import subprocess
import tempfile
import time
from typing import Any

_END = b"data: [DONE]\n\n"


def flood(port: int, connections: int, seconds: float, body: dict[str, Any]) -> float:
    """Answers per second while `connections` clients send requests continuously (Debian's wrk).

    Raises RuntimeError where an answer was no 200 or a connection failed. llama-server ends its
    connections after each answer, which wrk counts among the errors of reading.
    """
    quoted = json.dumps(json.dumps({**body, "stream": True}))
    script = (
        'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
        f"wrk.body = {quoted}\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        output = subprocess.run(
            [
                *("wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "120"),
                *("-s", file.name, f"http://127.0.0.1:{port}/v1/completions"),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    errors = r"Socket errors: connect (\d+), read \d+, write (\d+), timeout (\d+)"
    failed = re.search(errors, output)
    if "Non-2xx" in output or (failed and any(int(count) for count in failed.groups())):
        raise RuntimeError(output)
    rate = re.search(r"Requests/sec:\s*([\d.]+)", output)
    if rate is None:
        raise RuntimeError(output)
    return float(rate.group(1))


def together(port: int, bodies: list[dict[str, Any]]) -> float:
    """Seconds until the last of these streams, begun at once, has ended."""
    selector = selectors.DefaultSelector()
    connections = []
    for body in bodies:
        text = json.dumps({**body, "stream": True}).encode()
        connection = socket.create_connection(("127.0.0.1", port))
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        connections.append((connection, head.encode() + text))
        selector.register(connection, selectors.EVENT_READ, bytearray())
    begin = time.perf_counter()
    for connection, request in connections:
        connection.sendall(request)
    num_open = len(connections)
    while num_open:
        for key, _ in selector.select():
            received = key.data
            piece = _receive(key.fileobj)
            received += piece
            if _END in received[-64:] or not piece:
                if not received.startswith(b"HTTP/1.1 200") or _END not in received[-64:]:
                    raise RuntimeError(received.decode(errors="replace")[:500])
                selector.unregister(key.fileobj)
                num_open -= 1
    seconds = time.perf_counter() - begin
    for connection, _ in connections:
        connection.close()
    return seconds


def _receive(connection: Any) -> bytes:
    data: bytes = connection.recv(1 << 16)
    return data
