"""A rank that is killed, stops or fails ends what runs with RankFailure, and nothing is left."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rank_models
from rank_models import CONFIG, make_engine, processes_of, write
from specdec_native import Engine, SamplingParams, ranks
from specdec_native.errors import RankFailure
from waiting import wait_until

TIMEOUT = 2.0  # distributed_timeout_seconds
SLACK = 15.0  # that a loaded machine may add to what takes a second at most
ENDLESS = 60.0  # a timeout that nothing here waits for
LONG = SamplingParams(max_tokens=480, temperature=0, ignore_eos=True)
PROCESSES: dict[str, Any] = {
    "distributed_executor_backend": "mp",
    "distributed_timeout_seconds": TIMEOUT,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ranks") / "target", CONFIG)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert processes_of(os.getpid()) == {}


def close(engine: Engine) -> None:
    begin = time.monotonic()
    engine.close()
    assert time.monotonic() < begin + TIMEOUT + SLACK


def test_a_rank_killed_while_the_engine_is_idle(model: Path) -> None:
    engine = make_engine(model, tensor_parallel_size=2, **PROCESSES)
    engine.check_health()
    os.kill(processes_of(os.getpid())[1], signal.SIGKILL)
    failures: list[RankFailure] = []

    def has_failed() -> bool:
        try:
            engine.check_health()
        except RankFailure as failure:
            failures.append(failure)
        return bool(failures)

    wait_until(has_failed, SLACK)
    assert (failures[0].rank, failures[0].operation) == (1, "idle")
    assert "rank 1 failed in idle: " in str(failures[0]) and "has ended" in str(failures[0])
    with pytest.raises(RankFailure, match="make a new engine") as caught:
        engine.generate({"prompt_token_ids": [1, 2]}, LONG)
    assert caught.value.rank == 1
    close(engine)


@pytest.mark.parametrize(
    ("number", "size"),
    [
        (signal.SIGKILL, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
        (signal.SIGKILL, {"tensor_parallel_size": 2}),
        (signal.SIGSTOP, {"pipeline_parallel_size": 2}),
    ],
)
def test_a_rank_lost_in_a_step(model: Path, number: int, size: dict[str, int]) -> None:
    timeout = ENDLESS if number == signal.SIGKILL else TIMEOUT
    engine = make_engine(model, **size, **{**PROCESSES, "distributed_timeout_seconds": timeout})
    streams = [engine.stream({"prompt_token_ids": [5, i]}, LONG) for i in range(4)]
    for stream in streams:
        next(stream)
    begin = time.monotonic()
    os.kill(processes_of(os.getpid())[1], number)
    for stream in streams:
        with pytest.raises(RankFailure) as caught:
            list(stream)
        assert caught.value.rank == 1
        assert caught.value.operation in ("broadcast", "exchange", "send", "receive", "idle")
        cause = "has ended" if number == signal.SIGKILL else f"did not answer within {TIMEOUT:g} s"
        assert cause in str(caught.value)
    assert time.monotonic() < begin + (TIMEOUT if number == signal.SIGSTOP else 0) + SLACK
    assert SLACK < ENDLESS / 2
    close(engine)


def test_a_rank_that_runs_out_of_memory_in_a_step(model: Path) -> None:
    """Its address space ends where it is, so it gets no memory for a step of more rows."""
    engine = make_engine(
        model, tensor_parallel_size=2, max_num_batched_tokens=512, max_num_seqs=4, **PROCESSES
    )
    list(engine.stream({"prompt_token_ids": [5, 6]}, SamplingParams(max_tokens=2)))
    process = processes_of(os.getpid())[1]
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize()
    resource.prlimit(process, resource.RLIMIT_AS, (limit, limit))
    begin = time.monotonic()
    with pytest.raises(RankFailure, match="cannot allocate .* bytes|out of memory") as caught:
        list(engine.stream({"prompt_token_ids": list(range(1, 331))}, LONG))
    assert time.monotonic() < begin + TIMEOUT + SLACK
    assert caught.value.rank == 1
    close(engine)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_while_it_loads(
    model: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    start = subprocess.Popen

    def start_and_lose(*arguments: Any, **options: Any) -> Any:
        process = start(*arguments, **options)
        process.send_signal(number)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_lose)
    begin = time.monotonic()
    with pytest.raises(RankFailure, match=r"SIGKILL|did not come within 2 s") as caught:
        make_engine(model, tensor_parallel_size=2, **PROCESSES)
    assert time.monotonic() < begin + TIMEOUT + 2 * SLACK  # one to kill what is stopped
    assert (caught.value.rank, caught.value.operation) == (1, "join")


def test_an_error_of_a_rank_that_loads_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_of = ranks._state_of
    monkeypatch.setattr(ranks, "_state_of", lambda config: {**state_of(config), "device": "tpu"})
    with pytest.raises(RankFailure, match="rank 1 failed.*device.*tpu"):
        make_engine(model, tensor_parallel_size=2, **PROCESSES)


ENGINE = """
import sys
from pathlib import Path
from rank_models import make_engine
engine = make_engine(
    Path(sys.argv[1]), tensor_parallel_size=3, distributed_executor_backend="mp"
)
print("ready", flush=True)
sys.stdin.read()
"""


def test_ranks_end_with_a_killed_engine(model: Path) -> None:
    command = [sys.executable, "-c", ENGINE, str(model)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(rank_models.__file__).parent,
    ) as engine:
        assert engine.stdout is not None and engine.stdout.readline() == b"ready\n"
        processes = processes_of(engine.pid)
        assert set(processes) == {1, 2}
        os.kill(processes[1], signal.SIGSTOP)  # one that cannot see that the engine is gone
        engine.kill()
        wait_until(lambda: not processes_of(engine.pid), SLACK)
