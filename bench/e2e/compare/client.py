"""The comparison's side of a worker: starts it, sends requests, stops it while others run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .processes import ForeignLoad, group_peak_bytes
from .programs import last_line_of
from .protocol import Generation, PeerError, Setup

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


class Worker:
    """A peer's process group. It is stopped except inside `awake`, so that it cannot spin."""

    def __init__(
        self,
        python: Path,
        module: str,
        environment: Mapping[str, str],
        log: Path,
        *,
        counts_itself: bool = True,
    ) -> None:
        """Starts it; what it prints is appended to `log`.

        `counts_itself`: whether the worker's own memory is the peer's, not only its children's.
        """
        paths = [str(_PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        package = str(__package__).rpartition(".")[2]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", f"{package}.worker", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )
        self._log = log
        self._counts_itself = counts_itself
        self._peak_bytes = 0
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Lets its processes run."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def load(self, setup: Setup) -> str:
        """Loads a model and returns the peer's version."""
        with self.awake():
            return str(self._call("load", setup=dataclasses.asdict(setup)))

    def reset(self, batch: int) -> None:
        """Forgets what it generated before."""
        self._call("reset", batch=batch)

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        """Generates, and checks that every answer has the length that was asked for."""
        result = self._call("generate", prompts=prompts, max_tokens=max_tokens)
        generation = Generation(**result)
        lengths = {len(ids) for ids in generation.token_ids}
        if len(generation.token_ids) != len(prompts) or lengths != {max_tokens}:
            raise PeerError(f"asked for {max_tokens} tokens, got {sorted(lengths)}")
        return generation

    def foreign_load(self) -> ForeignLoad:
        """Starts to measure the CPU use of all processes but this worker."""
        return ForeignLoad(self._process.pid)

    def peak_bytes(self) -> int:
        """The peer's peak memory so far."""
        peak = group_peak_bytes(self._process.pid, leader=self._counts_itself)
        self._peak_bytes = max(self._peak_bytes, peak)
        return self._peak_bytes

    def close(self) -> None:
        """Ends it and everything it started."""
        with contextlib.suppress(PeerError):
            self._signal(signal.SIGCONT)
            self._call("close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _call(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError as error:
            raise self._ended() from error
        if not line:
            raise self._ended()
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply["result"]

    def _ended(self) -> PeerError:
        return PeerError(f"the process ended: {last_line_of(self._log)} (see {self._log})")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
