"""The options of `specdec-native`. Those of engine and sampling are made from the core's tables."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from specdec_cli.help import HelpfulCommand, print_all
from specdec_native import _core
from specdec_native.common.option_text import help_line
from specdec_native.requests.sampling_params import MAXIMA
from specdec_native.speculation.methods import METHODS

Model = Annotated[
    str, typer.Option("--model", "-m", help="A directory, a .gguf file or a model name.")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens generated at most.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script to read.")]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends the output. Repeatable.")]
System = Annotated[str | None, typer.Option(help="The system message of the conversation.")]

Group = dict[str, Any]
"""The options of a group that are not at their defaults."""

_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
_SPELLINGS = {"num_threads": ("--num-threads", "--threads"), "n": ("-n",)}


def command(
    app: typer.Typer, name: str, **groups: Sequence[inspect.Parameter]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds a command whose parameters named in `groups` are given a Group of those options."""

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
        app.command(name, cls=HelpfulCommand)(run)
        return function

    return add


def engine_options(*, without: Sequence[str] = ()) -> list[inspect.Parameter]:
    """Engine's options; a command's --seed is a request's."""
    return [
        _parameter(option, "Engine", None if option.zero else option.default)
        for option in _core.EngineConfig.options
        if option.name not in ("seed", *without)
    ]


def sampling_options(*, without: Sequence[str] = ()) -> list[inspect.Parameter]:
    """SamplingParams' options that are numbers and switches; left out, the checkpoint decides."""
    return [
        _parameter(option, "Sampling", None)
        for option in _core.SamplingParams.options
        if option.type.removesuffix(" | None") in _TYPES
        and option.name not in ("max_tokens", "num_speculative_tokens", *without)
    ]


def _parameter(option: _core.Option, panel: str, default: Any) -> inspect.Parameter:
    kind: Any = _TYPES[option.type.removesuffix(" | None")]
    text = help_line(option, MAXIMA.get(option.name), absent="if left out,")
    limits: dict[str, Any] = {}
    if kind is int and option.zero is None:
        ends = {"min": option.lowest, "max": option.highest}
        limits = {key: int(end) for key, end in ends.items() if end is not None}
    return keyword(
        option.name,
        kind if default is not None else kind | None,
        typer.Option(
            *_SPELLINGS.get(option.name, ()),
            help=f"{text[0].upper()}{text[1:]}.",
            rich_help_panel=panel,
            **limits,
        ),
        default,
    )


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

SPECULATION_OPTIONS = [
    keyword(name, kind | None, typer.Option(*flags, help=text, rich_help_panel="Speculation"))
    for name, kind, flags, text in (
        (
            "speculative_config",
            str,
            ("--speculative-config", "-sc"),
            'JSON such as {"method": "ngram"}. Drafts are as long as pays; "draft_length_policy": '
            '"fixed" always drafts num_speculative_tokens.',
        ),
        ("spec_method", str, (), f"What drafts tokens ahead: {', '.join(METHODS)}."),
        ("spec_model", str, (), "The draft model or head."),
        ("spec_tokens", int, (), "Tokens drafted ahead at most."),
    )
]
