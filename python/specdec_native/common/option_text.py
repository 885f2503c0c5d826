"""Describes an option of the core for help texts and documents."""

from __future__ import annotations

from specdec_native import _core


def help_line(
    option: _core.Option, maximum: float | None = None, *, absent: str = "None for"
) -> str:
    """Its effect, its range and its default behaviour, without a full stop.

    `maximum` is a limit beside the core's. `absent` are the words for leaving the option out.
    """
    default = "" if option.zero is None else f"; {absent} {option.zero}"
    return option.help + _range(option, maximum) + default


def _range(option: _core.Option, maximum: float | None) -> str:
    highest = option.highest if maximum is None else maximum
    if option.zero is not None or option.lowest is None:
        return ""
    if highest is not None:
        return f"; in {'(' if option.above_lowest else '['}{option.lowest:g}, {highest:g}]"
    return f"; greater than {option.lowest:g}" if option.above_lowest else ""
