"""Prints a plan as tables and one sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence

import rich.box
import rich.console
import rich.table

from specdec_lab.planning.layouts import LayoutPlan
from specdec_lab.planning.plan import RATES, WORTH_IT, Plan, Prediction

_SHOWN_LENGTHS = (0, 1, 2, 4, 8, 16, 32)


def print_plan(out: rich.console.Console, plan: Plan) -> None:
    """Prints all tables and the sentence."""
    ways = "measured" if plan.is_measured else "computed from bytes and operations"
    machine = plan.machine
    reached = "passes reached" if plan.is_measured else "the machine has"
    out.print(
        f"{plan.model}, drafts by {drafter_name(plan)}: costs {ways}; {reached} "
        f"{machine.bandwidth / 1e9:.1f} GB/s and {machine.flops / 1e9:.0f} GFLOP/s",
        markup=False,
    )
    for context in plan.contexts:
        out.print(
            f"\nMilliseconds of a step by requests and drafts of each, and + of drafting, at "
            f"{context} tokens of context"
        )
        out.print(cost_table(plan, context))
    for context in plan.contexts:
        out.print(
            f"Speed-up (and best draft length) by share of drafts kept and requests, at {context} "
            "tokens of context"
        )
        out.print(speedup_table(plan, context))
    out.print("Roofline: floating-point operations for each byte that is read")
    out.print(roofline_table(plan))
    out.print(sentence(plan), style="bold", markup=False)


def drafter_name(plan: Plan | LayoutPlan) -> str:
    """The drafter in a few words."""
    entries = plan.speculation.get("drafters") or [plan.speculation]
    return " + ".join(str(e.get("model") or e.get("method")) for e in entries)


def cost_table(plan: Plan, context: int) -> rich.table.Table:
    """A row for each batch size, a column for each draft length."""
    lengths = [n for n in range(plan.longest + 1) if n in {*_SHOWN_LENGTHS, plan.longest}]
    table = new_table("requests", *(str(n) for n in lengths))
    costs = {(c.batch, c.length): c for c in plan.costs if c.context == context}
    for batch in plan.batches:
        cells = []
        for length in lengths:
            cost = costs[batch, length]
            drafting = f" +{milliseconds(cost.draft_seconds)}" if length else ""
            cells.append(f"{milliseconds(cost.target_seconds)}{drafting}")
        table.add_row(str(batch), *cells)
    return table


def speedup_table(plan: Plan, context: int) -> rich.table.Table:
    """A row for each acceptance rate, a column for each batch size; 1.00 is plain decoding."""
    table = new_table("kept", *(str(b) for b in plan.batches), "up to")
    last = {b.rate: b.batch for b in plan.last_batches if b.context == context}
    measured = [] if plan.acceptance is None else [None]
    for rate in (*RATES, *measured):
        name = f"{rate:.0%}" if rate is not None else "expected"
        cells = [_cell(p) for p in plan.predicted(rate, context)]
        table.add_row(name, *cells, _batch_text(last[rate], plan.batches))
    rates = [b.rate for b in plan.break_even if b.context == context]
    table.add_section()
    table.add_row("break-even", *("never" if r is None else f"{r:.0%}" for r in rates), "")
    return table


def roofline_table(plan: Plan) -> rich.table.Table:
    """A row for each pass."""
    table = new_table("pass", "batch", "rows", "context", "FLOP/byte", "GB/s", "GFLOP/s", "limit")
    for point in plan.points:
        table.add_row(
            point.name,
            str(point.batch),
            str(point.num_rows),
            str(point.context),
            f"{point.intensity:.1f}",
            f"{point.bandwidth / 1e9:.1f}",
            f"{point.flops / 1e9:.0f}",
            "operations" if point.intensity > plan.machine.ridge else "memory",
        )
    return table


def sentence(plan: Plan) -> str:
    """The recommendation: what to switch on."""
    context = plan.contexts[0]
    if plan.acceptance is None:
        return _sentence_by_rate(plan, context)
    predictions = plan.predicted(None, context)
    paying = [p for p in predictions if p.speedup >= WORTH_IT]
    if not paying:
        best = max(predictions, key=lambda p: p.speedup)
        return (
            f"Leave speculation by {drafter_name(plan)} off: with {_first_rate(plan):.0%} of its "
            f"first drafts kept it brings at most {best.speedup:.2f}x (batch {best.batch})."
        )
    first = max(paying, key=lambda p: p.speedup)
    end = next(b.batch for b in plan.last_batches if (b.rate, b.context) == (None, context))
    until = (
        "at every batch size that was asked"
        if end >= max(plan.batches)
        else f"up to {count_requests(end)} at a time, and leave it off above"
    )
    tokens = plan.acceptance.cut(first.length).tokens_per_step
    return (
        f"Switch on {switch(plan, first.length)} {until}: with {tokens:.2f} tokens a step it is "
        f"expected to decode {first.speedup:.2f} times as fast at batch {first.batch}."
    )


def _sentence_by_rate(plan: Plan, context: int) -> str:
    rates = {b.batch: b.rate for b in plan.break_even if b.context == context}
    first = rates[plan.batches[0]]
    if first is None:
        return (
            f"Leave speculation by {drafter_name(plan)} off: at batch {plan.batches[0]} no draft "
            "pays even if all are kept."
        )
    lengths = [p.length for p in plan.predicted(0.6, context) if p.batch == plan.batches[0]]
    last = max(b for b, rate in rates.items() if rate is not None)
    largest = rates[last]
    also = f", at batch {last} above {largest:.0%}" if last > plan.batches[0] else ""
    return (
        f"Switch on {switch(plan, max(1, lengths[0]))} where more than {first:.0%} of its drafts "
        f"are kept at batch {plan.batches[0]}{also}."
    )


def switch(plan: Plan, length: int) -> str:
    """The command-line option for drafts of this length."""
    config = {**plan.speculation, "num_speculative_tokens": length}
    simple = {"method", "model", "num_speculative_tokens"}
    if config.keys() - simple:
        return f"--speculative-config '{json.dumps(config)}'"
    names = {"method": "--spec-method", "model": "--spec-model"}
    parts = [f"{flag} {config[key]}" for key, flag in names.items() if key in config]
    return " ".join([*parts, f"--spec-tokens {length}"])


def milliseconds(seconds: float) -> str:
    """Milliseconds as tables show them."""
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _cell(prediction: Prediction) -> str:
    length = f" ({prediction.length})" if prediction.length else "    "
    return f"{prediction.speedup:.2f}{length}"


def _batch_text(batch: int, batches: Sequence[int]) -> str:
    if batch == 0:
        return "none"
    return f"{batch}" if batch < max(batches) else f"{batch}+"


def count_requests(count: int) -> str:
    """A number of requests in words."""
    return f"{count} request{'' if count == 1 else 's'}"


def _first_rate(plan: Plan) -> float:
    return 0.0 if plan.acceptance is None else plan.acceptance.rate


def new_table(*columns: str) -> rich.table.Table:
    """A table without rows."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table
