"""A function that a model may call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that may be called.

    Attributes:
        parameters: the JSON schema of its arguments.
        is_strict: whether calls that the model chooses to make have to obey it.
    """

    name: str
    parameters: Mapping[str, Any] | None
    is_strict: bool = False
