"""What all bodies have in common, and the objects in them."""

from __future__ import annotations

from typing import Any

import pydantic


class Fields(pydantic.BaseModel):
    """An object. Unknown fields are ignored, and null is the same as a field left out."""

    model_config = pydantic.ConfigDict(extra="ignore", allow_inf_nan=True)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class Body(Fields):
    """A request's JSON."""

    model: str | None = None
