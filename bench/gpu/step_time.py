"""Predicts the time of a graph's launches by putting the figures of launches.py on a clock.

Memory reads one kernel's weights after another's. Where a kernel waits, memory rests, unless the
next kernel's first weights are already asked for: that takes room for both on a multiprocessor, and
a launch that starts early. Otherwise a boundary costs its whole gap. Meanwhile a product's
multiprocessors read from L2, at its rate: weights, rows again for each tile, weights again for each
tile of rows. The constants were fitted to an H200; a report's own rate of reading memory takes the
place of that one's (`costs_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .launches import ASSUMED, Costs, Gpu, Kernel, Record, kernels_of


def fit_together(first: Kernel, second: Kernel, gpu: Gpu) -> bool:
    """Whether a multiprocessor has room for the blocks of both."""
    (registers, shared_bytes), (more, more_bytes) = first.held(gpu), second.held(gpu)
    return registers + more <= gpu.registers and shared_bytes + more_bytes <= gpu.shared_bytes


@dataclass(frozen=True)
class Timed:
    """When a kernel runs, in seconds from the first one's start."""

    kernel: Kernel
    begin: float
    end: float
    hidden: bool  # it was there before the kernel before it had ended


def timeline(kernels: Sequence[Kernel], gpu: Gpu, costs: Costs) -> list[Timed]:
    """The kernels of a graph, one after another."""
    timed: list[Timed] = []
    memory = 0.0  # time from which memory is free
    rest = (0.0, 0.0)  # idle time of memory before that, while the earlier kernel waits
    released = 0.0  # when the kernel before has waited
    rate = costs.read_rate * costs.share
    for index, kernel in enumerate(kernels):
        end_before = timed[-1].end if timed else 0.0
        before = kernels[index - 1] if index > 0 else None
        hidden = before is not None and kernel.starts_early and fit_together(before, kernel, gpu)
        if before is None:
            begin = 0.0
        elif hidden:
            trigger = timed[-1].begin if before.lets_next_early else released
            # A multiprocessor has room for two, not for three.
            begin = max(trigger, timed[-2].end if len(timed) > 1 else 0.0)
        else:
            begin = end_before + costs.gap
        asks = begin + kernel.asks
        early_seconds = kernel.early_bytes / rate
        in_rest = min(early_seconds, max(0.0, rest[1] - max(rest[0], asks)))
        memory = max(memory, asks) + early_seconds - in_rest
        released = max(begin, end_before + (costs.wait if before is not None else 0.0))
        streams = max(released + kernel.before, asks)
        left = kernel.bytes - kernel.early_bytes
        rest = (memory, streams if left > 0 else memory)
        if left > 0:
            memory = max(memory, streams) + left / rate
        end = max(memory, streams + kernel.work) + kernel.after
        timed.append(Timed(kernel, begin, end, hidden))
    return timed


def record_seconds(record: Record, costs: Costs) -> float | None:
    """Predicted seconds of a record, from its launches; None if it has none."""
    if not (kernels := kernels_of(record, costs)):
        return None
    gpu = Gpu(multiprocessors=int(record["threads"]))
    return timeline(kernels, gpu, costs)[-1].end / float(record.get("sets", 1))


def weight_bytes(record: Record) -> float:
    """Bytes of weights that a record's launches read, if all experts are equally likely."""
    kernels = kernels_of(record, ASSUMED)
    return sum(kernel.bytes for kernel in kernels if not kernel.name.startswith("attention"))


def costs_of(records: Sequence[Record], base: Costs = ASSUMED) -> Costs:
    """The constants, with the rate of reading memory from the records of `ceilings`."""
    rates = [record["gb_per_s"] for record in records if record["kernel"] == "read"]
    return replace(base, read_rate=1e9 * max(rates)) if rates else base
