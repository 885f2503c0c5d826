"""Help texts of commands: `--help` shows the options people use, `--help-all` all of them.

Names of options are never broken: a name that does not fit beside its text gets its own line.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

import typer.core

# Options in panels such as Engine that --help shows as well as --help-all.
COMMON = frozenset(
    [
        *("temperature", "seed", "top_p"),
        *("speculative_config", "spec_method", "spec_model", "spec_tokens"),
        *("device", "dtype", "quantization", "num_threads"),
        *("method", "max_depth", "epochs", "data", "answer_tokens"),
    ]
)
_INDENT = 26  # columns before an option's text
_WIDEST = 100


def wrapped(text: str, width: int) -> list[str]:
    """Lines of a text, which are broken at spaces only: `--spec-model` stays whole."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


class HelpfulCommand(typer.core.TyperCommand):
    """A command whose `--help` omits options that are in a panel and not in `common`."""

    common = COMMON

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the text of `--help`."""
        formatter.write(self.help_text(ctx, everything=False))

    def help_text(self, ctx: Any, *, everything: bool) -> str:
        """The text of `--help` or `--help-all`."""
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        lines = [self.get_usage(ctx)]
        for paragraph in (self.help or "").split("\n\n"):
            lines += ["", *wrapped(" ".join(paragraph.split()), width)]
        sections: dict[str, list[str]] = {}
        parameters = [p for p in self.get_params(ctx) if not getattr(p, "hidden", False)]
        shown = [p for p in parameters if everything or self._is_common(p)]
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
        elif self.epilog:
            lines += ["", *wrapped(self.epilog, width)]
        return "\n".join(lines) + "\n"

    def _is_common(self, parameter: Any) -> bool:
        panel = getattr(parameter, "rich_help_panel", None)
        return panel is None or parameter.name in self.common


def print_all(context: typer.Context, wanted: bool) -> None:
    """Callback of `--help-all`: shows all options and ends the program."""
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
