"""Writes the page of the site about the effect of every vLLM argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specdec_native.requests.sampling_arguments import NEUTRAL, UNSUPPORTED
from specdec_native.speculation.fixed_keys import FIXED_KEYS
from specdec_vllm.arguments import ENGINE_ARGUMENTS, FIXED_ARGUMENTS
from specdec_vllm.missing import MISSING_METHODS, MISSING_NAMES
from specdec_vllm.speculative_arguments import (
    OLDER_ARGUMENTS,
    SHORT_FORMS,
    WITHOUT_EFFECT,
)
from specdec_vllm.tables import TABLES


def write_vllm_arguments(_: str) -> str:
    """docs/vllm-arguments.md, of the tables of vllm_names.json."""
    own = sorted(name for name, engines in ENGINE_ARGUMENTS.items() if name == engines)
    renamed = {name: engines for name, engines in ENGINE_ARGUMENTS.items() if name != engines}
    version = TABLES["vllm_version"]
    return "\n".join(
        [
            "# vLLM's arguments",
            "",
            f"Written by `scripts/write_options.py` from the names of vLLM {version} in "
            "`python/specdec_vllm/vllm_names.json`; do not edit. "
            "[Coming from vLLM](vllm.md) explains the groups.",
            "",
            "## Arguments of LLM",
            "",
            "These mean what they mean to vLLM, or are this engine's own "
            f"([Options](options.md#engine)): `model`, {_names(own)}.",
            "",
            *(f"`{name}` is called `{engines}` here." for name, engines in renamed.items()),
            "",
            "### Arguments with one possible value",
            "",
            "An argument of this table may be left out, be `None`, or have a value of the second "
            "column. Any other value is refused, with the advice of the third.",
            "",
            *_fixed(FIXED_ARGUMENTS),
            "",
            "### Arguments without effect",
            "",
            "They change no answer. They are accepted with any value, and the log names them once.",
            "",
            *_table(
                ("reason", "arguments"),
                ((reason, _names(names)) for reason, names in TABLES["ignored_arguments"].items()),
            ),
            "",
            "### Other forms of speculative_config",
            "",
            *_table(
                ("argument", "key of `speculative_config`"),
                (
                    (f"`{name}`", f"`{key}`")
                    for name, key in {**SHORT_FORMS, **OLDER_ARGUMENTS}.items()
                ),
            ),
            "",
            "The first three are vLLM's short forms and may stand beside `speculative_config`. The "
            "others are older than `speculative_config`; they bring a `DeprecationWarning` that "
            "shows the new form.",
            "",
            f"{_names(WITHOUT_EFFECT)} bring the same warning and have no effect.",
            "",
            "## Keys of speculative_config",
            "",
            "[Options](options.md#speculation) describes the keys that have an effect. The keys of "
            "this table may have a value of the second column, which is what happens anyway.",
            "",
            *_fixed(FIXED_KEYS),
            "",
            "## Arguments of SamplingParams",
            "",
            "[Options](options.md#sampling) describes those that have an effect. These are refused "
            f"unless they are left out or ask for nothing: {_names(UNSUPPORTED)}.",
            "",
            "These belong to beam search and must be at their defaults: "
            + ", ".join(f"`{name}={value!r}`" for name, value in NEUTRAL.items())
            + ". `best_of` must be `n` or left out.",
            "",
            "## Names that are missing",
            "",
            "Importing one of these raises an `ImportError` that says what to do instead.",
            "",
            *_table(("name", "instead"), _advice(MISSING_NAMES)),
            "",
            "These methods of `LLM` raise an error that says the same.",
            "",
            *_table(("method", "instead"), _advice(MISSING_METHODS)),
            "",
        ]
    )


def _fixed(arguments: Mapping[str, tuple[tuple[Any, ...], str]]) -> list[str]:
    return _table(
        ("name", "accepted", "instead of another value"),
        (
            (f"`{name}`", _names(map(repr, _shown(allowed))) or "none", advice)
            for name, (allowed, advice) in sorted(arguments.items())
        ),
    )


def _shown(allowed: Sequence[Any]) -> list[Any]:
    """Values that say something: None is allowed everywhere."""
    return [value for value in allowed if value is not None]


def _advice(missing: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return ((f"`{name}`", advice) for name, advice in sorted(missing.items()))


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
