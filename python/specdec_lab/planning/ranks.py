"""The cost of a step on one or several devices, from the bytes and operations of each rank's share
(the core computes these) and from the link between the devices."""

from __future__ import annotations

import dataclasses

from specdec_lab.planning.costs import Passes, rows_of_passes
from specdec_lab.planning.roofline import Machine
from specdec_native._core import ModelFacts

_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Link:
    """The link between devices.

    Attributes:
        latency: seconds until a message of a few bytes arrives.
        rate: bytes per second that a device receives from all others together.
    """

    latency: float
    rate: float

    def seconds(self, num_bytes: float) -> float:
        """Seconds until a message of `num_bytes` has arrived."""
        return self.latency + num_bytes / self.rate


@dataclasses.dataclass(frozen=True)
class RankCosts:
    """The PassCosts of `target.num_ranks` times `num_stages` devices.

    Attributes:
        machine: the rates of each device.
        link: the link between any two devices.
        target: the target's share of one rank.
        num_stages: number of stages, groups of ranks that hold some of the layers each.
        drafter: the draft model's share; it runs on the first ranks of the last stage. None costs
            nothing.
        passes: the drafter's passes.
    """

    machine: Machine
    link: Link
    target: ModelFacts
    num_stages: int = 1
    drafter: ModelFacts | None = None
    passes: Passes = "levels"

    def stage_seconds(self, batch: int, num_rows: float, context: int) -> list[float]:
        """Seconds of a target pass in each stage; the last stage includes the end of the pass."""
        seconds = [self._pass_seconds(stage, batch, num_rows, context) for stage in self._stages()]
        seconds[-1] += _num_calls(self.target) * self.link.latency
        if self.num_stages > 1 and self.target.num_ranks == 1:  # the first waits for one call
            seconds[0] += self.link.latency
        return seconds

    def target_seconds(self, batch: int, num_rows: float, context: int) -> float:
        """Seconds of a target pass through all stages."""
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
        """How often the link's latency is part of draft_seconds()."""
        if self.drafter is None or length == 0:
            return 0
        waits = self.drafter.num_exchanges + _num_calls(self.drafter)
        return len(rows_of_passes(self.passes, 1, length)) * waits

    def step_seconds(self, batch: int, length: int, context: int) -> float:
        """Seconds until all `batch` requests have had a step with drafts of `length` tokens.

        Each stage works on a different group of requests. The slowest stage sets the pace, unless
        one group's way through all stages takes longer.
        """
        groups = min(self.num_stages, batch)
        each = -(-batch // groups)
        num_rows = each * (1 + length)
        stages = self.stage_seconds(each, num_rows, context)
        stages[-1] += self.draft_seconds(each, length, context)
        return max(sum(stages) + self._hop_seconds(num_rows), groups * max(stages))

    def memory_bytes(self, batch: int, context: int) -> float:
        """Bytes of the rank that needs the most memory."""
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
        """Seconds to pass the rows from every stage to the next."""
        row_bytes = _FLOAT_BYTES * num_rows * self.target.hidden_size
        return (self.num_stages - 1) * self.link.seconds(row_bytes)


def _num_calls(model: ModelFacts) -> int:
    """The leader's messages that ranks wait for in a pass: what to run, and which rows to score."""
    return 2 if model.num_ranks > 1 else 0
