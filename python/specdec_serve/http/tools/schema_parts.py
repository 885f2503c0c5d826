"""What grammars of calls ask of a JSON schema: types of values, and texts of strings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.lark import ANY_TEXT, Lark, one_of, re_of
from specdec_serve.http.tools.schemas import object_of
from specdec_serve.http.tools.value_types import TYPE_NAMES, referred

_KEYWORDS: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_KNOWN = frozenset({"type", "const", "enum", "$ref", "anyOf", "oneOf", "allOf"}).union(
    *_KEYWORDS.values()
)
# Keywords that say nothing about values.
_NOTES = {"title", "description", "default", "examples", "example", "deprecated", "nullable"}
_NOTES |= {"readOnly", "writeOnly", "$comment", "$schema", "$id", "$defs", "definitions", "strict"}
_DEEPEST = 32  # references and alternatives in each other, of a string

_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"  # days that every month has
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
_ZONE = r"(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9\-]{0,30}[A-Za-z0-9])?"
_FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{_ZONE}",
    "date-time": f"{_DATE}T{_TIME}{_ZONE}",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,5}}",
    "email": rf"[A-Za-z0-9_+\-]+(\.[A-Za-z0-9_+\-]+)*@{_LABEL}(\.{_LABEL}){{1,5}}",
}


class CannotHoldError(ValueError):
    """A syntax of calls cannot be held to a part of a schema."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")


def assertions(schema: Any, path: str) -> Mapping[str, Any]:
    """The schema's keywords that say something about values.

    Raises CannotHoldError for a schema that allows none, and for keywords that are not known here.
    """
    if schema is True:
        return {}
    if not isinstance(schema, Mapping):
        raise CannotHoldError(path, "this is not a schema that allows a value")
    rest = {
        key: value
        for key, value in schema.items()
        if key not in _NOTES and not key.startswith("x-")
        if (key, value) != ("uniqueItems", False)
    }
    if unknown := rest.keys() - _KNOWN:
        raise CannotHoldError(path, f"the keyword {min(unknown)[:80]!r} cannot be held to")
    return rest


def kinds_of(schema: Mapping[str, Any], path: str) -> Sequence[str]:
    """JSON schema's names of the types of values.

    Without a type, those that the keywords are about; none: any value.
    """
    named = schema.get("type")
    if named is None:
        return [kind for kind, keywords in _KEYWORDS.items() if keywords & schema.keys()]
    names = named if isinstance(named, list) else [named]
    for name in names:
        if not isinstance(name, str) or name not in TYPE_NAMES:
            raise CannotHoldError(path, f"the type {str(name)[:80]!r} is not known")
    kinds = dict.fromkeys(TYPE_NAMES[name] for name in names)
    if "number" in kinds:
        kinds.pop("integer", None)
    return [*kinds]


def part_of(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The schema's keywords about one type of values."""
    keywords = _KEYWORDS.get("number" if kind == "integer" else kind, frozenset())
    return {key: schema[key] for key in schema.keys() & keywords}


def is_one_of(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value has the schema's type."""
    named = schema.get("type", [*TYPE_NAMES])
    names = {TYPE_NAMES.get(name) for name in (named if isinstance(named, list) else [named])}
    match value:
        case bool():
            return "boolean" in names
        case int() | float():
            return "number" in names or ("integer" in names and value == int(value))
        case str():
            return "string" in names
        case None:
            return "null" in names
    return ("array" if isinstance(value, list) else "object") in names


def fixed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that "const" or "enum" allow; None without them."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return [value for value in values if is_one_of(value, schema)]


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any], path: str) -> Any:
    """What a schema's "$ref" leads to."""
    reference = schema["$ref"]
    found = None
    if reference == "#":
        found = root
    elif isinstance(reference, str) and reference.startswith("#/"):
        found = referred(reference, root)
    if found is None:
        raise CannotHoldError(path, f"$ref {str(reference)[:80]!r} leads nowhere")
    return found


