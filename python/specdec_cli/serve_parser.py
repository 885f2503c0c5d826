"""Reads the flags of `specdec-native serve` as vLLM's users write them, and those of a file."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from specdec_cli.help import COMMON, HelpfulCommand
from specdec_cli.serve_vllm_flags import text_or_json
from specdec_native.checkpoints.optional import import_optional

_FLAG = re.compile(r"(--?[A-Za-z][\w-]*)(\.[^\s=]*)?(?:=(.*))?", re.DOTALL)


class UsageError(ValueError):
    """A flag is unknown, or its value has the wrong type."""


class FlagCommand(HelpfulCommand):
    """A command with a flag `config`: flags on the line take precedence over that file's.

    Names may use - or _. Several values may follow a flag that can be repeated. A key of a JSON
    object may be given as a flag: `--speculative-config.method ngram`.
    """

    common = COMMON | {
        *("host", "port", "api_key", "served_model_name", "chat_template"),
        *("enable_auto_tool_choice", "tool_call_parser"),
        *("max_model_len", "max_num_seqs", "tensor_parallel_size"),
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Sets the context's parameters from the line, and from the file where the line is silent.

        Raises UsageError for a bad line, ValueError for a bad file.
        """
        before_end = itertools.takewhile(lambda arg: arg != "--", args)
        asks_for_help = [arg for arg in before_end if arg in ("-h", "--help", "--help-all")]
        try:
            plain = asks_for_help[:1] or _plain(args, self.get_params(ctx))
            rest = super().parse_args(ctx, plain)
        except typer.BadParameter as error:
            names = "/".join(error.param.opts) if error.param else "a flag"
            raise UsageError(f"{names}: {error.message}") from None
        if ctx.params["config"] is not None:
            stated = self._read_file(Path(ctx.params["config"]))
            if ctx.params["first_argument"] is not None:
                stated["model"] = None
            sources = {name: ctx.get_parameter_source(name).name for name in stated}
            given = {n: value for n, value in ctx.params.items() if sources[n] == "COMMANDLINE"}
            ctx.params = {**stated, **given, "config": None}
        return rest

    def _read_file(self, path: Path) -> dict[str, Any]:
        import_optional("yaml", purpose="specdec-native serve --config", extra="serve")
        from specdec_serve.http.config_file import read_config  # noqa: PLC0415 - needs PyYAML

        entries = read_config(path)
        if "config" in entries:
            raise ValueError(f"{path}: a file cannot name another by config")
        try:
            tokens = [token for item in entries.items() for token in _tokens(*item)]
            return dict(self.make_context(self.name, tokens).params)
        except UsageError as error:
            raise ValueError(f"{path}: {error}") from error


def _plain(arguments: Iterable[str], parameters: Iterable[Any]) -> list[str]:
    """The arguments in click's form: each value as `--flag=value`, and the model last."""
    options = {
        name: parameter
        for parameter in parameters
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    given: dict[str, list[str]] = {}
    keys: dict[str, dict[str, Any]] = {}
    for flag, path, values in _flags(arguments, options):
        if path:
            entry = text_or_json(values[-1])
            for key in reversed(path[1:].replace("-", "_").split(".")):
                entry = {key: entry}
            keys[flag] = _merged(keys.get(flag, {}), entry)
        else:
            given[flag] = [*given.pop(flag, []), *values]
    models = given.pop("", [])
    if models[1:]:
        raise UsageError(f"unexpected argument {models[1]!r}; give one model, then flags")
    for flag, entry in keys.items():
        below = text_or_json(given.get(flag, ["{}"])[-1])
        if not isinstance(below, Mapping):
            raise UsageError(f"{flag}: {given[flag][-1]!r} is not a JSON object")
        given[flag] = [json.dumps(_merged(below, entry))]
    tokens = [[f"{flag}={value}" for value in values] or [flag] for flag, values in given.items()]
    return [*itertools.chain(*tokens), "--", *models]


def _flags(
    arguments: Iterable[str], options: Mapping[str, Any]
) -> Iterator[tuple[str, str, list[str]]]:
    """Each flag with its key path and values; arguments without a flag have flag ""."""
    tokens = deque(arguments)
    while tokens:
        token = tokens.popleft()
        if token == "--":
            continue
        match = _FLAG.fullmatch(token)
        if match is None:
            yield "", "", [token]
            continue
        name, path, value = match.groups()
        flag = name.replace("_", "-")
        if flag not in options and flag[1] != "-" and flag[:2] in options:  # -qint8
            name, flag, path, value = token[:2], token[:2], "", token[2:]
        if flag not in options:
            close = difflib.get_close_matches(flag, options, n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else "--help lists the flags"
            raise UsageError(f"there is no flag {name}; {hint}")
        option = options[flag]
        values = [] if value is None else [value]
        most = 1 if path or not option.multiple else len(tokens)
        if option.is_flag or value is not None:
            most = 0
        while tokens and len(values) < most and tokens[0] != "--":
            if not path and _is_flag(tokens[0], options):
                break
            values.append(tokens.popleft())
        if option.is_flag and (path or values):
            raise UsageError(f"{name} takes no value")
        if not option.is_flag and not values:
            raise UsageError(f"{token} needs a value")
        yield flag if option.is_flag else option.opts[0], path, values


def _is_flag(token: str, options: Collection[str]) -> bool:
    match = _FLAG.fullmatch(token)
    return match is not None and (match[1].replace("_", "-") in options or " " not in token)


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
    """An entry of the file as arguments of the command line."""
    flag = f"--{key.replace('_', '-')}"
    if not _FLAG.fullmatch(flag):
        raise UsageError(f"{key!r} is not the name of a flag")
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, dict) or (isinstance(value, list) and key.startswith("allowed")):
        return [flag, json.dumps(value)]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"]
