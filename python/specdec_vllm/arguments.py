"""vLLM's arguments of an engine: which are Engine's, which have no effect, which are refused."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from specdec_native.engine import Engine
from specdec_vllm import speculative_arguments
from specdec_vllm.tables import TABLES, by_name

_logger = logging.getLogger("specdec_native")

# Those that are the engine's, by its name for them.
ENGINE_ARGUMENTS = {
    **{name: name for name in inspect.signature(Engine).parameters if name != "model"},
    "num_gpu_blocks_override": "num_kv_blocks",
}

# Those that change no answer here, and why.
REASONS = by_name(TABLES["ignored_arguments"])
# Those of which these values (and None) are what happens here anyway, and what to do about another.
# The first is the default of EngineArgs.
FIXED_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    name: (tuple(accepted), advice)
    for advice, arguments in TABLES["fixed_arguments"].items()
    for name, accepted in arguments.items()
}
# Keys of structured_outputs_config without effect, and why; Engine has the others.
_STRUCTURED_OUTPUTS = by_name(TABLES["ignored_structured_outputs"])


def engine_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Engine's options from vLLM's arguments, model aside.

    Raises TypeError for an argument neither knows, ValueError for one that is not supported.
    """
    options: dict[str, Any] = {}
    ignored: dict[str, list[str]] = {}
    for name, value in speculative_arguments.resolve_arguments(arguments).items():
        if name in ENGINE_ARGUMENTS:
            if value is not None:  # vLLM's "choose for me"
                options[ENGINE_ARGUMENTS[name]] = value
        elif name in FIXED_ARGUMENTS:
            allowed, advice = FIXED_ARGUMENTS[name]
            if value is not None and value not in allowed:
                raise ValueError(f"{name}={value!r} is not supported: {advice}")
        elif name not in REASONS:
            raise TypeError(_unknown_argument(name))
        elif value is not None:
            ignored.setdefault(REASONS[name], []).append(name)
    for reason, names in ignored.items():
        _logger.info("ignored, as %s: %s", reason, ", ".join(sorted(names)))
    if isinstance(config := options.get("structured_outputs_config"), Mapping):
        options["structured_outputs_config"] = _structured_outputs_config(config)
    if options.get("max_model_len") in (-1, "auto"):
        del options["max_model_len"]  # what the cache holds is what Engine does without it
    if options.get("load_format") in TABLES["load_formats"]:
        del options["load_format"]  # all of them end in the same weights
    return options


def _structured_outputs_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have an effect; warns of each other one that asks for something."""
    for name, reason in _STRUCTURED_OUTPUTS.items():
        if config.get(name) not in (None, False, "", "auto", "guidance"):
            _logger.warning("structured_outputs_config: %s is ignored: %s", name, reason)
    return {name: value for name, value in config.items() if name not in _STRUCTURED_OUTPUTS}


def _unknown_argument(name: str) -> str:
    known = ["model", *ENGINE_ARGUMENTS, *FIXED_ARGUMENTS, *REASONS]
    close = difflib.get_close_matches(name, [*known, *speculative_arguments.ARGUMENTS], n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"LLM got an unexpected argument {name!r}{hint}"
