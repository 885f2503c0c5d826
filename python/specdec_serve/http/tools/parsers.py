"""The parsers of answers, by the names that --tool-call-parser and --reasoning-parser take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from specdec_serve.http.tools.call_formats import CALL_FORMATS
from specdec_serve.http.tools.events import AnswerParser
from specdec_serve.http.tools.harmony import TAGS as HARMONY_TAGS
from specdec_serve.http.tools.harmony import HarmonyParser

_CALL_PARSERS: Mapping[str, Callable[[], AnswerParser]] = {
    name: call_format.parser for name, call_format in CALL_FORMATS.items()
}
_TAGS = {name: call_format.tags for name, call_format in CALL_FORMATS.items()}
# Harmony's names: one parser reads calls and reasoning, so each of them means both.
_HARMONY_CALLS = "openai"
_HARMONY_REASONING = "openai_gptoss"
_HARMONY_ARCHITECTURES = ("GptOssForCausalLM",)
TOOL_CALL_PARSERS = (*_CALL_PARSERS, _HARMONY_CALLS)
REASONING_PARSERS = (_HARMONY_REASONING,)


@dataclasses.dataclass(frozen=True)
class AnswerFormat:
    """How a model writes its answers.

    Attributes:
        calls: the parser of calls that the model chooses to make; None: they are not read.
        is_harmony: whether the answers are messages on channels, in harmony.
    """

    calls: str | None = None
    is_harmony: bool = False

    @classmethod
    def of(
        cls, architecture: str, *, tool_call_parser: str | None, reasoning_parser: str | None
    ) -> AnswerFormat:
        """The format that the parsers' names say; without any, that of the model."""
        if tool_call_parser is None and reasoning_parser is None:
            is_harmony = architecture in _HARMONY_ARCHITECTURES
        else:
            is_harmony = tool_call_parser == _HARMONY_CALLS or reasoning_parser is not None
        return cls(_HARMONY_CALLS if is_harmony else tool_call_parser, is_harmony)

    def parser(self, *, reads_calls: bool) -> AnswerParser | None:
        """A parser of one answer; None where its text is all content."""
        if self.is_harmony:
            return HarmonyParser(reads_calls=reads_calls)
        if reads_calls and self.calls is not None:
            return _CALL_PARSERS[self.calls]()
        return None

    def tags(self, *, reads_calls: bool) -> frozenset[str]:
        """Tags that the parser has to see in the text, even if they are special tokens."""
        if self.is_harmony:
            return frozenset(HARMONY_TAGS)
        return frozenset(_TAGS.get(self.calls or "", ()) if reads_calls else ())
