"""Base classes of bodies and of the objects in them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pydantic
import pydantic_core

_NUMBERS = (int, float, int | None, float | None)
_MOST_WARNINGS = 100  # a client must not fill the log

_logger = logging.getLogger("specdec_native.server")
_warned: set[str] = set()


def warn_of_unknown(given: Iterable[Any], known: Iterable[Any]) -> None:
    """Warns once about each unknown field, which is ignored."""
    for name in sorted(map(str, {*given}.difference(known))):
        if name not in _warned and len(_warned) < _MOST_WARNINGS:
            _warned.add(name)
            _logger.warning("requests have the field %.80r, which this server ignores", name)


class Fields(pydantic.BaseModel):
    """An object. Null means that a field is left out. Unknown fields are ignored with a warning."""

    model_config = pydantic.ConfigDict(extra="ignore", allow_inf_nan=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        fields = cls.model_fields
        warn_of_unknown(given, {*fields, *(each.alias for each in fields.values())})
        return given

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Lets text be a number only if it is digits: pydantic reads "1_0" as 10, and true as 1."""
        is_odd = isinstance(value, bool) or (isinstance(value, str) and "_" in value)
        if is_odd and cls.model_fields[info.field_name or ""].annotation in _NUMBERS:
            raise pydantic_core.PydanticCustomError("number", "Input should be a valid number")
        return value


class Body(Fields):
    """A request's JSON."""

    model: str | None = None
