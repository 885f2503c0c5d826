"""JSON schemas of calls: of one, and of a list of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_serve.http.errors import bad_request
from specdec_serve.http.tools.function import Function

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_DEFINITIONS = ("$defs", "definitions")  # keys of a schema's definitions


def object_of(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of a function's arguments."""
    return {"type": "object", **parameters} if parameters else dict(_NO_PARAMETERS)


def call_schemas(
    functions: Sequence[Function],
    key: str,
    arguments_of: Callable[[Function], Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The schemas of the functions' calls, with the arguments as the member `key`.

    The functions' definitions are moved into the second value, for the top level of a schema, where
    references look. Raises ApiError for definitions that differ.
    """
    definitions: dict[str, dict[str, Any]] = {}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [function.name]},
                key: _without_definitions(function, arguments_of(function), definitions),
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for function in functions
    ]
    return calls, definitions


def list_of(
    calls: Sequence[Mapping[str, Any]], definitions: Mapping[str, Any], *, parallel: bool = True
) -> dict[str, Any]:
    """The schema of one or several calls, as in vLLM."""
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not parallel:
        schema["maxItems"] = 1
    return schema | dict(definitions)


def _without_definitions(
    function: Function, schema: Mapping[str, Any], definitions: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    rest = dict(copy.copy(schema))
    for keyword in _DEFINITIONS:
        own = rest.pop(keyword, {})
        if not isinstance(own, Mapping):
            raise bad_request(
                f"tools: {keyword} of the function {function.name[:80]!r} must be an object",
                "tools",
            )
        for name, definition in own.items():
            shared = definitions.setdefault(keyword, {})
            if shared.setdefault(name, definition) != definition:
                raise bad_request(
                    f"tools: several functions define {name[:80]!r} in {keyword}, each otherwise; "
                    "rename one",
                    "tools",
                )
    return rest
