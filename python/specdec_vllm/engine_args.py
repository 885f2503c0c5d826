"""vLLM's EngineArgs, and how a script's command line gives them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

from specdec_native.engine import Engine
from specdec_native.options.vllm_config import ModelConfig, VllmConfig
from specdec_vllm.arguments import (
    ENGINE_ARGUMENTS,
    FIXED_ARGUMENTS,
    REASONS,
    engine_options,
)
from specdec_vllm.tables import TABLES

_logger = logging.getLogger("specdec_native")

_DEFAULT_MODEL = "Qwen/Qwen3-0.6B"  # vLLM's

SHORT_FLAGS: dict[str, str] = TABLES["short_flags"]
# What looks like a number in these is a name all the same.
_TEXTS = ("model", "tokenizer", "revision", "chat_template", "served_model_name")


def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds an option for every argument: `--max-model-len 512`, `--enforce-eager`.

    Values are JSON where they are, text otherwise; an option alone is True.
    """
    for field in dataclasses.fields(EngineArgs):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            *([SHORT_FLAGS[field.name]] if field.name in SHORT_FLAGS else []),
            dest=field.name,
            type=str if field.name in _TEXTS else _value,
            nargs="?",
            const=True,
            default=field.default,
        )
    return parser


def from_cli_args(args: argparse.Namespace) -> Any:
    """The EngineArgs that a parser with add_cli_args() has read; the default of what is missing."""
    names = [field.name for field in dataclasses.fields(EngineArgs)]
    return EngineArgs(**{name: getattr(args, name) for name in names if hasattr(args, name)})


@dataclasses.dataclass(frozen=True)
class LoadedConfig(VllmConfig):
    """A VllmConfig and the engine it is of, which from_vllm_config() takes."""

    engine: Engine = dataclasses.field(repr=False, compare=False)


def create_engine_config(engine_args: Any, *_: Any, **__: Any) -> LoadedConfig:
    """What vLLM's names say of the arguments. Loads the model, as the cache's size depends on it.

    Raises what making an engine raises.
    """
    arguments = arguments_of(engine_args)
    engine = make_engine(arguments.pop("model"), engine_options(arguments))
    facts = {f.name: getattr(engine.vllm_config, f.name) for f in dataclasses.fields(VllmConfig)}
    return LoadedConfig(**facts, engine=engine)


def create_model_config(engine_args: Any) -> ModelConfig:
    """The model's part of create_engine_config(); frees the model again."""
    config = create_engine_config(engine_args)
    config.engine.close()
    return config.model_config


def make_engine(model: Any, options: Mapping[str, Any]) -> Engine:
    """The Engine of engine_options()."""
    if options.get("distributed_executor_backend") == "external_launcher":
        _join_torch()
    return Engine(model, **options)


def _join_torch() -> None:
    """Initialises torch.distributed, where torch is loaded: under torchrun vLLM does, and scripts
    ask it for their rank."""
    torch = sys.modules.get("torch")
    if torch is None or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    if torch.distributed.is_available() and not torch.distributed.is_initialized():
        try:
            torch.distributed.init_process_group("gloo")
        except RuntimeError as error:  # the ranks of an engine do without
            _logger.warning("torch.distributed cannot be initialised: %s", error)


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
    [("model", Any, dataclasses.field(default=_DEFAULT_MODEL)), *_argument_fields()],
    namespace={
        "__module__": __name__,
        "__doc__": "The arguments of LLM as one object: `LLM(**dataclasses.asdict(args))`.\n\n"
        "What is None is chosen by the engine. They are checked when an engine is made of them.",
        "add_cli_args": staticmethod(add_cli_args),
        "from_cli_args": staticmethod(from_cli_args),
        "create_engine_config": create_engine_config,
        "create_model_config": create_model_config,
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
