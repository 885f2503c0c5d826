"""Grammars of parameters that stand between tags, by their JSON schemas."""

from __future__ import annotations

from typing import Any

from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.lark import ANY_TEXT, Lark, one_of, quoted, re_of
from specdec_serve.http.tools.literal_grammar import JsonGrammar
from specdec_serve.http.tools.schema_parts import (
    CannotHoldError,
    allows_null,
    arguments_of,
    members_of,
    string_terminals,
)
from specdec_serve.http.tools.schemas import object_of
from specdec_serve.http.tools.value_types import TEXT, ParameterTypes
from specdec_serve.http.tools.xml_reader import XmlCalls

_NULL = r"[\s\x1c-\x1f]*null[\s\x1c-\x1f]*"  # what is read as null where the schema allows null


class XmlGrammar:
    """Rules of the parameters of one function."""

    def __init__(self, lark: Lark, syntax: XmlCalls, function: Function) -> None:
        self._lark = lark
        self._syntax = syntax
        self._function = function.name
        self._types = ParameterTypes([function])
        self._root = object_of(function.parameters)
        self._space = lark.optional_space()
        self._values = JsonGrammar(lark, self._root, syntax.value_ends)

    def any_parameters(self) -> str:
        """Parameters of any names and values."""
        lark = self._lark
        key = lark.pattern(r"[\w.\-]{1,64}")
        written = [f"{self._tags(key)} {self._raw([])}"]
        if self._syntax.text_key_end:
            written.append(f"{self._tags(key, is_text=True)} {self._raw([])}")
        return f"({one_of(written)} {self._space})*"

    def parameters(self) -> str:
        """The parameters of the schema, in its order.

        Others may follow where members_of() says so. Raises CannotHoldError.
        """
        members, required, others = members_of(arguments_of(self._root), "parameters")
        parts = []
        for name, member in members.items():
            written = f"{self._parameter(name, member)} {self._space}"
            parts.append(self._lark.rule(written if name in required else f"({written})?"))
        if others is not False:
            parts.append(self._others([*members], others))
        return " ".join(parts)

    def _others(self, names: list[str], schema: Any) -> str:
        """Parameters of other names. They are read as JSON."""
        lark = self._lark
        key = lark.pattern(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")
        if names:
            key = lark.terminal(f"{key} & ~{lark.pattern('|'.join(map(re_of, names)))}")
        value = self._values.value(schema, "parameters.*")
        return f"({self._tags(key)} {self._ended(value)} {self._space})*"

    def _key(self, name: str) -> str:
        syntax = self._syntax
        is_plain = name.strip() == name and name and not {"\n", "<", ">"} & {*name}
        if not is_plain or syntax.key_ends_pattern.search(name):
            raise CannotHoldError(f"parameters.{name}", "a tag cannot hold this name")
        return quoted(name)

    def _tags(self, key: str, *, is_text: bool = False) -> str:
        """What stands before a value; `key` is a terminal or a fixed text."""
        syntax, lark = self._syntax, self._lark
        key_end = (is_text and syntax.text_key_end) or syntax.key_end
        begin, end = lark.marks(syntax.key_begin), lark.marks(key_end)
        if begin[-1].startswith('"'):
            key = lark.terminal(f"{begin.pop()} {key}")
        if end[0].startswith('"'):
            key = lark.terminal(f"{key} {end.pop(0)}")
        parts = [*begin, key, *end]
        if syntax.value_begin:
            parts += [self._space, lark.text(syntax.value_begin)]
        if syntax.is_wrapped:
            parts.append(r'"\n"')
        return " ".join(parts)

    def _parameter(self, name: str, schema: Any) -> str:
        """The tags and the value of a parameter."""
        path, key = f"parameters.{name[:80]}", self._key(name)
        types = self._types.of(self._function, name)
        if types - {"null"} != TEXT:
            return f"{self._tags(key)} {self._ended(self._values.value(schema, path))}"
        parts = []
        allowed = string_terminals(self._lark, schema, self._root, path)
        if allowed is not None:
            if "null" in types and not self._syntax.text_key_end:
                allowed.append(f"~{self._lark.pattern(_NULL)}")
            parts.append(f"{self._tags(key, is_text=True)} {self._raw(allowed)}")
        if "null" in types and allows_null(schema, self._root, path):
            parts.append(f"{self._tags(key)} {self._ended(quoted('null'))}")
        if not parts:
            raise CannotHoldError(path, "no text is allowed")
        return one_of(parts)

    def _raw(self, allowed: list[str]) -> str:
        syntax = self._syntax
        if syntax.trims and not syntax.is_wrapped:  # the reader takes line breaks for the tags'
            breaks = self._lark.pattern(rf"{ANY_TEXT}\n|\n{ANY_TEXT}")
            allowed = [*allowed, f"~{breaks}"]
        return self._lark.raw_text(syntax.value_ends, self._value_end, allowed)

    def _ended(self, value: str) -> str:
        return f"{value} {self._lark.text(self._value_end)}"

    @property
    def _value_end(self) -> str:
        return ("\n" if self._syntax.is_wrapped else "") + self._syntax.value_end
