"""Grammars of values in notations that are almost JSON, by their JSON schemas."""

from __future__ import annotations

import abc
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from specdec_serve.http.tools.lark import Lark, one_of, quoted, re_of
from specdec_serve.http.tools.schema_parts import (
    CannotHoldError,
    arguments_of,
    assertions,
    check_disjoint,
    fixed_values,
    is_count,
    kinds_of,
    length_of,
    members_of,
    part_of,
    resolved,
    string_terminals,
)

_DEEPEST_ANY = 6  # brackets in each other where the schema says nothing
_ALL_KINDS = ("string", "number", "boolean", "null", "array", "object")
_LARGEST = 10**15  # numbers stay finite as floating point
_NUMBER = {
    "integer": r"-?(0|[1-9][0-9]{0,15})",
    "number": r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][+\-]?[0-9]{1,2})?",
}
_HEX = "[0-9a-fA-F]"


class LiteralGrammar(abc.ABC):
    """Rules of the values that one schema describes, in one notation.

    Attributes:
        comma: the rule of what stands between members.
    """

    comma: str
    _words: ClassVar[Mapping[str, str]] = {word: word for word in ("true", "false", "null")}

    def __init__(self, lark: Lark, root: Mapping[str, Any]) -> None:
        self._lark = lark
        self._root = root
        self._referred: dict[str, str] = {}

    # -- what the notation says

    @abc.abstractmethod
    def key(self, name: str, path: str) -> str:
        """A member's key, and what stands before its value."""

    @abc.abstractmethod
    def other_key(self, names: Sequence[str]) -> str:
        """The key of a member that is none of these."""

    @abc.abstractmethod
    def string(self, schema: Mapping[str, Any], path: str) -> str:
        """A string with the schema's keywords of strings."""

    @abc.abstractmethod
    def fixed_string(self, text: str, path: str) -> str:
        """One string."""

    def argument_key(self, name: str, path: str) -> str:
        """An argument's key, and what stands before its value."""
        return self.key(name, path)

    def other_argument_key(self, names: Sequence[str]) -> str:
        """The key of an argument that is none of these."""
        return self.other_key(names)

    # -- values

    def value(self, schema: Any, path: str) -> str:
        """The values of a schema. Raises CannotHoldError."""
        schema = assertions(schema, path)
        if "$ref" in schema:
            _check_alone(schema, "$ref", path)
            return self._reference(schema, path)
        values = fixed_values(schema)
        if values is not None:
            _check_alone(schema, "const" if "const" in schema else "enum", path, "type")
            if not values:
                raise CannotHoldError(path, "no value of enum has the type")
            return one_of(self._fixed(value, path) for value in values)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema:
                return self._alternatives(schema, keyword, path)
        kinds = kinds_of(schema, path)
        if not kinds:
            return self._any(_DEEPEST_ANY)
        return self._lark.rule(
            one_of(self._kind(kind, part_of(schema, kind), path) for kind in kinds)
        )

    def arguments(self) -> str:
        """A function's arguments. Raises CannotHoldError."""
        return self._members(arguments_of(self._root), "parameters", self.argument_key)

    def any_arguments(self) -> str:
        """Arguments of any names and values."""
        return self._joined([], f"{self.other_argument_key([])} {self._any(_DEEPEST_ANY)}")

    def _members(self, schema: Mapping[str, Any], path: str, key: Callable[[str, str], str]) -> str:
        """The members of an object, in the schema's order, then those that may have other names."""
        members, required, others = members_of(schema, path)
        parts = []
        for name, member in members.items():
            inner = f"{path}.{name[:80]}"
            parts.append((f"{key(name, inner)} {self.value(member, inner)}", name in required))
        if others is False:
            return self._joined(parts, "")
        other_key = self.other_key if key == self.key else self.other_argument_key
        return self._joined(parts, f"{other_key([*members])} {self.value(others, f'{path}.*')}")

    def _joined(self, members: Sequence[tuple[str, bool]], other: str) -> str:
        """Members, each with whether it is required, in their order; then any number of others."""
        lark = self._lark
        later = f"({self.comma} {other})*" if other else ""  # the rest, behind a member
        first = f"({other} {later})?" if other else ""  # the rest, where none came before
        for member, is_required in reversed(members):
            begun = f"{member} {later}"
            if not is_required:
                begun = one_of([begun, first]) if first else f"({begun})?"
            first = lark.rule(begun)
            step = f"{self.comma} {member}"
            later = lark.rule(f"{step} {later}" if is_required else f"({step})? {later}")
        return first

    def _kind(self, kind: str, part: Mapping[str, Any], path: str) -> str:
        match kind:
            case "string":
                return self.string(part, path)
            case "integer" | "number":
                return self._number(kind, part)
            case "boolean":
                return one_of([quoted(self._words["true"]), quoted(self._words["false"])])
            case "null":
                return quoted(self._words["null"])
            case "array":
                return f'"[" {self._items(part, path)} "]"'
        return '"{" ' + self._members(part, path, self.key) + ' "}"'

    def _number(self, kind: str, part: Mapping[str, Any]) -> str:
        if not part:
            return self._lark.pattern(_NUMBER[kind])
        bounds = dict(part)
        if not {"minimum", "exclusiveMinimum"} & part.keys():
            bounds["minimum"] = -_LARGEST
        if not {"maximum", "exclusiveMaximum"} & part.keys():
            bounds["maximum"] = _LARGEST
        return self._lark.json({"type": kind, **bounds})

    def _items(self, part: Mapping[str, Any], path: str) -> str:
        """The items of a list, with their commas."""
        prefix, items = part.get("prefixItems", []), part.get("items", True)
        least, most = part.get("minItems", 0), part.get("maxItems")
        if (
            not isinstance(prefix, list)
            or not is_count(least)
            or not (most is None or is_count(most))
        ):
            raise CannotHoldError(path, "minItems and maxItems must be whole numbers")
        # All of prefixItems are there, though some could be left out.
        first = [self._lark.rule(self.value(item, f"{path}[{i}]")) for i, item in enumerate(prefix)]
        least = max(least, len(first))
        if items is False:
            most = len(first) if most is None else min(most, len(first))
        if most is not None and most < least:
            raise CannotHoldError(path, "a list cannot be so long and so short")
        if most == 0:
            return ""
        if len(first) == most:
            return " ".join(_between(first, self.comma))
        item = self._lark.rule(self.value(items, f"{path}[]"))
        is_empty = least == 0
        first = first or [item]
        more = f"{max(least - len(first), 0)},{'' if most is None else most - len(first)}"
        step = self._lark.rule(f"{self.comma} {item}")
        parts = [*_between(first, self.comma), f"{step}{{{more}}}" if most != len(first) else ""]
        return f"({' '.join(parts)}){'?' if is_empty else ''}"

    def _alternatives(self, schema: Mapping[str, Any], keyword: str, path: str) -> str:
        _check_alone(schema, keyword, path, "type")
        given = schema[keyword]
        if not isinstance(given, list) or not given or (keyword == "allOf" and len(given) > 1):
            raise CannotHoldError(path, f"{keyword} must be a list of schemas, allOf of one")
        if keyword == "oneOf":
            check_disjoint(given, self._root, path)
        if "type" in schema:
            given = [{"type": schema["type"], **assertions(each, path)} for each in given]
            if any({"$ref", "anyOf", "oneOf", "allOf"} & each.keys() for each in given) or any(
                each["type"] != schema["type"] for each in given
            ):
                raise CannotHoldError(path, f"write the type within {keyword} alone")
        return self._lark.rule(one_of(self.value(each, path) for each in given))

    def _reference(self, schema: Mapping[str, Any], path: str) -> str:
        reference = str(schema["$ref"])
        if reference not in self._referred:
            target = resolved(schema, self._root, path)
            seen = {reference}
            while isinstance(target, Mapping) and (further := target.get("$ref")) is not None:
                if str(further) in seen:
                    raise CannotHoldError(path, "references lead to themselves")
                seen.add(str(further))
                target = resolved(target, self._root, path)
            name = self._referred[reference] = self._lark.later()
            self._lark.define(name, self.value(target, path))
        return self._referred[reference]

    def _fixed(self, value: Any, path: str) -> str:
        match value:
            case str():
                return self.fixed_string(value, path)
            case list():
                items = [self._fixed(item, path) for item in value]
                return _spaced(['"["', *_between(items, self.comma), '"]"'])
            case dict():
                members = [f"{self.key(k, path)} {self._fixed(v, path)}" for k, v in value.items()]
                return _spaced(['"{"', *_between(members, self.comma), '"}"'])
            case bool() | None:
                return quoted(self._words[json.dumps(value)])
        if not math.isfinite(value):
            raise CannotHoldError(path, "numbers must be finite")
        return quoted(json.dumps(value))

    def _other(self, regex: str, names: Sequence[str]) -> str:
        """A terminal of the names that match an expression and are none of these."""
        found = self._lark.pattern(regex)
        if not names:
            return found
        return self._lark.terminal(f"{found} & ~{self._lark.pattern('|'.join(map(re_of, names)))}")

    def _any(self, depth: int) -> str:
        parts = [self._kind(kind, {}, "") for kind in _ALL_KINDS[:4]]
        if depth:
            inner = self._any(depth - 1)
            member = f"{self.other_key([])} {inner}"
            parts += ['"[" ' + self._joined([], inner) + ' "]"']
            parts += ['"{" ' + self._joined([], member) + ' "}"']
        return self._lark.rule(one_of(parts))


