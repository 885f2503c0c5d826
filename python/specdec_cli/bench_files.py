"""The output files of `specdec-native bench`, checked before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def check_result(option: str, file: Path | None) -> None:
    """Raises ValueError naming the option if the file's directory does not exist."""
    if file is not None and not file.absolute().parent.is_dir():
        folder = file.absolute().parent
        raise ValueError(f"{option}: there is no directory {folder}; make it first")


def write_json(file: Path, fields: dict[str, Any]) -> None:
    """Writes figures for a script to read."""
    file.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
