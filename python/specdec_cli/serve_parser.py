"""Reads the flags of `specdec-native serve`, and those in a file given by --config."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from specdec_cli.help import COMMON, WholeNames
from specdec_cli.serve_flags import GROUPS, engine_flags
from specdec_cli.serve_vllm_flags import WITHOUT_EFFECT, other_flags, text_or_json
from specdec_vllm.arguments import REASONS
from specdec_vllm.engine_args import FlexibleArgumentParser

# Beside the COMMON ones, the flags that --help shows.
_COMMON = frozenset(
    [
        *("host", "port", "api_key", "served_model_name", "chat_template"),
        *("enable_auto_tool_choice", "tool_call_parser"),
        *("max_model_len", "max_num_seqs", "tensor_parallel_size"),
    ]
)


class UsageError(ValueError):
    """A flag is unknown, or its value is of another kind."""


class _Parser(FlexibleArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raises what argparse found wrong."""
        raise UsageError(message)


def make_parser() -> argparse.ArgumentParser:
    """All flags, in groups; those that are left out have no attribute."""
    return _make_parser(everything=True)


def help_text(*, everything: bool) -> str:
    """What `--help-all` shows, or `--help`, which leaves out what is not COMMON."""
    return _make_parser(everything).format_help()


def _make_parser(everything: bool) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="specdec-native serve",
        description="Serve a model over HTTP, by OpenAI's API. A command of vLLM's `serve` works "
        "with the program's name changed.",
        usage="specdec-native serve MODEL [options]",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        formatter_class=WholeNames,
        epilog=f"Accepted, and without effect here: {_names_without_effect()}."
        if everything
        else "--help-all shows all options.",
    )
    parser.add_argument("--help-all", action="store_true", help="Show all options.")
    parser.add_argument("MODEL", nargs="?", help="A directory, a .gguf file or a model name.")
    parser.add_argument("--config", metavar="FILE", help="YAML with these flags as its keys.")
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        listed = engine_flags() if title == "Engine" else flags
        for flag in listed:
            is_shown = everything or flag.name in {*COMMON, *_COMMON}
            (flag if is_shown else dataclasses.replace(flag, help=argparse.SUPPRESS)).add_to(group)
    for flag in other_flags():
        flag.add_to(parser)
    return parser


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags that were given, by name, and the model as "MODEL".

    Those of the line go over those of --config. Raises UsageError for the line, ValueError for
    the file.
    """
    parser = make_parser()
    given = _parse(parser, arguments)
    path = given.pop("config", None)
    if path is None:
        return given
    from specdec_serve.http.config_file import read_config  # noqa: PLC0415 - needs PyYAML

    entries = read_config(Path(path))
    try:
        stated = _parse(parser, [token for item in entries.items() for token in _tokens(*item)])
    except UsageError as error:
        raise ValueError(f"{path}: {error}") from error
    if "config" in stated:
        raise ValueError(f"{path}: a file cannot name another by config")
    if "MODEL" in given or "model" in given:
        stated.pop("model", None)
    return {**stated, **given}


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, Any]:
    tokens, dotted = _take_dotted(parser, arguments)
    model = [tokens.pop(0)] if tokens and not tokens[0].startswith("-") else []
    namespace, rest = parser.parse_known_args(tokens)
    given = vars(namespace)
    if model and "MODEL" not in given:
        given["MODEL"] = model[0]
    elif model:
        rest.append(given["MODEL"])
    if rest:
        raise UsageError(_unknown(parser, rest[0]))
    for name, keys in dotted.items():
        given[name] = _merged(given.get(name) or {}, keys)
    return given


def _take_dotted(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The arguments without those like `--speculative-config.method ngram`, and these as dicts."""
    rest: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    tokens = iter(arguments)
    for token in tokens:
        name, equals, value = token.partition("=")
        flag, dot, path = name.partition(".")
        if not token.startswith("-") or not dot or not flag.lstrip("-")[:1].isalpha():
            rest.append(token)
            continue
        if not equals:
            value = next(tokens, "")
            if not value:
                raise UsageError(f"{token} needs a value")
        action = parser._option_string_actions.get(flag.replace("_", "-"))
        if action is None:
            raise UsageError(_unknown(parser, flag))
        top = action.dest
        keys = [key.replace("-", "_") for key in path.split(".")]
        entry: Any = text_or_json(value)
        for key in reversed(keys[1:]):
            entry = {key: entry}
        dotted[top] = _merged(dotted.get(top, {}), {keys[0]: entry})
    return rest, dotted


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _tokens(key: str, value: Any) -> list[str]:
    """An entry of the file as it would stand on the line."""
    flag = f"--{key.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{key.replace('_', '-')}"]
    if isinstance(value, dict) or (isinstance(value, list) and key.startswith("allowed")):
        return [flag, json.dumps(value)]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"]


def _unknown(parser: argparse.ArgumentParser, token: str) -> str:
    if not token.startswith("-"):
        return f"unexpected argument {token!r}; give one model, then flags"
    name = token.partition("=")[0].replace("_", "-")
    close = difflib.get_close_matches(name, parser._option_string_actions, n=2)
    hint = f"; did you mean {' or '.join(close)}?" if close else "; --help lists the flags"
    return f"there is no flag {token.partition('=')[0]}{hint}"


def _names_without_effect() -> str:
    hidden = {flag.name for flag in other_flags()} & {*WITHOUT_EFFECT, *REASONS}
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(hidden))
