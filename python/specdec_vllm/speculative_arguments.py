"""Other ways to ask for speculation: vLLM's older keyword arguments and its three short forms."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from specdec_vllm.tables import TABLES

# vLLM's arguments before there was a speculative_config, and the keys they became.
OLDER_ARGUMENTS: dict[str, str] = TABLES["older_speculative_arguments"]
# Those that never changed an answer, and change nothing here.
WITHOUT_EFFECT: list[str] = TABLES["ignored_speculative_arguments"]
SHORT_FORMS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
ARGUMENTS = ("speculative_config", *OLDER_ARGUMENTS, *WITHOUT_EFFECT, *SHORT_FORMS)


def resolve_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of LLM with speculation in one form: as speculative_config, or not at all.

    Raises ValueError where two forms are mixed. Warns of older ones, on behalf of who made
    the LLM.
    """
    rest = {name: value for name, value in arguments.items() if name not in ARGUMENTS}
    given = {
        name: value for name, value in arguments.items() if name in ARGUMENTS and value is not None
    }
    useless = [name for name in WITHOUT_EFFECT if name in given]
    if useless:
        _warn(f"{', '.join(useless)} has no effect; leave it out")
    config = given.get("speculative_config")
    older = {name: value for name, value in given.items() if name in OLDER_ARGUMENTS}
    short = {name: given[name] for name in SHORT_FORMS if name in given}
    if older:
        others = [name for name in ("speculative_config", *SHORT_FORMS) if name in given]
        if others:
            raise ValueError(
                f"{', '.join(older)} is an older form of {', '.join(others)}; put everything into "
                "speculative_config"
            )
        config = _from_older(older)
        _warn(f"{', '.join(older)}: write speculative_config={config!r} instead")
    elif short:
        config = with_short_forms(config, short)
    if config is not None:
        rest["speculative_config"] = config
    return rest


def with_short_forms(
    config: Any, short: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> Any:
    """A speculative_config with spec_method, spec_model and spec_tokens (None: not given) put in.

    `names` are what the user calls them. Raises ValueError where both say the same thing.
    """
    added = {SHORT_FORMS[name]: value for name, value in short.items() if value is not None}
    if not added:
        return config
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"speculative_config must be a dict, got {config!r:.80}")
    for name, key in SHORT_FORMS.items():
        if key in added and (config or {}).get(key) is not None:
            shown = (names or {}).get(name, name)
            raise ValueError(f"give {shown} or {key!r} in the speculative config, not both")
    return {**(config or {}), **added}


def _from_older(older: Mapping[str, Any]) -> dict[str, Any]:
    config = {OLDER_ARGUMENTS[name]: value for name, value in older.items()}
    model = config.get("model")
    if model is None:
        raise ValueError(
            f"{', '.join(older)} needs a drafter: write speculative_config="
            '{"method": "ngram", "num_speculative_tokens": 5}, or {"model": ...} for a draft model'
        )
    if model in ("ngram", "[ngram]"):
        del config["model"]
        longest = config.get("prompt_lookup_max")
        # The older default of the shortest match was 1.
        lookup = {} if longest is None else {"prompt_lookup_min": 1}
        config = {"method": "ngram"} | lookup | config
    if config.get("acceptance_method") == "rejection_sampler":
        config["rejection_sample_method"] = "standard"
        del config["acceptance_method"]
    limit = config.pop("disable_by_batch_size", None)
    if limit is not None:
        config["num_speculative_tokens_per_batch_size"] = _table_below(
            limit, config.get("num_speculative_tokens")
        )
    return config


def _table_below(limit: Any, num_tokens: Any) -> list[list[int]]:
    """Speculation while fewer than `limit` requests decode."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 2:
        raise ValueError(
            f"speculative_disable_by_batch_size must be an integer of at least 2, got {limit!r}"
        )
    if num_tokens is None:
        raise ValueError("speculative_disable_by_batch_size needs num_speculative_tokens")
    return [[1, limit - 1, num_tokens], [limit, limit, 0]]


def _warn(message: str) -> None:
    # The frames: this one, resolve_arguments, engine_options, LLM's constructor, who made the LLM.
    warnings.warn(message, DeprecationWarning, stacklevel=5)
