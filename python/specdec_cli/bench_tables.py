"""The tables that `specdec-native bench` prints."""

from __future__ import annotations

import rich.box
import rich.console
import rich.table
import rich.text

from specdec_lab.benchmark.answers import Acceptance
from specdec_lab.benchmark.batches import LatencyReport, ThroughputReport
from specdec_lab.benchmark.comparison import Comparison, Ratio
from specdec_lab.benchmark.metrics import PERCENTILES, Metrics
from specdec_lab.benchmark.serving_report import ServeReport, ServerReport

_TIMES = {
    "ttft": "TTFT, to the first token",
    "tpot": "TPOT, per output token",
    "itl": "ITL, between chunks",
    "e2el": "E2EL, whole answer",
}
_FIGURES = {
    "output_throughput": "output tokens/s",
    "mean_ttft": "mean time to first token",
    "mean_tpot": "mean time per output token",
    "mean_e2el": "mean time of an answer",
}


def print_serve_report(out: rich.console.Console, report: ServeReport) -> None:
    """Prints the results of `bench serve`."""
    out.print(load_table(report))
    out.print(times_table(report))
    for server in report.servers:
        if len(server.categories) > 1:
            out.print(f"Means in milliseconds, {server.name}:", markup=False)
            out.print(category_table(server))
        line = acceptance_line(server)
        if line is not None:
            out.print(line, markup=False)
        for error, count in server.errors.items():
            out.print(f"{server.name}: {count} failed: {error}", markup=False, style="red")
    for comparison in report.comparisons:
        out.print(f"\n{comparison.name} over {comparison.first}:", markup=False)
        out.print(comparison_table(comparison))
        out.print(
            f"{comparison.num_same} of {comparison.num_compared} answers have the same text; "
            f"{report.num_rounds} rounds",
            markup=False,
        )


def load_table(report: ServeReport) -> rich.table.Table:
    """Requests and throughput, a column for each server."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for server in report.servers:
        table.add_column(rich.text.Text(server.name), justify="right", overflow="fold")
    metrics = [server.metrics for server in report.servers]
    lines = {
        "answered": [str(m.completed) for m in metrics],
        "failed": [str(m.failed) for m in metrics],
        "seconds": [f"{m.seconds or 0:.2f}" for m in metrics],
        "requests/s": [_per_second(m, m.completed) for m in metrics],
        "good requests/s": [_per_second(m, m.num_good or 0) for m in metrics],
        "input tokens": [str(m.num_input_tokens) for m in metrics],
        "output tokens": [str(m.num_output_tokens) for m in metrics],
        "output tokens/s": [_per_second(m, m.num_output_tokens) for m in metrics],
    }
    if not report.goodput:
        del lines["good requests/s"]
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table


def times_table(report: ServeReport) -> rich.table.Table:
    """Times in milliseconds, under each server."""
    table = _table("milliseconds", "mean", "std", *(f"p{point}" for point in PERCENTILES))
    for server in report.servers:
        if len(report.servers) > 1:
            _add_heading(table, server.name)
        for name, shown in _TIMES.items():
            times = getattr(server.metrics, name)
            if times is not None:
                figures = [times.mean, times.std, *times.percentiles.values()]
                table.add_row(shown, *(f"{figure:.2f}" for figure in figures))
    return table


def category_table(server: ServerReport) -> rich.table.Table:
    """A line for each category of prompts; times are means in milliseconds."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("category", overflow="fold")
    for column in ("answered", "TTFT", "TPOT", "E2EL", "per step", "accepted"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, metrics in server.categories.items():
        times = [metrics.ttft, metrics.tpot, metrics.e2el]
        means = ["" if found is None else f"{found.mean:.2f}" for found in times]
        drafts = _acceptance(metrics.acceptance)
        table.add_row(rich.text.Text(name), str(metrics.completed), *means, *drafts)
    return table


def comparison_table(comparison: Comparison) -> rich.table.Table:
    """Ratios of a server's figures to those of the first one."""
    table = _table("", "ratio", "95% confidence")
    for name, ratio in comparison.ratios.items():
        table.add_row(_FIGURES[name], f"{ratio.mean:.3f}", _interval(ratio))
    return table


def acceptance_line(server: ServerReport) -> str | None:
    """How the drafts of all answers fared."""
    acceptance = server.metrics.acceptance
    if acceptance is None or not acceptance.num_drafts:
        return None
    drafts = acceptance.num_drafts
    kept = [count for count in acceptance.accepted_per_position if count]
    shares = " ".join(f"{count / drafts:.0%}" for count in kept)
    per_step, accepted = _acceptance(acceptance)
    return (
        f"{server.name}: {drafts} drafts, {per_step} tokens a drafted step, {accepted} of "
        f"{acceptance.num_draft_tokens} drafted tokens accepted; by position: {shares}"
    )


def latency_table(report: LatencyReport) -> rich.table.Table:
    """Seconds of a batch."""
    table = _table("", "mean", *(f"p{point}" for point in report.percentiles))
    figures = [report.mean, *report.percentiles.values()]
    table.add_row("ms a batch", *(f"{1e3 * seconds:.2f}" for seconds in figures))
    return table


def throughput_table(report: ThroughputReport) -> rich.table.Table:
    """Requests and tokens per second."""
    table = _table("requests", "seconds", "requests/s", "tokens/s", "output tokens/s")
    fields = report.to_json()
    rates = ("requests_per_second", "tokens_per_second", "output_tokens_per_second")
    table.add_row(
        str(report.num_requests),
        f"{report.seconds:.2f}",
        *(f"{fields[name]:.2f}" for name in rates),
    )
    return table


def drafts_table(report: ThroughputReport) -> rich.table.Table:
    """How the drafts of each category fared."""
    table = _table("category", "drafts", "per step", "accepted")
    for name, acceptance in report.categories.items():
        cells = [str(acceptance.num_drafts), *_acceptance(acceptance)]
        table.add_row(rich.text.Text(name), *cells)
    return table


def _table(first: str, *columns: str) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _add_heading(table: rich.table.Table, name: str) -> None:
    table.add_section()
    table.add_row(rich.text.Text(name, style="bold"))


def _per_second(metrics: Metrics, count: int) -> str:
    return f"{metrics.per_second(count) or 0:.2f}"


def _acceptance(acceptance: Acceptance | None) -> tuple[str, str]:
    """Tokens of a step that drafted, and the share of drafts that was kept."""
    if acceptance is None or not acceptance.num_drafts:
        return "", ""
    kept = acceptance.num_accepted_tokens
    length = 1 + kept / acceptance.num_drafts
    return f"{length:.2f}", f"{kept / max(1, acceptance.num_draft_tokens):.0%}"


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return "needs several rounds"
    return f"{ratio.low:.3f} to {ratio.high:.3f}"
