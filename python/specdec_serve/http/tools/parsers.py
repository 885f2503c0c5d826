"""The parsers of answers, by the names that --tool-call-parser and --reasoning-parser take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from specdec_native.text.reasoning import (
    HARMONY,
    REASONING_NAMES,
    ReasoningFormat,
    ReasoningStart,
    reasoning_format_of,
)
from specdec_serve.http.tools.events import AnswerParser
from specdec_serve.http.tools.harmony import TAGS as HARMONY_TAGS
from specdec_serve.http.tools.harmony import HarmonyParser
from specdec_serve.http.tools.hermes import TAGS as HERMES_TAGS
from specdec_serve.http.tools.hermes import HermesParser
from specdec_serve.http.tools.llama3_json import Llama3JsonParser
from specdec_serve.http.tools.thinking import ThinkingParser

_CALL_PARSERS: Mapping[str, Callable[[], AnswerParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
}
_TAGS = {"hermes": HERMES_TAGS}  # special tokens of some models
# One parser reads harmony's calls and its reasoning, so each of the two names means both.
_HARMONY_CALLS = "openai"
_HARMONY_ARCHITECTURES = ("GptOssForCausalLM",)
_NONE = "none"
TOOL_CALL_PARSERS = (*_CALL_PARSERS, _HARMONY_CALLS, _NONE)
REASONING_PARSERS = (*REASONING_NAMES, _NONE)


@dataclasses.dataclass(frozen=True)
class AnswerFormat:
    """How a model writes its answers.

    Attributes:
        calls: the parser of calls that the model chooses to make; None: they are not read.
        reasoning: how the model marks what it thinks; None: it does not.
    """

    calls: str | None = None
    reasoning: ReasoningFormat | None = None

    @classmethod
    def of(
        cls,
        architecture: str,
        chat_template: str | None = None,
        *,
        tool_call_parser: str | None,
        reasoning_parser: str | None,
    ) -> AnswerFormat:
        """The format that the parsers' names say; without a name, what the model's template shows.

        The name "none" is for what is not read.
        """
        reasoning = REASONING_NAMES.get(reasoning_parser or "")
        if reasoning_parser is None:
            reasoning = reasoning_format_of(chat_template)
            if architecture in _HARMONY_ARCHITECTURES or tool_call_parser == _HARMONY_CALLS:
                reasoning = HARMONY
            if reasoning is HARMONY and tool_call_parser not in (None, _HARMONY_CALLS):
                reasoning = None  # a fine-tune with another template
        if reasoning is HARMONY:
            return cls(_HARMONY_CALLS, HARMONY)
        return cls(None if tool_call_parser == _NONE else tool_call_parser, reasoning)

    @property
    def is_harmony(self) -> bool:
        """Whether the answers are messages on channels, in harmony."""
        return self.reasoning is HARMONY

    def parser(
        self, *, reads_calls: bool, start: ReasoningStart, forced: AnswerParser | None = None
    ) -> AnswerParser | None:
        """A parser of one answer; None where its text is all content.

        `start` says where the text begins. `forced` reads calls that a grammar forces.
        """
        if self.is_harmony:
            return HarmonyParser(reads_calls=reads_calls)
        answer = forced
        if reads_calls and self.calls is not None:
            answer = _CALL_PARSERS[self.calls]()
        if self.reasoning is None:
            return answer
        return ThinkingParser(self.reasoning, start, answer)

    def tags(self, *, reads_calls: bool) -> frozenset[str]:
        """Tags that the parser has to see in the text, even if they are special tokens."""
        if self.is_harmony:
            return frozenset(HARMONY_TAGS)
        calls = _TAGS.get(self.calls or "", ()) if reads_calls else ()
        return frozenset(calls) | (self.reasoning.tags if self.reasoning else frozenset())
