"""Which types a function's parameters have, and values that are written without a type."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.literal_scanner import LiteralScanner, json_text
from specdec_serve.http.tools.object_scanner import Step

TEXT = frozenset({"string"})
_DEEPEST_SCHEMA = 8  # references and alternatives in each other; deeper ones say nothing
_NAMES: Mapping[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    type(None): ("null",),
    dict: ("object",),
    list: ("array",),
}
TYPE_NAMES = {name: name for names in _NAMES.values() for name in names}
# Names of other languages, which clients write though JSON schema has no such types.
TYPE_NAMES |= {"str": "string", "int": "integer", "float": "number", "double": "number"}
TYPE_NAMES |= {"bool": "boolean", "list": "array", "dict": "object"}


class ParameterTypes:
    """The types of a request's functions' parameters."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._schemas = {function.name: function.parameters or {} for function in functions}

    def of(self, function: str, parameter: str) -> frozenset[str]:
        """JSON schema's names of the types that the parameter may have; none: any."""
        schema = self._schemas.get(function, {})
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return frozenset()
        return _types_of(properties.get(parameter), schema, 0)


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON of a value that was written as a text without quotes.

    It is JSON, or else a Python literal, of one of the types; or else the text is a string. Without
    types any JSON will do.
    """
    if types == TEXT:
        return json_text(text)
    stripped = text.strip()
    if types - {"null"} == TEXT:
        return stripped if stripped == "null" else json_text(text)
    for written in (stripped, _json_of_literal(stripped) if types else None):
        if written is not None and _fits(written, types):
            return written
    return json_text(text)


def _types_of(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _DEEPEST_SCHEMA:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return _types_of(referred(reference, root), root, depth + 1)
    named = schema.get("type")
    if named is not None:
        names = named if isinstance(named, list) else [named]
        return frozenset(TYPE_NAMES[n] for n in names if isinstance(n, str) and n in TYPE_NAMES)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(_NAMES[type(value)][0] for value in values if type(value) in _NAMES)
    alternatives = [
        _types_of(alternative, root, depth + 1)
        for keyword in ("anyOf", "oneOf", "allOf")
        if isinstance(members := schema.get(keyword), list)
        for alternative in members
    ]
    return frozenset().union(*alternatives)


def referred(reference: str, root: Any) -> Any:
    """What a reference such as "#/$defs/name" leads to."""
    for key in reference.removeprefix("#/").split("/"):
        root = root.get(key) if isinstance(root, Mapping) else None
    return root


def _fits(written: str, types: frozenset[str]) -> bool:
    """Whether the text is JSON of one of the types."""
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True
    return not types or not types.isdisjoint(_NAMES[type(value)])


def _json_of_literal(text: str) -> str | None:
    scanner = LiteralScanner()
    end, step = scanner.read(text, 0, is_last=True)
    return scanner.take() if step is Step.END and end == len(text) else None


def _refuse(constant: str) -> NoReturn:
    """NaN and infinity are not JSON."""
    raise ValueError(constant)
