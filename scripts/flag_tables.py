"""The page of the site that lists the flags of `specdec-native serve`."""

from __future__ import annotations

from collections.abc import Iterable

from specdec_cli.command_options import Flag
from specdec_cli.serve_flags import GROUPS
from specdec_cli.serve_vllm_flags import REFUSED, WITHOUT_EFFECT
from specdec_vllm.arguments import REASONS


def write_serve_flags(_: str) -> str:
    """docs/serve-flags.md, of the tables in cli."""
    return "\n".join(
        [
            "# Flags of the server",
            "",
            "Written by `scripts/write_options.py` from the tables in `python/specdec_cli`; "
            "do not edit. [Serving](serving.md) explains them.",
            "",
            "`specdec-native serve MODEL [flags]`, or `--config FILE`: YAML with these flags as "
            "its keys.",
            "",
            *(line for title, flags in GROUPS.items() for line in _group(title, flags)),
            "## Flags with one possible value",
            "",
            "Flags of vLLM's that are refused unless they ask for nothing. Those of an engine are "
            "under [vLLM's arguments](vllm-arguments.md#arguments-with-one-possible-value).",
            "",
            "| flag | instead |",
            "|---|---|",
            *(f"| {_flag(name)} | {advice} |" for name, (_, advice) in sorted(REFUSED.items())),
            "",
            "## Flags without effect",
            "",
            "They are accepted, and the server warns of them once: "
            + ", ".join(map(_flag, sorted({*WITHOUT_EFFECT, *REASONS} - _listed())))
            + ".",
            "",
        ]
    )


def _group(title: str, flags: Iterable[Flag]) -> list[str]:
    rows = [f"| {_spellings(flag)} | {_cell(flag)} |" for flag in flags if flag.name not in REFUSED]
    return [f"## {title}", "", "| flag | |", "|---|---|", *rows, ""]


def _listed() -> set[str]:
    """Flags of the groups, and arguments of an engine that are no flags."""
    flags = {flag.name for flags in GROUPS.values() for flag in flags}
    return flags | {name for name in REASONS if name.startswith("_")}


def _spellings(flag: Flag) -> str:
    return ", ".join(f"`{spelling}`" for spelling in flag.spellings)


def _cell(flag: Flag) -> str:
    choices = f" One of {', '.join(f'`{c}`' for c in flag.choices)}." if flag.choices else ""
    switch = " Also `--no-…`." if flag.kind is bool else ""
    return (flag.help + choices + switch).replace("|", "\\|")


def _flag(name: str) -> str:
    return f"`--{name.replace('_', '-')}`"