def members_of(schema: Mapping[str, Any], path: str) -> tuple[dict[str, Any], set[str], Any]:
    """An object's members by name, the names of those that are required, and the schema of others.

    Without a word about others, there are those with a name alone, or any where none has a name.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not all(
        isinstance(name, str) for name in (required if isinstance(required, list) else [None])
    ):
        raise CannotHoldError(path, "properties must be an object, and required a list of names")
    unnamed = {name: True for name in required if name not in properties}
    members = {name: member for name, member in properties.items() if member is not False}
    others = schema.get("additionalProperties", not (members or unnamed or properties))
    return members | unnamed, {*required}, others


def arguments_of(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The schema of a function's arguments, which is that of a plain object.

    Raises CannotHoldError for others.
    """
    path, root = "parameters", object_of(parameters)
    schema = assertions(root, path)
    for _ in range(_DEEPEST):
        if "$ref" not in schema:
            break
        schema = {"type": "object", **assertions(resolved(schema, root, path), path)}
    if beside := schema.keys() - {"type"} - _KEYWORDS["object"]:
        raise CannotHoldError(path, f"{min(beside)[:80]} cannot be held to outside of properties")
    if schema.get("type") != "object":
        raise CannotHoldError(path, 'the type must be "object"')
    return schema


def json_arguments(function: Function, *, is_held: bool) -> str:
    """A rule of the JSON of a function's arguments; any object where it is not held."""
    return Lark.json(object_of(function.parameters) if is_held else {"type": "object"})


def check_disjoint(alternatives: Sequence[Any], root: Mapping[str, Any], path: str) -> None:
    """Raises CannotHoldError for alternatives of "oneOf" of which a value may be two."""
    marks = [_marks_of(alternative, root, path) for alternative in alternatives]
    for one, other in itertools.combinations(marks, 2):
        if not any(one[key].isdisjoint(other[key]) for key in one.keys() & other.keys()):
            raise CannotHoldError(path, "the alternatives of oneOf overlap; write anyOf")


def _marks_of(schema: Any, root: Mapping[str, Any], path: str) -> dict[str, frozenset[str]]:
    """What tells a schema's values from others: their types, and required members' values."""
    schema = assertions(schema, path)
    if "$ref" in schema:
        schema = assertions(resolved(schema, root, path), path)
    marks = {}
    values = fixed_values(schema)
    if values is not None:
        marks["values"] = frozenset(map(repr, values))
    if "type" in schema:
        kinds = kinds_of(schema, path)
        marks["type"] = frozenset([*kinds, *(["integer"] if "number" in kinds else [])])
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, Mapping) and isinstance(required, list):
        for name in required:
            member = properties.get(name) if isinstance(name, str) else None
            if isinstance(member, Mapping) and (fixed := fixed_values(member)) is not None:
                marks[f"property {name}"] = frozenset(map(repr, fixed))
    return marks


def string_terminals(
    lark: Lark, schema: Any, root: Mapping[str, Any], path: str, depth: int = 0
) -> list[str] | None:
    """The terminals that a string of the schema matches, all of them; None where none can be one.

    They are about the text without quotes and escapes.
    """
    keywords = assertions(schema, path)
    if depth > _DEEPEST:
        raise CannotHoldError(path, "references lead to themselves")
    if "type" in keywords and "string" not in kinds_of(keywords, path):
        return None
    found: list[list[str] | None] = [
        [lark.pattern(regex) for regex in _string_patterns(keywords, path)]
    ]
    if (values := fixed_values(keywords)) is not None:
        texts = [re_of(value) for value in values if isinstance(value, str)]
        found.append([lark.pattern("|".join(texts))] if texts else None)
    if "$ref" in keywords:
        target = resolved(keywords, root, path)
        found.append(string_terminals(lark, target, root, path, depth + 1))
    for keyword in keywords.keys() & {"anyOf", "oneOf", "allOf"}:
        given = keywords[keyword]
        if not isinstance(given, list) or not given:
            raise CannotHoldError(path, f"{keyword} must be a list of schemas")
        parts = [string_terminals(lark, each, root, path, depth + 1) for each in given]
        if keyword == "oneOf":
            check_disjoint(given, root, path)
        found += parts if keyword == "allOf" else [_any_of(lark, parts)]
    if any(terminals is None for terminals in found):
        return None
    return [terminal for terminals in found for terminal in terminals or ()]


