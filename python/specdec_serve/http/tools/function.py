"""A function that a model may call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that may be called; `parameters` is a JSON schema."""

    name: str
    parameters: Mapping[str, Any] | None
