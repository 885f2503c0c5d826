"""Runs the contestants in turns, so that drift of the machine affects all of them alike."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from .protocol import Generation, PeerError
from .results import Contestant, Result, Sample, digest
from .workloads import Cell

_WARM_UP_TOKENS = 4

T = TypeVar("T")


class Load(Protocol):
    """The CPU use of other processes since this object was made."""

    def cores(self) -> float:
        """Cores that others kept busy."""


class Player(Protocol):
    """A loaded contestant."""

    def awake(self) -> contextlib.AbstractContextManager[None]:
        """Lets it run; otherwise it is held still."""

    def reset(self, batch: int) -> None:
        """Forgets what it generated and makes ready for that many prompts."""

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Generation:
        """Greedy decoding."""

    def foreign_load(self) -> Load:
        """Measures from now on what others use."""

    def peak_bytes(self) -> int:
        """The most memory it has held."""

    def close(self) -> None:
        """Unloads it."""


def rotated(items: Sequence[T], by: int) -> list[T]:
    """The items from the by-th on, then those before."""
    by %= max(1, len(items))
    return [*items[by:], *items[:by]]


@dataclasses.dataclass
class Runner:
    """Measures contestants in cells.

    Attributes:
        load: loads a contestant; raises PeerError.
        can_run: whether a contestant takes part in a cell.
        result: samples are added to it.
        retries: how often a noisy call is repeated before it is kept as noisy.
        measure_bandwidth: adds to the result's bandwidths.
        on_progress: called with a text about the progress.
        on_round: called after each round, with the result so far.
    """

    load: Callable[[Contestant], Player]
    can_run: Callable[[Contestant, Cell], bool]
    result: Result
    retries: int = 2
    measure_bandwidth: Callable[[], None] = lambda: None
    on_progress: Callable[[str], None] = lambda _: None
    on_round: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._warm: set[tuple[Contestant, int]] = set()

    def run_together(
        self, contestants: Sequence[Contestant], cells: Sequence[Cell], repeats: int
    ) -> None:
        """All contestants stay loaded; in each round they take turns cell by cell."""
        with contextlib.ExitStack() as stack:
            players = {}
            for contestant in contestants:
                if (player := self._load(contestant, stack)) is not None:
                    players[contestant] = player
            for repeat, (index, cell) in itertools.product(range(repeats), enumerate(cells)):
                self.measure_bandwidth()
                for contestant in rotated(list(players), repeat + index):
                    if not self._play(contestant, players[contestant], [cell], repeat):
                        del players[contestant]
                self.on_round()

    def run_apart(
        self, contestants: Sequence[Contestant], cells: Sequence[Cell], repeats: int
    ) -> None:
        """One contestant is loaded at a time; it plays all cells, then comes the next."""
        remaining = list(contestants)
        for repeat in range(repeats):
            for contestant in rotated(remaining, repeat):
                self._warm.clear()
                with contextlib.ExitStack() as stack:
                    player = self._load(contestant, stack)
                    if player is None:
                        remaining.remove(contestant)
                        continue
                    self.measure_bandwidth()
                    if not self._play(contestant, player, cells, repeat):
                        remaining.remove(contestant)
                self.on_round()

    def _load(self, contestant: Contestant, stack: contextlib.ExitStack) -> Player | None:
        self.on_progress(f"loading {contestant}")
        try:
            player = self.load(contestant)
        except PeerError as error:
            self._fail(contestant, error)
            return None
        stack.callback(player.close)
        return player

    def _play(
        self, contestant: Contestant, player: Player, cells: Iterable[Cell], repeat: int
    ) -> bool:
        """Measures one contestant in the cells it takes part in; False once it has failed."""
        try:
            with player.awake():
                for cell in cells:
                    if self.can_run(contestant, cell):
                        self._measure(contestant, player, cell, repeat)
        except PeerError as error:
            self._fail(contestant, error)
            return False
        return True

    def _measure(self, contestant: Contestant, player: Player, cell: Cell, repeat: int) -> None:
        if (contestant, cell.batch) not in self._warm:
            player.reset(cell.batch)
            player.generate(cell.calls[0], min(_WARM_UP_TOKENS, cell.num_tokens))
            self._warm.add((contestant, cell.batch))
        for call, prompts in enumerate(cell.calls):
            for sample in self._attempts(contestant, player, cell, prompts):
                sample.call, sample.repeat = call, repeat
                self.result.samples.append(sample)
                self.on_progress(
                    f"{cell.workload} x{cell.batch} call {call + 1} round {repeat + 1}: "
                    f"{contestant} {sample.num_tokens / sample.seconds:.1f} tok/s, "
                    f"others {sample.foreign_cores:.2f} cores"
                )

    def _attempts(
        self, contestant: Contestant, player: Player, cell: Cell, prompts: list[list[int]]
    ) -> Iterator[Sample]:
        """Calls until one was quiet or the retries are spent."""
        for _ in range(1 + self.retries):
            player.reset(cell.batch)
            load = player.foreign_load()
            generation = player.generate(prompts, cell.num_tokens)
            firsts = generation.first_token_seconds
            sample = Sample(
                contestant=contestant,
                workload=cell.workload,
                batch=cell.batch,
                call=0,
                repeat=0,
                num_tokens=generation.num_tokens,
                seconds=generation.seconds,
                first_token_seconds=statistics.median(firsts) if firsts else None,
                num_accepted=generation.num_accepted,
                foreign_cores=load.cores(),
                digest=digest(generation.token_ids),
                peak_bytes=player.peak_bytes(),
            )
            yield sample
            if sample.foreign_cores <= self.result.max_foreign_cores:
                return

    def _fail(self, contestant: Contestant, error: PeerError) -> None:
        self.on_progress(f"{contestant} failed: {error}")
        self.result.failed[str(contestant)] = str(error)
