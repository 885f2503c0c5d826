"""`specdec-native bench`: load on servers, and an engine's latency and throughput."""

from __future__ import annotations

import typer

from specdec_cli import bench_engine, bench_serve
from specdec_cli.command_options import SPECULATION_OPTIONS, command, engine_options


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    bench = typer.Typer(
        help="Measure a server under load, or an engine's latency and throughput.",
        no_args_is_help=True,
    )
    app.add_typer(bench, name="bench")
    for name, function in (
        ("serve", bench_serve.serve_command),
        ("latency", bench_engine.latency_command),
        ("throughput", bench_engine.throughput_command),
    ):
        add = command(bench, name, engine=engine_options(), speculation=SPECULATION_OPTIONS)
        add(function)
