"""`specdec-native serve`: the model of the command line behind an HTTP API."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from specdec_cli.serve_parser import UsageError, help_text, parse
from specdec_cli.serve_settings import Settings, settings_of
from specdec_native.checkpoints.errors import MissingDependencyError
from specdec_native.engine import Engine

_PACKAGES = ("fastapi", "httptools", "pydantic", "starlette", "uvicorn", "uvloop", "yaml")
_METRICS = ("prometheus_client",)


def add_to(app: typer.Typer) -> None:
    """Adds the command. Its flags are read by a parser that knows vLLM's ways of writing them."""

    @app.command(
        "serve",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def serve_command(context: typer.Context) -> None:
        """Serve a model over HTTP by OpenAI's API; takes the flags of `vllm serve`."""
        arguments = list(context.args)
        if not {"-h", "--help", "--help-all"}.isdisjoint(arguments):
            print(help_text(everything="--help-all" in arguments), end="")
            raise typer.Exit
        try:
            code = serve(arguments)
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
        raise typer.Exit(code)


def serve(arguments: Sequence[str]) -> int:
    """Serves what the arguments say until the server is told to end; returns the exit code."""
    try:
        from specdec_serve.http import run_server  # noqa: PLC0415 - needs the optional packages
        from specdec_serve.http.service import Service  # noqa: PLC0415

        settings = settings_of(parse(arguments))
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in (*_PACKAGES, *_METRICS):
            raise
        raise MissingDependencyError(package, "specdec-native serve", "serve") from error
    _warn(settings)
    listener = run_server.Listener(settings.listen)
    engine = Engine(settings.model, **settings.engine)
    with engine:
        service = Service(engine, settings.server)
        try:
            return run_server.run(service, listener)
        finally:
            service.close()


def _warn(settings: Settings) -> None:
    if settings.without_effect:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in settings.without_effect)
        print(f"warning: without effect here: {flags}", file=sys.stderr)
