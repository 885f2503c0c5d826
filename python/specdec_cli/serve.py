"""`specdec-native serve`: serves a model over HTTP."""

from __future__ import annotations

import sys

import typer

from specdec_cli.command_options import Group, command, keyword
from specdec_cli.serve_flags import GROUPS
from specdec_cli.serve_parser import FlagCommand
from specdec_cli.serve_settings import Settings, settings_of
from specdec_cli.serve_vllm_flags import WITHOUT_EFFECT, other_flags
from specdec_native.checkpoints.errors import MissingDependencyError
from specdec_native.engine import Engine
from specdec_vllm.arguments import REASONS

_PACKAGES = (
    *("fastapi", "httptools", "prometheus_client", "pydantic", "starlette", "uvicorn", "uvloop"),
)
_OTHERS = other_flags()
_WITHOUT_EFFECT = [f.spellings[0] for f in _OTHERS if f.name in {*WITHOUT_EFFECT, *REASONS}]
_MODEL = typer.Argument(metavar="MODEL", help="A directory, a .gguf file or a model name.")
_FLAGS = [
    keyword("first_argument", str | None, _MODEL),
    keyword("config", str | None, typer.Option(help="YAML with these flags as its keys.")),
    *(flag.parameter(title) for title, flags in GROUPS.items() for flag in flags),
    *(flag.parameter(None) for flag in _OTHERS),
]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    epilog = f"Accepted, and without effect here: {', '.join(_WITHOUT_EFFECT)}."
    command(app, "serve", kind=FlagCommand, epilog=epilog, flags=_FLAGS)(serve_command)


def serve_command(*, flags: Group) -> None:
    """Serve a model over HTTP, by OpenAI's API.

    A command of vLLM's `serve` works with the program's name changed.
    """
    try:
        from specdec_serve.http import run_server  # noqa: PLC0415 - needs the optional packages
        from specdec_serve.http.service import Service  # noqa: PLC0415

        settings = settings_of(flags)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _PACKAGES:
            raise
        raise MissingDependencyError(package, "specdec-native serve", "serve") from error
    _warn(settings)
    listener = run_server.Listener(settings.listen)
    with Engine(settings.model, **settings.engine) as engine:
        service = Service(engine, settings.server)
        try:
            code = run_server.run(service, listener)
        finally:
            service.close()
    raise typer.Exit(code)


def _warn(settings: Settings) -> None:
    if settings.without_effect:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in settings.without_effect)
        print(f"warning: without effect here: {flags}", file=sys.stderr)
