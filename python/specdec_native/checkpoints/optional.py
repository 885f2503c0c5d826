"""Packages that are only needed for some checkpoints, imported when they are."""

from __future__ import annotations

import importlib
from typing import Any

from specdec_native.checkpoints.errors import MissingDependencyError


def import_optional(name: str, *, purpose: str, extra: str) -> Any:
    """The module `name`, or MissingDependencyError naming the `extra` that installs it.

    `purpose` says what needs it and begins the message: "reading a GGUF file".
    """
    try:
        return importlib.import_module(name)
    except ImportError as fault:
        raise MissingDependencyError(name.partition(".")[0], purpose, extra) from fault


def import_gguf() -> Any:
    """The package that knows GGUF's encodings."""
    return import_optional("gguf", purpose="reading a GGUF file", extra="gguf")
