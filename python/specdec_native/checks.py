"""Checks of values that a user gave. Each raises a ValueError that names the argument."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

INT32_MAX = 2**31 - 1


def check_number(
    name: str, value: Any, *, minimum: float = -math.inf, maximum: float = math.inf
) -> float:
    """`value` as a finite float in [minimum, maximum]."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ValueError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {number}")
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} must be {_range(minimum, maximum)}, got {number}")
    return number


def check_integer(name: str, value: Any, *, minimum: int, maximum: int | None = None) -> int:
    """`value` as an int in [minimum, maximum]; whatever counts as one, but no bool."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if number < minimum or (maximum is not None and number > maximum):
        upper = math.inf if maximum is None else maximum
        raise ValueError(f"{name} must be {_range(minimum, upper)}, got {number}")
    return number


def check_choice(name: str, value: Any, choices: Mapping[str, str]) -> str:
    """What `choices` has for `value`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return choices[value]


def close_matches(name: object, known: Sequence[str]) -> str:
    """A question that offers the known names most like `name`; empty where none is."""
    close = difflib.get_close_matches(str(name), known, n=3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def _range(minimum: float, maximum: float) -> str:
    if math.isinf(maximum):
        return f"at least {minimum:g}"
    if math.isinf(minimum):
        return f"at most {maximum:g}"
    return f"in [{minimum:g}, {maximum:g}]"
