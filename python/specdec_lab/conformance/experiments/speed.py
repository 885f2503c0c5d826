"""The speed of answers with drafts over that of answers without."""

from __future__ import annotations

import math
import statistics

from specdec_lab.conformance.experiments.base import Question, Subjects
from specdec_lab.conformance.prompts import KIND_NAMES, prompt
from specdec_lab.conformance.rows import Row
from specdec_lab.conformance.server import Missing, Server

_LEAST_FACTOR = 0.97  # below, drafts cost more than a clock's noise
_REPEATS = 2
_DEVIATIONS = 2.0  # of the mean: a kind is slower only where noise does not explain it


class Speed(Question):
    """One kind of prompt: seconds per token on both servers, asked in turns."""

    def __init__(self, subjects: Subjects, kind: str) -> None:
        name = f"{kind}: not slower than plain"
        self._row = Row("speed", name, ("llama.cpp#23052",), is_promised=False)
        super().__init__(subjects, (self._row,))
        self._kind = KIND_NAMES.index(kind)
        self._factors: list[float] = []
        self._speeds: list[tuple[float, float]] = []

    async def ask(self, number: int) -> None:
        """One prompt, plain and drafted in turns. The least time of each counts."""
        plain = self.subjects.plain
        if plain is None:
            raise Missing("second URL without drafts (--plain)")
        text = prompt(self._kind + number * len(KIND_NAMES))
        seconds: dict[Server, list[float]] = {plain: [], self.server: []}
        for repeat in range(_REPEATS):
            servers = (plain, self.server) if (number + repeat) % 2 else (self.server, plain)
            for server in servers:
                reply = await server.ask(
                    text, temperature=0, max_tokens=2 * self.subjects.num_tokens
                )
                seconds[server].append(reply.seconds / max(reply.num_output_tokens or 1, 1))
        slow, fast = min(seconds[plain]), min(seconds[self.server])
        self._factors.append(slow / fast)
        self._speeds.append((1 / slow, 1 / fast))

    def conclude(self) -> None:
        """One case: the geometric mean of the factors, slower only beyond its noise."""
        if self.is_over or not self._factors:
            return
        logs = [math.log(factor) for factor in self._factors]
        mean = statistics.mean(logs)
        error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        plain, drafted = (statistics.median(pair[i] for pair in self._speeds) for i in (0, 1))
        self._row.note = (
            f"{math.exp(mean):.2f} times plain ({plain:.0f} to {drafted:.0f} tokens/s, "
            f"least {min(self._factors):.2f}, {len(logs)} prompts)"
        )
        is_slower = mean + _DEVIATIONS * error < math.log(_LEAST_FACTOR)
        self._row.add(self._row.note if is_slower else None, {"kind": KIND_NAMES[self._kind]})


def questions(subjects: Subjects) -> list[Question]:
    """The questions about speed."""
    return [Speed(subjects, kind) for kind in KIND_NAMES]
