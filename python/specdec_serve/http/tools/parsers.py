"""The parsers of answers, by the names that --tool-call-parser and --reasoning-parser take."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from specdec_native.text.reasoning import (
    HARMONY,
    REASONING_NAMES,
    ReasoningFormat,
    ReasoningStart,
    reasoning_format_of,
)
from specdec_serve.http.tools.call_formats import CALL_FORMATS, CallFormat, call_format_of
from specdec_serve.http.tools.call_grammar import CallGrammar
from specdec_serve.http.tools.events import AnswerParser
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.harmony import TAGS as HARMONY_TAGS
from specdec_serve.http.tools.harmony import HarmonyParser
from specdec_serve.http.tools.harmony_grammar import HarmonyGrammar
from specdec_serve.http.tools.lark import TokenId
from specdec_serve.http.tools.request import ToolUse
from specdec_serve.http.tools.thinking import ThinkingParser

# One parser reads harmony's calls and its reasoning, so each of the two names means both.
_HARMONY_CALLS = "openai"
_HARMONY_ARCHITECTURES = ("GptOssForCausalLM",)
_NONE = "none"
TOOL_CALL_PARSERS = (*CALL_FORMATS, _HARMONY_CALLS, _NONE)
REASONING_PARSERS = (*REASONING_NAMES, _NONE)


@dataclasses.dataclass(frozen=True)
class AnswerFormat:
    """How a model writes its answers.

    Attributes:
        calls: how the model writes calls; None: they are not read, or are messages of harmony.
        reasoning: how the model marks what it thinks; None: it does not.
    """

    calls: CallFormat | None = None
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
            return cls(None, HARMONY)
        calls = CALL_FORMATS.get(tool_call_parser or "")
        if tool_call_parser is None:
            calls = call_format_of(chat_template or "")
        return cls(calls, reasoning)

    @property
    def is_harmony(self) -> bool:
        """Whether the answers are messages on channels, in harmony."""
        return self.reasoning is HARMONY

    @property
    def reads_calls(self) -> bool:
        """Whether calls can be read that the model chooses to make."""
        return self.is_harmony or self.calls is not None

    def grammar(self, tools: ToolUse, token_id: TokenId) -> CallGrammar | HarmonyGrammar:
        """The grammar of the calls that a request allows, where this format reads calls.

        Raises CannotHoldError.
        """
        functions = [f for f in tools.functions if tools.name in (None, f.name)]
        if self.calls is None:
            return HarmonyGrammar(functions, token_id, is_forced=tools.is_forced)
        return CallGrammar(
            *(self.calls, functions, token_id),
            is_parallel=tools.parallel and tools.choice != "named",
            is_forced=tools.is_forced,
        )

    def parser(
        self,
        functions: Sequence[Function] | None,
        start: ReasoningStart,
        *,
        forced: AnswerParser | None = None,
    ) -> AnswerParser | None:
        """A parser of one answer; None where its text is all content.

        `functions` are those that the model may call, None where calls are content. `start` says
        where the text begins. `forced` reads calls that a grammar forces.
        """
        if self.is_harmony:
            return HarmonyParser(reads_calls=functions is not None)
        answer = forced
        if functions is not None and self.calls is not None:
            answer = self.calls.parser(functions)
        if self.reasoning is None:
            return answer
        return ThinkingParser(self.reasoning, start, answer)

    def tags(self, *, reads_calls: bool) -> frozenset[str]:
        """Tags that the parser has to see in the text, even if they are special tokens."""
        if self.is_harmony:
            return frozenset(HARMONY_TAGS)
        tags = frozenset() if self.reasoning is None else self.reasoning.tags
        return tags | self.calls.tags if reads_calls and self.calls is not None else tags
