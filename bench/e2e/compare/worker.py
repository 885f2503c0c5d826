"""The process a peer runs in: `python -m compare.worker PEER`, by its peer's own interpreter."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any, TextIO

from .protocol import Backend, Setup


def main() -> None:
    """Serves the peer named by the first argument until its input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the peer prints goes to the log
    module = importlib.import_module(f"{__package__}.peers.{sys.argv[1]}")
    serve(module.make_backend(), sys.stdin, replies)


def serve(backend: Backend, requests: TextIO, replies: TextIO) -> None:
    """Answers one request a line. An error is told and logged; the next request is taken."""
    try:
        for line in requests:
            request = json.loads(line)
            reply: dict[str, Any]
            try:
                reply = {"result": _run(backend, request)}
            except Exception as error:  # any error of the peer's
                traceback.print_exc()
                reply = {"error": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
            if request["command"] == "close":
                return
    finally:
        backend.close()


def _run(backend: Backend, request: dict[str, Any]) -> Any:
    command = request["command"]
    if command == "load":
        return backend.load(Setup(**request["setup"]))
    if command == "reset":
        backend.reset(request["batch"])
        return None
    if command == "generate":
        return backend.generate(request["prompts"], request["max_tokens"]).to_json()
    if command == "close":
        return None
    raise ValueError(f"unknown command {command!r}")


if __name__ == "__main__":
    main()
