"""What a step costs on one device, or where several share the models: from the bytes and operations
of each rank's share, which the core knows, and from the link between them."""

from __future__ import annotations

import dataclasses

from specdec_lab.planning.costs import Passes, rows_of_passes
from specdec_lab.planning.roofline import Machine
from specdec_native._core import ModelFacts

_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Link:
    """Between devices.

    Attributes:
        latency: seconds until a message of a few bytes is there.
        rate: bytes that a device receives in a second, from all others together.
    """

    latency: float
    rate: float

    def seconds(self, num_bytes: float) -> float:
        """Until all of it is there."""
        return self.latency + num_bytes / self.rate


@dataclasses.dataclass(frozen=True)
class RankCosts:
    """Seconds of steps on `target.num_ranks` times `num_stages` devices, as PassCosts has them.

    Attributes:
        machine: each device.
        link: between any two of them.
        target: each stage's ranks share it.
        num_stages: groups of ranks that hold some of the layers each.
        drafter: what drafts on the first ranks of the last stage; None costs nothing.
        passes: of the drafter.
    """

    machine: Machine
    link: Link
    target: ModelFacts
    num_stages: int = 1
    drafter: ModelFacts | None = None
    passes: Passes = "levels"

    def stage_seconds(self, batch: int, num_rows: float, context: int) -> list[float]:
        """Of a pass of the target, by stage, with what the last one does at its end."""
        seconds = [self._pass_seconds(stage, batch, num_rows, context) for stage in self._stages()]
        seconds[-1] += _num_calls(self.target) * self.link.latency
        if self.num_stages > 1 and self.target.num_ranks == 1:  # the first waits for one call
            seconds[0] += self.link.latency
        return seconds

    def target_seconds(self, batch: int, num_rows: float, context: int) -> float:
        """Until a pass of the target is through all stages."""
        return sum(self.stage_seconds(batch, num_rows, context)) + self._hop_seconds(num_rows)

    def draft_seconds(self, batch: int, length: int, context: int) -> float:
        """Drafting `length` tokens for every request; 0 for no tokens."""
        if self.drafter is None or length == 0:
            return 0.0
        calls = _num_calls(self.drafter) * self.link.latency
        return sum(
            self._pass_seconds(self.drafter, batch, rows, context) + calls
            for rows in rows_of_passes(self.passes, batch, length)
        )

    def draft_waits(self, length: int) -> int:
        """How often the link's latency counts in that."""
        if self.drafter is None or length == 0:
            return 0
        waits = self.drafter.num_exchanges + _num_calls(self.drafter)
        return len(rows_of_passes(self.passes, 1, length)) * waits

    def step_seconds(self, batch: int, length: int, context: int) -> float:
        """Until every one of `batch` requests has had a step with drafts of `length` tokens.

        Each stage works on another group of requests. The slowest stage sets the pace, unless a
        group's own way through all stages takes longer.
        """
        groups = min(self.num_stages, batch)
        each = -(-batch // groups)
        num_rows = each * (1 + length)
        stages = self.stage_seconds(each, num_rows, context)
        stages[-1] += self.draft_seconds(each, length, context)
        return max(sum(stages) + self._hop_seconds(num_rows), groups * max(stages))

    def memory_bytes(self, batch: int, context: int) -> float:
        """Of the rank that needs most."""
        held = [stage.memory_bytes(batch * context) for stage in self._stages()]
        if self.drafter is not None:
            held[-1] += self.drafter.memory_bytes(batch * context)
        return max(held)

    def _stages(self) -> list[ModelFacts]:
        return [self.target.stage(i, self.num_stages) for i in range(self.num_stages)]

    def _pass_seconds(self, model: ModelFacts, batch: int, num_rows: float, context: int) -> float:
        computing = self.machine.seconds(
            model.pass_bytes(num_rows, batch, context), model.pass_flops(num_rows, context)
        )
        received = model.received_bytes(num_rows) / self.link.rate
        return computing + model.num_exchanges * self.link.latency + received

    def _hop_seconds(self, num_rows: float) -> float:
        """Of rows that every stage hands on to the next."""
        row_bytes = _FLOAT_BYTES * num_rows * self.target.hidden_size
        return (self.num_stages - 1) * self.link.seconds(row_bytes)


def _num_calls(model: ModelFacts) -> int:
    """That ranks wait for in a pass: the leader says what to run, and which rows to score."""
    return 2 if model.num_ranks > 1 else 0
