"""vLLM's EngineArgs, and how a script's command line gives them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from specdec_native.vllm_compat.arguments import ENGINE_ARGUMENTS, FIXED_ARGUMENTS, REASONS

# What looks like a number in these is a name all the same.
_TEXTS = ("model", "tokenizer", "revision", "chat_template", "served_model_name")


def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds an option for every argument: `--max-model-len 512`, `--enforce-eager`.

    Values are JSON where they are, text otherwise; an option alone is True.
    """
    for field in dataclasses.fields(EngineArgs):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            type=str if field.name in _TEXTS else _value,
            nargs="?",
            const=True,
            default=None if field.default is dataclasses.MISSING else field.default,
        )
    return parser


def from_cli_args(namespace: argparse.Namespace) -> Any:
    """The EngineArgs that a parser with add_cli_args() has read."""
    names = [field.name for field in dataclasses.fields(EngineArgs)]
    return EngineArgs(**{name: getattr(namespace, name) for name in names})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _argument_fields() -> list[tuple[str, Any, Any]]:
    defaults: dict[str, Any] = dict.fromkeys((*ENGINE_ARGUMENTS, *REASONS))
    defaults |= dict.fromkeys(("spec_method", "spec_model", "spec_tokens"))
    defaults |= {name: allowed[0] for name, (allowed, _) in FIXED_ARGUMENTS.items()}
    return [(name, Any, dataclasses.field(default=value)) for name, value in defaults.items()]


EngineArgs = dataclasses.make_dataclass(
    "EngineArgs",
    [("model", Any), *_argument_fields()],
    namespace={
        "__module__": __name__,
        "__doc__": "The arguments of LLM as one object: `LLM(**dataclasses.asdict(args))`.\n\n"
        "What is None is chosen by the engine. They are checked when an engine is made of them.",
        "add_cli_args": staticmethod(add_cli_args),
        "from_cli_args": staticmethod(from_cli_args),
    },
)


def arguments_of(engine_args: Any) -> dict[str, Any]:
    """The arguments that an EngineArgs holds, model among them."""
    return {f.name: getattr(engine_args, f.name) for f in dataclasses.fields(engine_args)}


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse's parser, to which `--max_model_len` is `--max-model-len`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options that are known, and the rest."""
        given = sys.argv[1:] if args is None else args
        return super().parse_known_args([self._dashed(arg) for arg in given], namespace)

    def _dashed(self, arg: str) -> str:
        name, equals, value = arg.partition("=")
        is_option = name.startswith("--") and name not in self._option_string_actions
        return name.replace("_", "-") + equals + value if is_option else arg