class JsonGrammar(LiteralGrammar):
    """JSON of which no string holds certain texts."""

    _quotes: tuple[str, ...] = ('"',)

    def __init__(self, lark: Lark, root: Mapping[str, Any], stops: Sequence[str] = ()) -> None:
        """`stops`: texts that may not stand within a string."""
        super().__init__(lark, root)
        self.comma = lark.pattern(", ?")
        self._colon = lark.pattern(": ?")
        self._stops = [re_of(stop) for stop in stops]

    def key(self, name: str, path: str) -> str:
        """A string."""
        return f"{self.fixed_string(name, path)} {self._colon}"

    def other_key(self, names: Sequence[str]) -> str:
        """A string without escapes, so that it is not one of `names` in another spelling."""
        key = self._quoted(lambda quote: [self._other(f"{_plain(quote)}+", names)])
        return f"{key} {self._colon}"

    def string(self, schema: Mapping[str, Any], path: str) -> str:
        """Without escapes where the schema has a pattern or a format."""
        if schema.keys() & {"pattern", "format"}:
            allowed = string_terminals(self._lark, schema, {}, path) or ()
            return self._quoted(lambda quote: [self._lark.pattern(f"{_plain(quote)}*"), *allowed])
        lengths = length_of(schema, path)
        return self._quoted(
            lambda quote: [self._lark.pattern(f"({_plain(quote)}|{_escape(quote)}){lengths}")]
        )

    def fixed_string(self, text: str, path: str) -> str:
        """With "<", that texts around values begin with, as an escape where there are any."""
        written = json.dumps(text, ensure_ascii=False)
        return quoted(written.replace("<", "\\u003c") if self._stops else written)

    def _quoted(self, inner: Callable[[str], Sequence[str]]) -> str:
        """A string between each of the quotes, which matches all of some terminals."""
        texts = ((q, self._lark.without(self._stops, allowed=inner(q))) for q in self._quotes)
        return one_of(self._lark.terminal(f"{quoted(q)} {text} {quoted(q)}") for q, text in texts)


