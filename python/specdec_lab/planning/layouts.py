"""How to spread a model over devices: every layout with the speed that is predicted for it."""

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
    """What there is.

    Attributes:
        count: of devices.
        machine: each of them.
        link: between any two.
        memory: bytes of a device; None for enough.
    """

    count: int
    machine: Machine
    link: Link
    memory: float | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """Options of an engine, and how many such engines the devices hold."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    draft_tensor_parallel_size: int
    replicas: int


@dataclasses.dataclass(frozen=True)
class LayoutSpeed:
    """What a layout does with `batch` requests, which its replicas share, at `context` tokens each.

    Attributes:
        length: the best draft length; 0 for none.
        step_seconds, draft_seconds: of a step of a replica, and of its drafting.
        tokens_per_second: of all replicas.
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
    """What drafting costs on `size` devices, for one request of the shortest context.

    Attributes:
        length: tokens of a draft, the longest that was asked.
        seconds: of drafting them.
        num_waits: how often the link's latency counts in these seconds.
        break_even_latency: the link's, below which this is faster than one device; None where it
            never is, and for one device.
    """

    size: int
    length: int
    seconds: float
    num_waits: int
    break_even_latency: float | None


@dataclasses.dataclass
class LayoutPlan:
    """Everything that was found.

    Attributes:
        model, speculation: as in Plan; `speculation` is empty for plain decoding.
        devices: what was planned for.
        batches, contexts: in rising order.
        acceptance: of the drafts; None for plain decoding.
        speeds: by context, batch, then layout.
        too_large: pairs of tensor and pipeline parallel sizes that need more memory than there is.
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
        """What the command writes with --json."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    def best(self, batch: int, context: int) -> LayoutSpeed:
        """The layout of the most tokens a second; of equals the fewest ranks that draft."""
        return max(self.at(batch, context), key=_preference)

    def at(self, batch: int, context: int) -> list[LayoutSpeed]:
        """All layouts."""
        return [s for s in self.speeds if (s.batch, s.context) == (batch, context)]

    def best_draft(self, batch: int, context: int) -> dict[tuple[int, int], LayoutSpeed]:
        """By tensor and pipeline parallel size, the best draft size."""
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
    """Every layout whose ranks divide the devices. `targets` and `drafters` are the shares of all
    sizes that work; without drafters nothing that drafts runs a model."""
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
    """With the draft length that is best for it. Requests are spread evenly over the replicas, and
    the fullest one counts."""
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
