"""The parsers by the names that --tool-call-parser takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specdec_native.server.tools.events import ToolParser
from specdec_native.server.tools.hermes import HermesParser
from specdec_native.server.tools.llama3_json import Llama3JsonParser

_PARSERS: Mapping[str, Callable[[], ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
}
_WITH_SPECIAL_TOKENS = ("hermes",)  # some of its models have tags as special tokens
NAMES = tuple(_PARSERS)


def make_parser(name: str) -> ToolParser:
    """A parser of one answer."""
    return _PARSERS[name]()


def needs_special_tokens(name: str) -> bool:
    """Whether the parser has to see special tokens."""
    return name in _WITH_SPECIAL_TOKENS