class PythonGrammar(JsonGrammar):
    """Python's literals. Its strings have JSON's escapes."""

    _quotes = ('"', "'")
    _words: ClassVar = {"true": "True", "false": "False", "null": "None"}

    def argument_key(self, name: str, path: str) -> str:
        """A name."""
        if re.fullmatch(r"[^\W\d]\w*", name) is None:
            raise CannotHoldError(path, "an argument cannot have this name")
        return quoted(f"{name}=")

    def other_argument_key(self, names: Sequence[str]) -> str:
        """A name. Two of them may be equal, which no call may have."""
        key = self._other(r"[A-Za-z_][A-Za-z0-9_]{0,63}", names)
        return f'{key} "="'

    def fixed_string(self, text: str, path: str) -> str:
        """Between quotes of both kinds."""
        written = json.dumps(text, ensure_ascii=False)
        single = written[1:-1].replace('\\"', '"').replace("'", "\\'")
        return one_of([quoted(written), quoted(f"'{single}'")])


class GemmaGrammar(LiteralGrammar):
    """Gemma's notation: bare keys, and strings between marks, without escapes."""

    comma = '","'

    def __init__(self, lark: Lark, root: Mapping[str, Any], quote: str) -> None:
        super().__init__(lark, root)
        self._quote = quote

    def key(self, name: str, path: str) -> str:
        """A bare key; between marks where a bare one would end early."""
        if re.fullmatch(r"[^,:{}\[\]<\s]([^,:{}\[\]<\n]*[^,:{}\[\]<\s])?", name):
            return quoted(f"{name}:")
        return f'{self.fixed_string(name, path)} ":"'

    def other_key(self, names: Sequence[str]) -> str:
        """A bare key."""
        key = self._other(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}", names)
        return f'{key} ":"'

    def string(self, schema: Mapping[str, Any], path: str) -> str:
        """Any text without the mark."""
        allowed = string_terminals(self._lark, {"type": "string", **schema}, {}, path)
        begin = self._lark.text(self._quote)
        return f"{begin} {self._lark.raw_text([self._quote], self._quote, allowed or ())}"

    def fixed_string(self, text: str, path: str) -> str:
        """The text between marks."""
        if self._quote in text:
            raise CannotHoldError(path, f"{self._quote} ends a string, so none can hold it")
        return self._lark.text(f"{self._quote}{text}{self._quote}")


def _check_alone(schema: Mapping[str, Any], keyword: str, path: str, *others: str) -> None:
    """Raises CannotHoldError where other keywords say something beside this one."""
    if more := schema.keys() - {keyword, *others}:
        raise CannotHoldError(path, f"{min(more)[:80]} beside {keyword} cannot be held to")


def _between(parts: Sequence[str], comma: str) -> list[str]:
    """The parts with commas between them."""
    return [each for part in parts for each in (comma, part)][1:]


def _spaced(parts: Sequence[str]) -> str:
    return f"({' '.join(parts)})"


def _plain(quote: str) -> str:
    """An expression of the characters that a string has without an escape."""
    return rf"[^{quote}\\\x00-\x1f\x7f]"


def _escape(quote: str) -> str:
    """An expression of an escape of one character: of no half of a surrogate pair."""
    return rf"\\([{quote}\\nrtbf]|u([0-9abcefABCEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}))"
