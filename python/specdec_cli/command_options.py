"""The options of `specdec-native`; engine and sampling options come from the core's tables."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from specdec_cli.help import HelpfulCommand, print_all
from specdec_native import _core
from specdec_native.common.option_text import help_line
from specdec_native.requests.sampling_params import MAXIMA
from specdec_native.speculation.auto_drafters import AUTO
from specdec_native.speculation.methods import METHODS
from specdec_vllm.engine_args import SHORT_FLAGS

Model = Annotated[
    str, typer.Option("--model", "-m", help="A directory, a .gguf file or a model name.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens generated at most.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script to read.")]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends the output. Repeatable.")]
System = Annotated[str | None, typer.Option(help="The system message of the conversation.")]

Group = dict[str, Any]
"""The options of a group that are not at their defaults."""

_TYPES: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": bool, "str": str}
_SHORT = {
    **{name: (short,) for name, short in SHORT_FLAGS.items()},
    "gpu_memory_utilization": ("--device-memory-utilization",),
    "num_kv_blocks": ("--num-gpu-blocks-override",),
    "num_threads": ("--threads",),
}


def integer(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


_MOST_SHOWN = 8  # choices in place of a value; more are a part of the help
_MOST_LISTED = 24  # choices in a help; an error lists them all


@dataclasses.dataclass(frozen=True)
class Flag:
    """An option of a command.

    Attributes:
        kind: converts its text into a value, or raises ValueError; bool for --x and --no-x.
        choices: the possible values; empty for any.
        many: the flag may be repeated; several values may follow it where a FlagCommand reads it.
        short: other spellings.
    """

    name: str
    help: str
    kind: Callable[[str], Any] = str
    choices: Sequence[str] = ()
    many: bool = False
    short: tuple[str, ...] = ()

    @property
    def spellings(self) -> list[str]:
        """The flag's spellings; the first is its name."""
        name = "-n" if self.name == "n" else f"--{self.name.replace('_', '-')}"
        return [name, *_SHORT.get(self.name, ()), *self.short]

    def parameter(self, panel: str | None, default: Any = None, **limits: int) -> inspect.Parameter:
        """The option as a parameter of a command, in a panel of its help; hidden without one."""
        name, *short = self.spellings
        is_plain = self.kind in _TYPES.values() and not self.choices
        value: Any = self.kind if is_plain else str
        kind = list[value] if self.many else value
        kind_name = "text" if self.kind is str else self.kind.__name__.replace("_", "-")
        is_short = len(self.choices) <= _MOST_SHOWN
        shown = "|".join(self.choices) if self.choices and is_short else kind_name
        option = typer.Option(
            f"{name}/--no-{name[2:]}" if kind is bool else name,
            *short,
            help=self.help if is_short else f"{self.help} {self._choice_text()}",
            rich_help_panel=panel,
            hidden=panel is None,
            parser=None if is_plain else self._read,
            metavar=f"<{shown}>..." if self.many else None if is_plain else f"<{shown}>",
            **limits,  # type: ignore[arg-type]
        )
        return keyword(self.name, kind if default is not None else kind | None, option, default)

    def _choice_text(self) -> str:
        if len(self.choices) <= _MOST_LISTED:
            return f"One of {', '.join(self.choices)}."
        return f"One of {len(self.choices)} names, which the error of a wrong one lists."

    def _read(self, text: str) -> Any:
        if self.choices and text not in self.choices:
            choices = ", ".join(map(repr, self.choices))
            raise typer.BadParameter(f"invalid choice: {text!r} (choose from {choices})")
        try:
            return self.kind(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


def command(
    app: typer.Typer,
    name: str,
    *,
    kind: type[HelpfulCommand] = HelpfulCommand,
    epilog: str | None = None,
    **groups: Sequence[inspect.Parameter],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds a command. Each parameter named in `groups` receives the Group of these options."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function).parameters.values():
            own = [parameter.replace(annotation=hints[parameter.name])]
            parameters += groups.get(parameter.name, own)
        parameters.append(_HELP_ALL)

        @functools.wraps(function)
        def run(**options: Any) -> None:
            del options[_HELP_ALL.name]
            for group, members in groups.items():
                values = [(member, options.pop(member.name)) for member in members]
                options[group] = {m.name: value for m, value in values if value != m.default}
            function(**options)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, cls=kind, epilog=epilog)(run)
        return function

    return add


def engine_options(*, without: Sequence[str] = ()) -> list[inspect.Parameter]:
    """Engine's options, except seed: a command's --seed is the request's."""
    return [
        _parameter(option, "Engine", None if option.zero else option.default)
        for option in _core.EngineConfig.options
        if option.name not in ("seed", *without)
    ]


def sampling_options(*, without: Sequence[str] = ()) -> list[inspect.Parameter]:
    """SamplingParams' numbers and switches; the checkpoint decides those that are left out."""
    return [
        _parameter(option, "Sampling", None)
        for option in _core.SamplingParams.options
        if option.type.removesuffix(" | None") in _TYPES
        and option.name not in ("max_tokens", "num_speculative_tokens", *without)
    ]


def flag_of(option: _core.Option, kind: Callable[[str], Any] | None = None) -> Flag:
    """The flag of a core option. `kind` converts its text; by default the option's type does."""
    text = help_line(option, MAXIMA.get(option.name), absent="if left out,")
    kind = kind or _TYPES[option.type.removesuffix(" | None")]
    return Flag(option.name, f"{text[0].upper()}{text[1:]}.", kind)


def _parameter(option: _core.Option, panel: str, default: Any) -> inspect.Parameter:
    flag = flag_of(option)
    limits = {}
    if flag.kind is int and option.zero is None:
        ends = {"min": option.lowest, "max": option.highest}
        limits = {key: int(end) for key, end in ends.items() if end is not None}
    return flag.parameter(panel, default, **limits)


def keyword(name: str, kind: Any, option: Any, default: Any = None) -> inspect.Parameter:
    """An option of a command as a parameter of its function."""
    annotation = Annotated[kind, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


_HELP_ALL = keyword(
    "help_all",
    bool,
    typer.Option("--help-all", is_eager=True, callback=print_all, help="Show all options."),
    False,
)

SPECULATION_FLAGS = [
    Flag(
        "speculative_config",
        'JSON such as {"method": "ngram"}. Drafts are as long as pays; "draft_length_policy": '
        '"fixed" always drafts num_speculative_tokens.',
    ),
    Flag("spec_method", f"What drafts tokens ahead: {', '.join((AUTO, *METHODS))}."),
    Flag("spec_model", "The draft model or head."),
    Flag("spec_tokens", "Tokens drafted ahead at most.", integer),
]
SPECULATION_OPTIONS = [flag.parameter("Speculation") for flag in SPECULATION_FLAGS]
