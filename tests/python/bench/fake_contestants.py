"""Contestants of bench/e2e/compare, and players that only say what is done with them."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from compare.protocol import Generation, PeerError
from compare.results import Contestant, Result
from compare.runner import Runner
from compare.workloads import Cell

OURS = Contestant("specdec", "plain", "bf16")
OURS_FAST = Contestant("specdec", "ngram", "bf16")
PEER = Contestant("peer", "plain", "bf16")
PEER_FAST = Contestant("peer", "lookup", "bf16")
CHAT = Cell("chat", 1, ((1, 2), (3, 4)), num_tokens=10)
CODE = Cell("code", 2, ((1, 2), (3, 4)), num_tokens=10)


@dataclasses.dataclass
class FakeLoad:
    used: float

    def cores(self) -> float:
        return self.used


class FakePlayer:
    """Notes what is done with it in a log that players share."""

    def __init__(self, name: str, log: list[str], foreign: Iterator[float]) -> None:
        self.name, self.log, self.foreign = name, log, foreign

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        assert not any(entry.startswith("+") for entry in self.log[-1:]), "two awake at once"
        self.log.append(f"+{self.name}")
        yield
        self.log.append(f"-{self.name}")

    def reset(self, batch: int) -> None:
        self.log.append(f"reset {batch}")

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        self.log.append(f"{self.name} {len(prompts)}x{max_tokens}")
        return Generation([[7] * max_tokens for _ in prompts], seconds=0.5)

    def foreign_load(self) -> FakeLoad:
        return FakeLoad(next(self.foreign))

    def peak_bytes(self) -> int:
        return 1000

    def close(self) -> None:
        self.log.append(f"closed {self.name}")


def play(
    contestants: Sequence[Contestant],
    cells: Sequence[Cell],
    repeats: int,
    *,
    foreign: Iterator[float] | None = None,
    apart: bool = False,
    broken: Sequence[Contestant] = (),
) -> tuple[Result, list[str]]:
    """The result of a runner with fake players, and the players' log."""
    log: list[str] = []
    loads = itertools.repeat(0.0) if foreign is None else foreign

    def load(contestant: Contestant) -> FakePlayer:
        if contestant in broken:
            raise PeerError("no such kernel")
        log.append(f"loaded {contestant.peer}")
        return FakePlayer(contestant.peer, log, loads)

    result = Result(machine={"model": "m"})
    runner = Runner(
        load=load,
        can_run=lambda contestant, cell: contestant != PEER or cell.batch == 1,
        result=result,
    )
    (runner.run_apart if apart else runner.run_together)(contestants, cells, repeats)
    return result, log
