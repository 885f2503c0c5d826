"""Writes the files that are generated from the options' tables in cpp/include/specdec.

    python scripts/write_options.py            writes the files that differ
    python scripts/write_options.py --check    names them, and fails if there are any

They are the arguments of Engine with their descriptions (Python's own come from engine_rows.py),
the types in _core_options.pyi, and pages of the site: docs/options.md,
docs/vllm-arguments.md and docs/serve-flags.md (from the tables of specdec_vllm and specdec_cli),
the table of docs/methods.md (from bench/results). The compiled core must be up to date.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from engine_rows import ROWS, Row, table_of, write_engine_arguments
from flag_tables import write_serve_flags
from methods_table import write_methods
from verify_table import write_verify
from vllm_tables import write_vllm_arguments

from specdec_native import SamplingParams, _core
from specdec_native.speculation import speculative_config

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "specdec_native"
WIDTH = 100

DOCUMENT = """\
# Options

Written by `scripts/write_options.py`, mostly from the tables in `cpp/include/specdec`; do not edit.

## Engine

Keyword arguments of `Engine` and `LLM`. On the command line `max_model_len` is `--max-model-len`.

{engine}

## Sampling

Arguments of `SamplingParams`.

{sampling}

## Speculation

```text
{speculation}
```
"""


def write_stub(_: str) -> str:
    """_core_options.pyi."""
    text = (
        '"""Options of the core\'s classes. Written by scripts/write_options.py; do not edit."""\n'
    )
    core = (_core.DrafterConfig, _core.SpeculativeConfig, _core.EngineConfig, _core.SamplingParams)
    for kind in core:
        text += f"\nclass {kind.__name__}Options:\n{''.join(map(_stub_row, kind.options))}"
    return text


def write_document(_: str) -> str:
    """docs/options.md."""
    return DOCUMENT.format(
        engine=table_of(ROWS),
        sampling=table_of(sampling_rows()),
        speculation=inspect.cleandoc(speculative_config.__doc__ or ""),
    )


def sampling_rows() -> list[Row]:
    """The arguments of SamplingParams that its docstring describes."""
    block = inspect.cleandoc(SamplingParams.__doc__ or "").split("Args:\n", 1)[1]
    fields = {field.name: field for field in dataclasses.fields(SamplingParams)}
    return [
        Row(name, str(fields[name].type), fields[name].default, " ".join(text.split()))
        for name, text in re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", block, re.S | re.M)
    ]


FILES: dict[Path, Callable[[str], str]] = {
    PACKAGE / "_core_options.pyi": write_stub,
    PACKAGE / "options" / "engine_arguments.py": write_engine_arguments,
    ROOT / "docs" / "options.md": write_document,
    ROOT / "docs" / "vllm-arguments.md": write_vllm_arguments,
    ROOT / "docs" / "serve-flags.md": write_serve_flags,
    ROOT / "docs" / "methods.md": write_methods,
    ROOT / "docs" / "verify.md": write_verify,
}


def _stub_row(option: _core.Option) -> str:
    row = f"    {option.name}: {option.type}"
    choices = ", ".join(f'"{choice}"' for choice in option.choices)
    beside = f"{row}  # {choices}" if choices else row
    if len(beside) <= WIDTH:
        return beside + "\n"
    above = textwrap.fill(
        choices, WIDTH, initial_indent="    # ", subsequent_indent="    # ", break_on_hyphens=False
    )
    return f"{above}\n{row}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args(arguments).check
    different = []
    for path, write in FILES.items():
        old = path.read_text() if path.exists() else ""
        new = write(old)
        if new != old:
            different.append(path)
            if not check:
                path.write_text(new)
    for path in different:
        print(f"{path.relative_to(ROOT)} {'differs: run this script' if check else 'written'}")
    return 1 if check and different else 0


if __name__ == "__main__":
    sys.exit(main())
