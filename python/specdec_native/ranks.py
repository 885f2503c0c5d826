"""Processes of the ranks that do not lead: `distributed_executor_backend="mp"`, Ray and torchrun.

Rank 0 is the engine. Under "mp" it starts a process of this module for every other rank and hands
it the configuration; the processes find each other in shared memory. A process ends when the
engine does, whichever way that happens. Ray's actors (ray_ranks.py) do the same on several nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Protocol

from specdec_native import _core

_FIELDS = ("model", "hf_overrides", "tapped_layers", "tap_final_hidden")
_SPECULATIVE_FIELDS = ("speculative_token_tree", "num_speculative_tokens_per_batch_size")
_GRACE_SECONDS = 1.0  # how long ranks get to end after they were told to
_PR_SET_PDEATHSIG = 1


class StartedRanks(Protocol):
    """The other ranks, where the engine started them."""

    def end(self) -> None:
        """Ends ranks that are still running after the engine has ended."""


class NoRanks:
    """Used where there are no other ranks, or they end by themselves."""

    def end(self) -> None:
        """Does nothing."""


class RankProcesses:
    """The processes of ranks 1 and up, which join config.rank_group."""

    def __init__(self, config: _core.EngineConfig, num_ranks: int) -> None:
        config.rank_group = group = _core.RankGroup(num_ranks)
        state = pickle.dumps(_state_of(config))
        self._processes = [_RankProcess(group, rank, state) for rank in range(1, num_ranks)]

    def end(self) -> None:
        """Waits until the processes have ended, and kills those that do not end soon."""
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.kill()


class _RankProcess(threading.Thread):
    """A process of a rank, and the thread that starts it and waits for it.

    The thread lives as long as the process, because the kernel kills the process when the thread
    that started it ends (PR_SET_PDEATHSIG).
    """

    def __init__(self, group: _core.RankGroup, rank: int, state: bytes) -> None:
        super().__init__(name=f"specdec rank {rank}", daemon=True)
        self._group = group
        self._rank = rank
        self._state = state
        self._process: subprocess.Popen[bytes] | None = None
        self._is_started = threading.Event()
        self.start()
        self._is_started.wait()

    def run(self) -> None:
        command = [sys.executable, "-m", __name__, self._group.name, str(self._rank)]
        try:
            self._process = process = subprocess.Popen(command, stdin=subprocess.PIPE)
        except OSError as error:
            self._group.fail(self._rank, f"its process could not be started: {error}")
            return
        finally:
            self._is_started.set()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # it has ended: see below
            process.stdin.write(self._state)
        code = process.wait()
        if code != 0:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._group.fail(self._rank, f"its process has ended ({how})")

    def kill(self) -> None:
        """Ends the process where it still runs."""
        if self.is_alive() and self._process is not None:
            self._process.kill()
            self.join()


def join_ranks(config: _core.EngineConfig) -> StartedRanks:
    """Starts the processes of the other ranks where the configuration wants them.

    In a process that torchrun started for a rank other than 0 it serves rank 0 instead,
    and raises SystemExit when that is done.
    """
    num_ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    if num_ranks == 1:
        return NoRanks()
    if config.distributed_executor_backend == "mp":
        return RankProcesses(config, num_ranks)
    if config.distributed_executor_backend == "ray":
        from specdec_native.ray_ranks import RayRanks  # noqa: PLC0415 - optional

        # Ray decided how many of the node's cores this process gets.
        config.num_threads = config.num_threads or 1
        return RayRanks(config, num_ranks, pickle.dumps(_state_of(config)), serve_rank)
    if not _core.is_leading_rank(config):
        _core.serve_rank(config)
        raise SystemExit(0)
    return NoRanks()


def serve_rank(state: bytes, group: str, rank: int) -> None:
    """Runs a rank until the engine ends. `state` is the pickled configuration of rank 0."""
    _core.serve_rank(_config_of(pickle.loads(state)), group, rank)


def _state_of(config: _core.EngineConfig) -> dict[str, Any]:
    speculative = config.speculative
    return {
        **_options_of(config),
        **{name: getattr(config, name) for name in _FIELDS},
        "speculative": {
            **_options_of(speculative),
            **{name: getattr(speculative, name) for name in _SPECULATIVE_FIELDS},
            # Only models are split over ranks: a drafter object of the user's stays with rank 0.
            "drafters": [
                {} if drafter.method == "custom_class" else _options_of(drafter)
                for drafter in speculative.drafters
            ],
        },
    }


def _options_of(config: Any) -> dict[str, Any]:
    return {option.name: getattr(config, option.name) for option in type(config).options}


def _with_state(config: Any, state: dict[str, Any]) -> Any:
    for name, value in state.items():
        setattr(config, name, value)
    return config


def _config_of(state: dict[str, Any]) -> _core.EngineConfig:
    speculative = dict(state.pop("speculative"))
    drafters = [_with_state(_core.DrafterConfig(), drafter) for drafter in speculative["drafters"]]
    speculative["drafters"] = drafters
    config: _core.EngineConfig = _with_state(_core.EngineConfig(), state)
    config.speculative = _with_state(_core.SpeculativeConfig(), speculative)
    return config


def _end_with(parent: int) -> None:
    """Has the kernel kill this process when that process ends, even by kill -9."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl
        raise SystemExit(1)


def _main() -> None:
    group, rank = sys.argv[1], int(sys.argv[2])
    _end_with(int(group.partition(":")[0]))
    # Ctrl-C reaches all processes of a terminal; only the engine's process decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve_rank(sys.stdin.buffer.read(), group, rank)
    except _core.Error as error:  # rank 0 knows the cause, or is gone
        print(f"specdec_native: rank {rank} has ended: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    _main()
