"""The parsers by the names that --tool-call-parser takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specdec_serve.http.tools.events import ToolParser
from specdec_serve.http.tools.hermes import TAGS as HERMES_TAGS
from specdec_serve.http.tools.hermes import HermesParser
from specdec_serve.http.tools.llama3_json import Llama3JsonParser

_PARSERS: Mapping[str, Callable[[], ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
}
_TAGS = {"hermes": HERMES_TAGS}  # special tokens of some models
NAMES = tuple(_PARSERS)


def make_parser(name: str) -> ToolParser:
    """A parser of one answer."""
    return _PARSERS[name]()


def tags_of(name: str) -> frozenset[str]:
    """Tags that the parser has to see in the text, even if they are special tokens."""
    return frozenset(_TAGS.get(name, ()))
