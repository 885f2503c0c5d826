"""Processes of the ranks that do not lead: `distributed_executor_backend="mp"` and launchers.

Rank 0 is the engine. Under "mp" it starts a process of this module for every other rank and hands
it the configuration; the processes find each other in shared memory. A process ends when the
engine does, whichever way that happens.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from typing import Any

from specdec_native import _core

_FIELDS = ("model", "hf_overrides", "tapped_layers", "tap_final_hidden")
_SPECULATIVE_FIELDS = ("speculative_token_tree", "num_speculative_tokens_per_batch_size")


def join_ranks(config: _core.EngineConfig) -> None:
    """Starts the processes of the other ranks where the configuration wants them.

    In a process that mpirun or torchrun started for a rank other than 0 it serves rank 0 instead,
    and raises SystemExit when that is done.
    """
    num_ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    if num_ranks == 1:
        return
    if config.distributed_executor_backend == "mp":
        config.rank_group = _core.RankGroup(num_ranks)
        for rank in range(1, num_ranks):
            _start(config, config.rank_group.name, rank)
    elif not _core.is_leading_rank(config):
        _core.serve_rank(config)
        raise SystemExit(0)


def _start(config: _core.EngineConfig, group: str, rank: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "specdec_native.ranks", group, str(rank)], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(pickle.dumps(_state_of(config)))
    # Nobody waits for the process: it is reaped when it ends.
    threading.Thread(target=process.wait, name=f"specdec rank {rank}", daemon=True).start()


def _state_of(config: _core.EngineConfig) -> dict[str, Any]:
    speculative = config.speculative
    return {
        **_options_of(config),
        **{name: getattr(config, name) for name in _FIELDS},
        "speculative": {
            **_options_of(speculative),
            **{name: getattr(speculative, name) for name in _SPECULATIVE_FIELDS},
            # Only models have shares: an object of the user's stays with rank 0.
            "drafters": [
                {} if drafter.method == "custom" else _options_of(drafter)
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


def _main() -> None:
    group, rank = sys.argv[1], int(sys.argv[2])
    # Ctrl-C reaches all processes of a terminal; the engine's says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = _config_of(pickle.loads(sys.stdin.buffer.read()))
    try:
        _core.serve_rank(config, group, rank)
    except _core.Error as error:  # rank 0 has its cause, or is gone
        print(f"specdec_native: rank {rank} has ended: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    _main()
