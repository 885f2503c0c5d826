"""How long the kernels of a pass should take: what step_model.py lists, on a clock.

Memory reads one kernel's weights after another's. Where a kernel waits, memory rests, unless the
next kernel's first weights are already asked for: that takes room for both on a multiprocessor, and
a launch that starts early. Otherwise a boundary costs its whole gap. Meanwhile a product's
multiprocessors read from L2, at its rate: weights, rows again for each tile, weights again for each
tile of rows. No GPU has confirmed the constants; where a report has measured one, the model takes
that (`costs_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .product_model import Gpu, Node, early_starts, fit_together
from .step_model import Config, greedy_nodes, weight_bytes

_US = 1e-6


@dataclass(frozen=True)
class Costs:
    """Constants, in seconds: for an H200, estimated from machine code until they are measured."""

    read_rate: float = 4.3e12  # bytes a second
    share: float = 0.95  # of that rate within a kernel
    l2_rate: float = 5.5e12  # bytes a second from L2 to all multiprocessors: a guess
    flop_rate: float = 350e12  # of mma instructions
    gap: float = 2.2 * _US  # between kernels that do not run beside each other
    wait: float = 1.0 * _US  # from the end of a kernel to what waits for it
    finish: float = 0.3 * _US  # from a product's last weights to its end
    finish_meeting: float = 2.0 * _US  # the same where blocks meet in L2: heads, likeliest tokens
    finish_slices: float = 3.5 * _US  # the same where partial sums meet in L2
    rows_shared: float = 1.0 * _US  # to prepare rows in every block
    rows_exchanged: float = 2.5 * _US  # to prepare them in turns, and meet
    rows_node: float = 2.5 * _US  # to prepare them in a kernel of its own
    plan: float = 2.3 * _US  # of a block of attention
    open_item: float = 2.5 * _US  # to find the rows of an item's keys
    read_item: float = 0.8 * _US  # to read what a layer before found: one way to L2 and back
    query: float = 0.5 * _US
    tile: float = 0.6 * _US  # of 64 positions and 16 pairs
    join: float = 0.5 * _US  # partial results, and what each adds
    join_split: float = 0.13 * _US
    small: float = 1.0 * _US  # of a kernel that does little
    step: float = 22.0 * _US  # beside the pass: rows, walk, commit
    sampler: float = 10.0 * _US  # scan and finish of greedy rows, where the head does not do it


ASSUMED = Costs()


@dataclass(frozen=True)
class Parts:
    """What a kernel does after it has waited."""

    before: float  # until it streams what it had not asked for
    work: float  # beside the reading of memory
    after: float  # from the last byte to its end


def parts_of(node: Node, costs: Costs) -> Parts:
    """By its role."""
    if node.role == "attention":
        tiles = node.block_tiles * node.item_columns * costs.tile
        opens = (node.block_items - 1) * (costs.read_item if node.reads_plan else costs.open_item)
        after = costs.join + node.splits * costs.join_split if node.splits > 1 else 0.0
        return Parts(costs.query, opens + tiles, after)
    if node.role == "rows":
        return Parts(0.0, costs.rows_node, 0.0)
    if node.role == "small":
        return Parts(0.0, costs.small, 0.0)
    before = {"shared": costs.rows_shared, "exchanged": costs.rows_exchanged}.get(node.rows, 0.0)
    after = costs.finish_meeting if node.blocks_meet else costs.finish
    if node.grid[2] > 1:
        after = max(after, costs.finish_slices)
    work = max(node.flops / costs.flop_rate, node.l2_bytes / costs.l2_rate)
    return Parts(before, work, after)


def first_item_seconds(node: Node, costs: Costs) -> float:
    """From a kernel's begin until it asks for its first bytes."""
    if node.role != "attention":
        return 0.0
    return costs.read_item if node.reads_plan else costs.plan + costs.open_item


