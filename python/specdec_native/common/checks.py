"""Checks of values that a user gave. Each raises a ValueError that names the argument."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Sequence
from typing import Any

from specdec_native import _core

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
FLOAT32_MAX = (2 - 2**-23) * 2.0**127


def check_option(option: _core.Option, value: Any, *, maximum: int | float | None = None) -> Any:
    """`value` in the type of an option of the core, in its range and at most `maximum`."""
    if option.choices:
        return check_choice(option.name, value, option.choices)
    if option.type == "bool":
        return check_flag(option.name, value)
    if option.type == "str":
        if not isinstance(value, str):
            raise ValueError(f"{option.name} must be a string, got {shown(value)}")
        return check_text(option.name, value)
    if maximum is None:
        maximum = option.highest
    if "int" in option.type:
        lowest, highest = (None if end is None else int(end) for end in (option.lowest, maximum))
        return check_integer(option.name, value, minimum=lowest or 0, maximum=highest)
    return check_number(
        option.name,
        value,
        minimum=-math.inf if option.lowest is None else option.lowest,
        maximum=math.inf if maximum is None else maximum,
        above_minimum=option.above_lowest,
    )


def check_number(
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above_minimum: bool = False,
) -> float:
    """`value` as a finite float in [minimum, maximum], or in (minimum, maximum]."""
    value = _plain(value)
    try:
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {shown(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {number}")
    if not minimum <= number <= maximum or (above_minimum and number == minimum):
        raise ValueError(f"{name} must be {_range(minimum, maximum, above_minimum)}, got {number}")
    return number


def check_integer(name: str, value: Any, *, minimum: int, maximum: int | None = None) -> int:
    """`value` as an int in [minimum, maximum]. Any integer type is accepted, except bool."""
    value = _plain(value)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {shown(value)}") from None
    if maximum is None and number > INT64_MAX:
        maximum = INT64_MAX
    if number < minimum or (maximum is not None and number > maximum):
        upper = math.inf if maximum is None else maximum
        raise ValueError(f"{name} must be {_range(minimum, upper)}, got {shown(number)}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """`value` as True or False; 1 and 0 are the same."""
    flag = _plain(value)
    if not isinstance(flag, int) or flag not in (0, 1):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")
    return bool(flag)


def check_text(name: str, value: str) -> str:
    """`value`. Raises where it cannot be encoded: half of a surrogate pair is no character."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has half of a surrogate pair, {value[error.start]!r} at {error.start}, which "
            "is no character; leave it out"
        ) from None
    return value


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """`value`, which is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}")
    return value


def shown(value: Any) -> str:
    """The beginning of repr(value), for an error message."""
    try:
        return f"{value!r:.80}"
    except Exception:  # Python refuses to write long integers; a user's __repr__ may raise
        return f"a value of type {type(value).__name__}"


def close_matches(name: object, known: Sequence[str]) -> str:
    """A question that offers the known names most like `name`; empty where none is similar."""
    close = difflib.get_close_matches(str(name), known, n=3)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def _plain(value: Any) -> Any:
    """The Python value of a scalar of numpy's or torch's."""
    return value.item() if getattr(value, "shape", None) == () else value


def _range(minimum: float, maximum: float, above_minimum: bool = False) -> str:
    if math.isinf(maximum):
        return f"{'greater than' if above_minimum else 'at least'} {_bound(minimum)}"
    if math.isinf(minimum):
        return f"at most {_bound(maximum)}"
    return f"in {'(' if above_minimum else '['}{_bound(minimum)}, {_bound(maximum)}]"


def _bound(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)