def _any_of(lark: Lark, alternatives: Sequence[list[str] | None]) -> list[str] | None:
    """The terminals of strings of any of the alternatives."""
    good = [terminals for terminals in alternatives if terminals is not None]
    if not good:
        return None
    if not all(good):
        return []  # one of them allows any text
    return [lark.terminal(one_of(lark.terminal(" & ".join(terminals)) for terminals in good))]


def allows_null(schema: Any, root: Mapping[str, Any], path: str, depth: int = 0) -> bool:
    """Whether null obeys a schema."""
    keywords = assertions(schema, path)
    if depth > _DEEPEST or ("type" in keywords and "null" not in kinds_of(keywords, path)):
        return False
    values = fixed_values(keywords)
    parts = [values is None or None in values]
    if "$ref" in keywords:
        parts.append(allows_null(resolved(keywords, root, path), root, path, depth + 1))
    for keyword in keywords.keys() & {"anyOf", "oneOf", "allOf"}:
        given = [allows_null(each, root, path, depth + 1) for each in keywords[keyword]]
        parts.append(all(given) if keyword == "allOf" else any(given))
    return all(parts)


def _string_patterns(keywords: Mapping[str, Any], path: str) -> list[str]:
    """Regular expressions that a string matches, by its keywords but for enum and const."""
    patterns = []
    if {"minLength", "maxLength"} & keywords.keys():
        patterns.append(rf"(?s:.){length_of(keywords, path)}")
    if "pattern" in keywords:
        patterns.append(_whole_pattern(keywords["pattern"], path))
    if "format" in keywords:
        name = keywords["format"]
        if not isinstance(name, str) or name not in _FORMATS:
            raise CannotHoldError(
                path,
                f"the format {str(name)[:80]!r} cannot be held to; {', '.join(_FORMATS)} can",
            )
        patterns.append(_FORMATS[name])
    return patterns


def is_count(value: Any) -> bool:
    """Whether a keyword's value is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def length_of(keywords: Mapping[str, Any], path: str) -> str:
    """How often a regular expression's part stands in a string of the right length."""
    least, most = keywords.get("minLength", 0), keywords.get("maxLength")
    for length in (least, 0 if most is None else most):
        if not is_count(length):
            raise CannotHoldError(path, "minLength and maxLength must be whole numbers")
    if not least and most is None:
        return "*"
    return f"{{{least},{'' if most is None else most}}}"


def _whole_pattern(pattern: Any, path: str) -> str:
    """A regular expression of the whole text from one of a part of it."""
    if not isinstance(pattern, str):
        raise CannotHoldError(path, "pattern must be a text")
    begin, end = pattern.startswith("^"), _ends_with_anchor(pattern)
    if not (begin or end):
        return f"{ANY_TEXT}({pattern}){ANY_TEXT}"
    if _has_alternatives(pattern):
        raise CannotHoldError(
            path, f"put brackets around the alternatives of the pattern {pattern[:80]!r}"
        )
    inner = pattern[begin : len(pattern) - end]
    return f"{'' if begin else ANY_TEXT}({inner}){'' if end else ANY_TEXT}"


def _ends_with_anchor(pattern: str) -> bool:
    stem = pattern.removesuffix("$")
    num_escapes = len(stem) - len(stem.rstrip("\\"))
    return stem != pattern and num_escapes % 2 == 0


def _has_alternatives(pattern: str) -> bool:
    """Whether a regular expression has alternatives outside of brackets."""
    depth, in_class, position = 0, False, 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            return True
        position += 1
    return False