@dataclass(frozen=True)
class Timed:
    """When a kernel runs, in seconds from the first one's start."""

    node: Node
    begin: float
    end: float
    hidden: bool  # it was there before the kernel before it had ended


def timeline(sequence: Sequence[Node], gpu: Gpu, costs: Costs = ASSUMED) -> list[Timed]:
    """The kernels of a graph, one after another."""
    timed: list[Timed] = []
    memory = 0.0  # is free from here on
    rest = (0.0, 0.0)  # before that, while the kernel before waits
    released = 0.0  # of the kernel before: it has waited
    rate = costs.read_rate * costs.share
    early = early_starts(sequence)
    for index, node in enumerate(sequence):
        end_before = timed[-1].end if timed else 0.0
        before = sequence[index - 1] if index > 0 else None
        hidden = before is not None and early[index] and fit_together(before, node, gpu)
        if before is None:
            begin = 0.0
        elif hidden:
            trigger = timed[-1].begin if before.lets_next_early else released
            # A multiprocessor has room for two, not for three.
            begin = max(trigger, timed[-2].end if len(timed) > 1 else 0.0)
        else:
            begin = end_before + costs.gap
        parts = parts_of(node, costs)
        asks = begin + first_item_seconds(node, costs)
        early_seconds = node.early_bytes / rate
        in_rest = min(early_seconds, max(0.0, rest[1] - max(rest[0], asks)))
        memory = max(memory, asks) + early_seconds - in_rest
        released = max(begin, end_before + (costs.wait if before is not None else 0.0))
        streams = max(released + parts.before, asks)
        left = node.bytes - node.early_bytes
        rest = (memory, streams if left > 0 else memory)
        if left > 0:
            memory = max(memory, streams) + left / rate
        end = max(memory, streams + parts.work) + parts.after
        timed.append(Timed(node, begin, end, hidden))
    return timed


def pass_seconds(sequence: Sequence[Node], gpu: Gpu, costs: Costs = ASSUMED) -> float:
    """Of the graph of these kernels."""
    return timeline(sequence, gpu, costs)[-1].end


def step_seconds(
    config: Config, rows: int, context: int, gpu: Gpu, costs: Costs = ASSUMED
) -> float:
    """Of a greedy step of one request."""
    found = greedy_nodes(config, rows, context, gpu)
    sampler = 0.0 if found[-1].finds_best else costs.sampler
    return pass_seconds(found, gpu, costs) + costs.step + sampler


def repeated_seconds(sequence: Sequence[Node], gpu: Gpu, costs: Costs = ASSUMED) -> float:
    """Of one of many such operations in a row, as cuda_kernel_bench measures them."""
    times = timeline([*sequence] * 8, gpu, costs)
    return (times[-1].end - times[4 * len(sequence) - 1].end) / 4


def floor_seconds(
    config: Config, costs: Costs = ASSUMED, key_bytes: float = 0.0, rows: int = 1
) -> float:
    """Of reading a pass's weights, and so many bytes of keys and values, at the read rate."""
    return (weight_bytes(config, rows) + key_bytes) / costs.read_rate


# ---- constants that a report has measured


def costs_of(records: Sequence[dict[str, Any]], base: Costs = ASSUMED) -> Costs:
    """With what the records of `ceilings` say."""

    def find(kernel: str, overlap: int, figure: str) -> float | None:
        found = [
            record[figure]
            for record in records
            if record["kernel"] == kernel and record.get("overlap") == overlap and figure in record
        ]
        return max(found) if found else None

    costs = base
    for kernel, name in (("read", "read_rate"), ("l2_read", "l2_rate")):
        rates = [record["gb_per_s"] for record in records if record["kernel"] == kernel]
        if rates:
            costs = replace(costs, **{name: 1e9 * max(rates)})
    if (gap := find("graph_reads", 0, "gap_us")) is not None:
        costs = replace(costs, gap=max(0.0, gap) * _US)
    if (wait := find("graph_node", 1, "seconds")) is not None:
        costs = replace(costs, wait=wait)
    return costs
