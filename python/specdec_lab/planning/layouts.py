"""How to spread a model over devices: every layout with its predicted speed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_lab.planning.costs import Passes
from specdec_lab.planning.plan import SCHEMA
from specdec_lab.planning.ranks import Link, RankCosts
from specdec_lab.planning.roofline import Machine
from specdec_lab.planning.speedup import Acceptance
from specdec_native._core import ModelFacts


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices to plan for.

    Attributes:
        count: number of devices.
        machine: the rates of each device.
        link: the link between any two devices.
        memory: bytes of a device; None for no limit.
    """

    count: int
    machine: Machine
    link: Link
    memory: float | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """Options of an engine, and how many such engines (replicas) the devices hold."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    draft_tensor_parallel_size: int
    replicas: int


@dataclasses.dataclass(frozen=True)
class LayoutSpeed:
    """A layout's speed with `batch` requests over all its replicas, at `context` tokens each.

    Attributes:
        length: the best draft length; 0 for none.
        step_seconds, draft_seconds: time of a replica's step, and of drafting in it.
        tokens_per_second: the sum over all replicas.
    """

    layout: Layout
    batch: int
    context: int
    length: int
    step_seconds: float
    draft_seconds: float
    tokens_per_second: float


@dataclasses.dataclass(frozen=True)
class DraftSize:
    """The cost of drafting on `size` devices, for one request of the shortest context.

    Attributes:
        length: tokens of a draft, the longest in question.
        seconds: time to draft them.
        num_waits: how often the link's latency is part of these seconds.
        break_even_latency: link latency below which this is faster than one device; None where it
            never is, and for one device.
    """

    size: int
    length: int
    seconds: float
    num_waits: int
    break_even_latency: float | None


@dataclasses.dataclass
class LayoutPlan:
    """The plan.

    Attributes:
        model, speculation: as in Plan; `speculation` is empty for plain decoding.
        devices: the devices that were planned for.
        batches, contexts: in rising order.
        acceptance: the drafts' acceptance; None for plain decoding.
        speeds: ordered by context, batch, then layout.
        too_large: pairs of tensor and pipeline parallel sizes that need more memory than a device
            has.
        draft_sizes: the smallest first; empty where no model drafts.
    """

    model: str
    speculation: Mapping[str, Any]
    devices: Devices
    batches: Sequence[int]
    contexts: Sequence[int]
    acceptance: Acceptance | None
    speeds: Sequence[LayoutSpeed]
    too_large: Sequence[tuple[int, int]]
    draft_sizes: Sequence[DraftSize]

    def to_json(self) -> dict[str, Any]:
        """The JSON that the command writes with --json."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    def best(self, batch: int, context: int) -> LayoutSpeed:
        """The layout with the most tokens per second; among equals the fewest ranks."""
        return max(self.at(batch, context), key=_preference)

    def at(self, batch: int, context: int) -> list[LayoutSpeed]:
        """All layouts at a batch size and context."""
        return [s for s in self.speeds if (s.batch, s.context) == (batch, context)]

    def best_draft(self, batch: int, context: int) -> dict[tuple[int, int], LayoutSpeed]:
        """The best draft size for each pair of tensor and pipeline parallel sizes."""
        found: dict[tuple[int, int], LayoutSpeed] = {}
        for speed in sorted(self.at(batch, context), key=_preference):
            layout = speed.layout
            found[layout.tensor_parallel_size, layout.pipeline_parallel_size] = speed
        return found


def _preference(speed: LayoutSpeed) -> tuple[float, int, int]:
    layout = speed.layout
    ranks = layout.tensor_parallel_size * layout.pipeline_parallel_size
    return speed.tokens_per_second, -ranks, -layout.draft_tensor_parallel_size


def layout_costs(
    devices: Devices,
    targets: Sequence[ModelFacts],
    drafters: Sequence[ModelFacts],
    passes: Passes,
) -> list[tuple[Layout, RankCosts]]:
    """Every layout whose ranks divide the devices. `targets` and `drafters` hold the facts for
    every possible number of ranks; `drafters` is empty where drafting runs no model."""
    found = []
    for target in targets:
        size = target.num_ranks
        for stages in range(1, target.num_layers + 1):
            if devices.count % (size * stages):
                continue
            replicas = devices.count // (size * stages)
            for drafter in (d for d in drafters or (None,) if d is None or d.num_ranks <= size):
                layout = Layout(size, stages, drafter.num_ranks if drafter else 1, replicas)
                costs = RankCosts(devices.machine, devices.link, target, stages, drafter, passes)
                found.append((layout, costs))
    return found


def layout_speed(
    layout: Layout, costs: RankCosts, batch: int, context: int, acceptance: Acceptance | None
) -> LayoutSpeed:
    """The speed at the layout's best draft length. Requests are spread evenly over the replicas,
    and the replica with the most requests counts."""
    each = -(-batch // layout.replicas)
    chain = acceptance or Acceptance((), ())
    rates = []
    for length in range(chain.length + 1):
        seconds = costs.step_seconds(each, length, context)
        rates.append((batch * chain.cut(length).tokens_per_step / seconds, -length, seconds))
    rate, shorter, seconds = max(rates)
    drafting = costs.draft_seconds(each, -shorter, context)
    return LayoutSpeed(layout, batch, context, -shorter, seconds, drafting, rate)


def predict_layouts(
    layouts: Sequence[tuple[Layout, RankCosts]],
    devices: Devices,
    batches: Sequence[int],
    contexts: Sequence[int],
    acceptance: Acceptance | None,
) -> dict[str, Any]:
    """The fields of a LayoutPlan that follow from costs: speeds, too_large, draft_sizes."""
    longest = acceptance.length if acceptance is not None else 0
    memory = devices.memory
    speeds, too_large = [], []
    for layout, costs in layouts:
        each = -(-batches[-1] // layout.replicas)
        if memory is not None and costs.memory_bytes(each, contexts[-1] + longest + 1) > memory:
            sizes = (layout.tensor_parallel_size, layout.pipeline_parallel_size)
            if sizes not in too_large:
                too_large.append(sizes)
            continue
        speeds += [
            layout_speed(layout, costs, batch, context, acceptance)
            for context in contexts
            for batch in batches
        ]
    if not speeds:
        raise ValueError(
            f"--memory: no layout over {devices.count} devices holds the model and the keys and "
            f"values of {batches[-1]} requests of {contexts[-1]} tokens; give more devices, fewer "
            "requests or --quantization"
        )
    speeds.sort(key=lambda s: (s.context, s.batch))
    return {
        "speeds": speeds,
        "too_large": too_large,
        "draft_sizes": _draft_sizes(layouts, longest, contexts[0]) if longest else [],
    }


def _draft_sizes(
    layouts: Sequence[tuple[Layout, RankCosts]], length: int, context: int
) -> list[DraftSize]:
    by_size = {costs.drafter.num_ranks: costs for _, costs in layouts if costs.drafter is not None}
    found: list[DraftSize] = []
    for size, costs in sorted(by_size.items()):
        seconds = costs.draft_seconds(1, length, context)
        waits = costs.draft_waits(length)
        latency = None
        if found:  # the first is one device
            saved = found[0].seconds - (seconds - waits * costs.link.latency)
            latency = saved / waits if saved > 0 else None
        found.append(DraftSize(size, length, seconds, waits, latency))
    return found
