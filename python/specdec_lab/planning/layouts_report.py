"""Prints a plan over several devices as tables and sentences."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import rich.console
import rich.table

from specdec_lab.planning.layouts import LayoutPlan, LayoutSpeed
from specdec_lab.planning.plan_report import count_requests, drafter_name, milliseconds, new_table

_COLUMNS = 3  # columns of a table


def print_layouts(out: rich.console.Console, plan: LayoutPlan) -> None:
    """Prints all tables and the sentences."""
    devices = plan.devices
    drafts = f", drafts by {drafter_name(plan)}" if plan.speculation else ", without drafts"
    out.print(
        f"{plan.model}{drafts}, on {devices.count} devices: computed for "
        f"{devices.machine.bandwidth / 1e9:.1f} GB/s and {devices.machine.flops / 1e9:.0f} GFLOP/s "
        f"each, linked at {1e6 * devices.link.latency:g} us and {devices.link.rate / 1e9:g} GB/s",
        markup=False,
    )
    for context in plan.contexts:
        out.print(
            "\nTokens/s of all devices and milliseconds of a step (K drafts on d ranks) by layout "
            f"and requests, at {context} tokens of context"
        )
        for first in range(0, len(plan.batches), _COLUMNS):
            out.print(speed_table(plan, context, plan.batches[first : first + _COLUMNS]))
    if plan.draft_sizes:
        out.print(f"Drafting {plan.draft_sizes[0].length} tokens by the number of ranks that share")
        out.print(draft_table(plan))
    out.print(sentence(plan), style="bold", markup=False)


def speed_table(plan: LayoutPlan, context: int, batches: Sequence[int]) -> rich.table.Table:
    """A row for each layout with its best draft size, a column for each of the batch sizes."""
    table = new_table("TP x PP", "replicas", *(str(b) for b in batches))
    best = [plan.best_draft(batch, context) for batch in batches]
    for sizes in sorted(best[0]):
        speeds = [found[sizes] for found in best]
        table.add_row(name(sizes), str(speeds[0].layout.replicas), *map(_cell, speeds))
    for sizes in sorted(plan.too_large):
        table.add_row(name(sizes), "", *("too large" for _ in batches))
    return table


def draft_table(plan: LayoutPlan) -> rich.table.Table:
    """A row for each draft size."""
    table = new_table("ranks", "ms", "waits on the link", "pays below (us of latency)")
    for draft in plan.draft_sizes:
        latency = draft.break_even_latency
        below = "" if draft.size == 1 else "never" if latency is None else f"{1e6 * latency:.1f}"
        table.add_row(str(draft.size), milliseconds(draft.seconds), str(draft.num_waits), below)
    return table


def sentence(plan: LayoutPlan) -> str:
    """The recommended layouts at the shortest context, by the number of requests."""
    best = [plan.best(batch, plan.contexts[0]) for batch in plan.batches]
    runs = [list(run) for _, run in itertools.groupby(best, key=lambda speed: speed.layout)]
    return " ".join(_take(plan, run) for run in runs)


def options(plan: LayoutPlan, speed: LayoutSpeed) -> str:
    """A layout's command-line options."""
    layout = speed.layout
    sizes = {
        "--tensor-parallel-size": layout.tensor_parallel_size,
        "--pipeline-parallel-size": layout.pipeline_parallel_size,
    }
    parts = [f"{flag} {size}" for flag, size in sizes.items() if size > 1]
    if plan.speculation and speed.length > 0:
        config = {**plan.speculation, "num_speculative_tokens": speed.length}
        if layout.draft_tensor_parallel_size > 1:
            config["draft_tensor_parallel_size"] = layout.draft_tensor_parallel_size
        parts.append(f"--speculative-config '{json.dumps(config)}'")
    return " ".join(parts)


def name(sizes: tuple[int, int]) -> str:
    """A layout's name."""
    return f"{sizes[0]} x {sizes[1]}"


def _take(plan: LayoutPlan, run: list[LayoutSpeed]) -> str:
    first, last = run[0], run[-1]
    requests = count_requests(last.batch)
    if last.batch > first.batch:
        requests = f"{first.batch} to {requests}"
    given = options(plan, first)
    replicas = first.layout.replicas
    engines = "one engine" if replicas == 1 else f"{replicas} replicas"
    use = f"with {given}" if given else "on a device each, without drafts"
    speeds = (
        f"{first.tokens_per_second:.0f} tokens/s at {milliseconds(first.step_seconds)} ms a step"
    )
    if last.batch > first.batch:
        speeds += f", {last.tokens_per_second:.0f} at {milliseconds(last.step_seconds)} ms"
    return f"With {requests} take {engines} {use}: {speeds}."


def _cell(speed: LayoutSpeed) -> str:
    drafts = (
        f" (K{speed.length} d{speed.layout.draft_tensor_parallel_size})" if speed.length else ""
    )
    return f"{speed.tokens_per_second:.0f} {milliseconds(speed.step_seconds)}{drafts}"
