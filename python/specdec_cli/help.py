"""Help texts of commands: `--help` shows the options people use, `--help-all` all of them.

Names of options are whole at every width: one that does not fit beside its text has a line of its
own.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

import typer.core

# Of the options in panels such as Engine, those that --help shows, too.
COMMON = frozenset(
    [
        *("temperature", "seed", "top_p"),
        *("speculative_config", "spec_method", "spec_model", "spec_tokens"),
        *("device", "dtype", "quantization", "num_threads"),
        *("method", "max_depth", "epochs", "data", "answer_tokens"),
    ]
)
_INDENT = 26  # of texts beside names
_WIDEST = 100


def wrapped(text: str, width: int) -> list[str]:
    """Lines of a text, which are broken at spaces only: `--spec-model` stays whole."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


class WholeNames(argparse.HelpFormatter):
    """Of argparse: breaks no name of an option, and shows what it takes once."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return "\n  ".join(wrapped(f"{', '.join(action.option_strings)} {value}", self._width - 2))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in wrapped(text, width - len(indent)))


class HelpfulCommand(typer.core.TyperCommand):
    """A command whose `--help` leaves out what is in a panel and not COMMON."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes what `--help` shows."""
        formatter.write(self.help_text(ctx, everything=False))

    def help_text(self, ctx: Any, *, everything: bool) -> str:
        """What `--help` or `--help-all` shows."""
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        lines = [self.get_usage(ctx)]
        for paragraph in (self.help or "").split("\n\n"):
            lines += ["", *wrapped(" ".join(paragraph.split()), width)]
        sections: dict[str, list[str]] = {}
        parameters = self.get_params(ctx)
        shown = [p for p in parameters if everything or not is_rare(p)]
        for parameter in shown:
            is_argument = parameter.param_type_name == "argument"
            panel = getattr(parameter, "rich_help_panel", None)
            names, text = parameter.get_help_record(ctx) or ("", "")
            title = panel or ("Arguments" if is_argument else "Options")
            sections.setdefault(title, []).extend(_row(names, text, width))
        for title, rows in sections.items():
            lines += ["", f"{title}:", *rows]
        if len(shown) < len(parameters):
            lines += ["", f"--help-all shows {len(parameters) - len(shown)} more options."]
        return "\n".join(lines) + "\n"


def is_rare(parameter: Any) -> bool:
    """Whether `--help` leaves a parameter of a command out."""
    return getattr(parameter, "rich_help_panel", None) is not None and parameter.name not in COMMON


def print_all(context: typer.Context, wanted: bool) -> None:
    """What `--help-all` calls: shows all options and ends the program."""
    if wanted:
        assert isinstance(context.command, HelpfulCommand)
        print(context.command.help_text(context, everything=True), end="")
        raise typer.Exit


def _row(names: str, text: str, width: int) -> Iterable[str]:
    starts = [f"  {part}" for part in wrapped(names, width - 2)]
    lines = wrapped(" ".join(text.split()), width - _INDENT)
    if len(starts[-1]) + 2 <= _INDENT and lines:
        starts[-1] = starts[-1].ljust(_INDENT) + lines.pop(0)
    return [*starts, *(" " * _INDENT + line for line in lines)]
