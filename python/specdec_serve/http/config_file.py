"""Reads the file of --config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def read_config(path: Path) -> dict[str, Any]:
    """Its entries: names of flags, with - or _, and their values.

    Raises ValueError naming the file where it is not YAML or no mapping.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if entries is None:
        return {}
    if not isinstance(entries, dict) or not all(isinstance(key, str) for key in entries):
        raise ValueError(f"{path}: must hold names of flags with their values, such as port: 8000")
    names = {}
    for key, value in entries.items():
        name = key.replace("-", "_")
        if name in names:
            raise ValueError(f"{path}: {key} is there twice")
        names[name] = value
    return names
