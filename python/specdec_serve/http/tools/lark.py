"""Writes grammars in llguidance's Lark syntax, for one tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from specdec_native.requests.structured_outputs import WrittenGrammar
from specdec_serve.http.tools.call_formats import TAG

TokenId: TypeAlias = Callable[[str], int | None]  # the token of a text that is a token by itself

ANY_TEXT = "(?s:.*)"
_NO_LITERAL = re.compile(r"[^0-9A-Za-z_]")
# With more white space, some models never end. A schema's own options come last.
_OPTIONS = {"x-guidance": {"whitespace_pattern": " ?"}}


class Lark:
    """The rules of one grammar. Methods return what stands for them in other rules.

    Terminals are parts of the text that the library reads one by one, each as far as it goes, so
    of two that may stand in one place neither may begin with a text that is the other one.
    """

    def __init__(self, token_id: TokenId) -> None:
        self._token_id = token_id
        self._names: dict[str, str] = {}  # of the rules and terminals, by their definitions
        self._definitions: dict[str, str] = {}

    # -- parts of rules

    def rule(self, definition: str) -> str:
        """A rule. Equal ones are one."""
        return self._named("r", definition)

    def later(self) -> str:
        """The name of a rule that define() defines: it may refer to itself."""
        name = f"s{len(self._definitions)}"
        self._definitions[name] = ""
        return name

    def define(self, name: str, definition: str) -> None:
        """Defines the rule of a name that later() gave."""
        self._definitions[name] = definition

    def terminal(self, definition: str) -> str:
        """A terminal, of regular expressions, texts and terminals joined by |, & and ~."""
        return self._named("T", definition)

    def pattern(self, regex: str) -> str:
        """A terminal of a regular expression in Rust's syntax."""
        return self.terminal(f"/{_escaped(regex)}/")

    def optional_space(self) -> str:
        """White space between the parts of a call."""
        return self.pattern(r"[ \n]{0,3}")

    def marks(self, text: str) -> list[str]:
        """A fixed text: its marks that are tokens by their ids, the text between as it is."""
        parts = []
        position = 0
        for tag in TAG.finditer(text):
            token = self._token_id(tag[0])
            if token is not None:
                parts += [quoted(text[position : tag.start()]), f"<[{token}]>"]
                position = tag.end()
        parts.append(quoted(text[position:]))
        return [part for part in parts if part != '""']

    def has_tokens(self, text: str) -> bool:
        """Whether the text has marks, and all of them are tokens."""
        tags = TAG.findall(text)
        return bool(tags) and all(self._token_id(tag) is not None for tag in tags)

    def text(self, text: str) -> str:
        """A fixed text, as a part of a rule; "" for no text."""
        return " ".join(self.marks(text))

    def raw_text(self, stops: Iterable[str], end: str, allowed: Iterable[str] = ()) -> str:
        """Text without any of `stops`, then the mark `end`.

        `allowed` are terminals that the text has to match, all of them.
        """
        inner = self.without([re_of(stop) for stop in stops], allowed=allowed)
        return self.ended(inner, end)

    def without(
        self, found: Iterable[str], starts: Iterable[str] = (), allowed: Iterable[str] = ()
    ) -> str:
        """A terminal of the texts that hold none of the expressions, nor begin with `starts`."""
        excluded = [
            f"{before}({'|'.join(regexes)}){ANY_TEXT}"
            for before, regexes in ((ANY_TEXT, [*found]), ("", [*starts]))
            if regexes
        ]
        parts = [*allowed]
        if all(part.startswith("~") for part in parts):  # those alone match special tokens as well
            parts.insert(0, self.pattern(ANY_TEXT))
        if excluded:
            parts.append(f"~{self.pattern('|'.join(excluded))}")
        return self.terminal(" & ".join(parts))

    def ended(self, inner: str, end: str) -> str:
        """A terminal, and the fixed text after it."""
        first, *rest = self.marks(end)
        if first.startswith('"'):
            return " ".join([self.terminal(f"{inner} {first}"), *rest])
        return " ".join([inner, first, *rest])

    @staticmethod
    def json(schema: Any, root: Mapping[str, Any] | None = None) -> str:
        """JSON of a schema, whose references lead into `root`."""
        if isinstance(schema, Mapping):
            definitions = {
                key: root[key] for key in ("$defs", "definitions") if root and key in root
            }
            schema = _OPTIONS | definitions | dict(schema)
        return f"%json {json.dumps(schema)}"

    def params(self, start: str) -> WrittenGrammar:
        """The grammar of texts that are `start`."""
        lines = [f"{name}: {definition}" for name, definition in self._definitions.items()]
        return WrittenGrammar(grammar="\n".join([f"start: {start}", *lines]) + "\n")

    def _named(self, kind: str, definition: str) -> str:
        if definition not in self._names:
            self._names[definition] = f"{kind}{len(self._definitions)}"
            self._definitions[self._names[definition]] = definition
        return self._names[definition]


def one_of(parts: Iterable[str]) -> str:
    """Any of the parts of a rule or terminal."""
    return f"({' | '.join(dict.fromkeys(parts))})"


def quoted(text: str) -> str:
    """A fixed text, as a part of a rule or terminal."""
    return json.dumps(text, ensure_ascii=False)


def re_of(text: str) -> str:
    """The regular expression of one text."""
    return _NO_LITERAL.sub(lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def _escaped(regex: str) -> str:
    """A regular expression, as it stands between slashes."""
    regex = regex.replace("\n", r"\n").replace("\r", r"\r")
    return re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], regex)
