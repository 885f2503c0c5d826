"""Writes what follows from the options' tables in cpp/include/specdec.

    python scripts/write_options.py            writes the files that differ
    python scripts/write_options.py --check    names them, and fails if there are any

These are the types in _core.pyi, the signature and docstring of Engine, the docstring of
SamplingParams, and pages of the site: docs/options.md, docs/vllm-arguments.md and
docs/serve-flags.md (from the tables of specdec_vllm and specdec_cli), the table of
docs/methods.md (from bench/results). The compiled core must be up to date.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flag_tables import write_serve_flags
from methods_table import write_methods
from vllm_tables import write_vllm_arguments

from specdec_native import SamplingParams, _core
from specdec_native.common.option_text import help_line
from specdec_native.requests.sampling_params import MAXIMA
from specdec_native.speculation import speculative_config

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "specdec_native"
SAMPLING_FILE = "requests/sampling_params.py"
WIDTH = 100

TABLES: dict[str, tuple[_core.Option, ...]] = {
    "DrafterConfig": _core.DrafterConfig.options,
    "SpeculativeConfig": _core.SpeculativeConfig.options,
    "EngineConfig": _core.EngineConfig.options,
    "SamplingParams": _core.SamplingParams.options,
}


def write_stub(text: str) -> str:
    """_core.pyi with the options' types."""
    for name, options in TABLES.items():
        rows = "".join(_stub_row(option) for option in options)
        pattern = rf"(class {name}:\n.*?    # Options: [^\n]*\n).*?(    # End of options\.\n)"
        text, count = re.subn(pattern, lambda match: match[1] + rows + match[2], text, flags=re.S)  # noqa: B023
        assert count == 1, name
    return text


def write_engine(text: str) -> str:
    """engine.py with the options in the signature and the docstring of Engine."""
    options = {option.name: option for option in _core.EngineConfig.options}
    start = text.index("        *,\n", text.index("    def __init__(")) + len("        *,\n")
    end = text.index(") -> None:", start)
    lines = text[start:end].splitlines()
    parameters = {line.split(":")[0].strip(): line for line in lines if line.strip()}
    new = {
        name: f"        {name}: {_annotation(o)} = {_default(o)}," for name, o in options.items()
    }
    body = "\n".join(_merged(parameters, new).values())
    return write_docstring(f"{text[:start]}{body}\n    {text[end:]}", options, "            ", {})


def write_sampling_params(text: str) -> str:
    """sampling_params.py with the options in the docstring of SamplingParams."""
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    options = {
        option.name: option
        for option in _core.SamplingParams.options
        if option.name in fields and "list" not in option.type  # lists hold text in Python
    }
    return write_docstring(text, options, "        ", MAXIMA)


def write_docstring(
    text: str, options: dict[str, _core.Option], indent: str, maxima: dict[str, Any]
) -> str:
    """The first docstring with "Args:" indented so, with an entry for each option."""
    args = f"{indent[4:]}Args:\n"
    start = text.index(args) + len(args)
    end = min(
        i for i in (text.find("\n\n", start), text.find(f'\n{indent[4:]}"""', start)) if i > 0
    )
    entries: dict[str, str] = {}
    for line in text[start:end].splitlines():
        match = re.match(rf"{indent}(\w+): ", line)
        name = match[1] if match else next(reversed(entries))
        entries[name] = f"{entries[name]}\n{line}" if name in entries else line
    new = {name: _entry(o, indent, maxima.get(name)) for name, o in options.items()}
    return text[:start] + "\n".join(_merged(entries, new).values()) + text[end:]


def write_document(_: str) -> str:
    """docs/options.md, of the files as they are written."""
    engine, sampling = class_of("engine.py", "Engine"), class_of(SAMPLING_FILE, "SamplingParams")
    make_engine = next(n for n in engine.body if getattr(n, "name", "") == "__init__")
    assert isinstance(make_engine, ast.FunctionDef)
    arguments = make_engine.args
    engine_defaults = {
        argument.arg: ast.unparse(default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is not None
    }
    sampling_defaults = {
        node.target.id: ast.unparse(node.value)
        for node in sampling.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
    }
    return "\n".join(
        [
            "# Options",
            "",
            "Written by `scripts/write_options.py` from the tables in `cpp/include/specdec` and "
            "from docstrings; do not edit.",
            "",
            "## Engine",
            "",
            "Keyword arguments of `Engine` and `LLM`. On the command line `max_model_len` is "
            "`--max-model-len`.",
            "",
            *_table(ast.get_docstring(make_engine) or "", engine_defaults),
            "",
            "## Sampling",
            "",
            "Arguments of `SamplingParams`.",
            "",
            *_table(ast.get_docstring(sampling) or "", sampling_defaults),
            "",
            "## Speculation",
            "",
            "```text",
            *inspect.cleandoc(speculative_config.__doc__ or "").splitlines(),
            "```",
            "",
        ]
    )


def class_of(file: str, name: str) -> ast.ClassDef:
    """A class of the package, parsed."""
    module = ast.parse((PACKAGE / file).read_text())
    return next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == name)


FILES: dict[Path, Callable[[str], str]] = {
    PACKAGE / "_core.pyi": write_stub,
    PACKAGE / "engine.py": write_engine,
    PACKAGE / SAMPLING_FILE: write_sampling_params,
    ROOT / "docs" / "options.md": write_document,
    ROOT / "docs" / "vllm-arguments.md": write_vllm_arguments,
    ROOT / "docs" / "serve-flags.md": write_serve_flags,
    ROOT / "docs" / "methods.md": write_methods,
}


def _merged(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    """Old entries with the new text where there is one; new ones come behind their table's last."""
    merged = dict(old)
    last: str | None = None
    for name, text in new.items():
        if name not in merged:
            names = list(merged)
            place = 0 if last is None else names.index(last) + 1
            merged = {k: merged.get(k, "") for k in [*names[:place], name, *names[place:]]}
        merged[name] = text
        last = name
    return merged


def _annotation(option: _core.Option) -> str:
    return f"{option.type} | None" if option.zero is not None else option.type


def _default(option: _core.Option) -> str:
    if option.zero is not None:
        return "None"
    return f'"{option.default}"' if isinstance(option.default, str) else repr(option.default)


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


def _entry(option: _core.Option, indent: str, maximum: float | None) -> str:
    text = f"{option.name}: {help_line(option, maximum)}. {option.details}".strip()
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(docstring: str, defaults: dict[str, str]) -> list[str]:
    """The entries of "Args:" that have a default."""
    block = docstring.split("Args:\n", 1)[1].split("\n\n", 1)[0]
    rows = ["| | default | |", "|---|---|---|"]
    for name, text in re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", block, re.S | re.M):
        if name in defaults:
            cell = " ".join(text.split()).replace("|", "\\|")
            rows.append(f"| `{name}` | `{defaults[name]}` | {cell} |")
    return rows


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
