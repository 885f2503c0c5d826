"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from specdec_native.requests.request_builder import GenerationDefaults
from specdec_native.requests.sampling_params import SamplingParams
from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.body import Fields
from specdec_serve.http.protocol.common import (
    GenerationFields,
    Integer,
    ReasoningEffort,
    check_continued,
)
from specdec_serve.http.structured import Grammar
from specdec_serve.http.tools.request import ToolUse, read_tools


class TextPart(Fields):
    """A part of a text."""

    type: Literal["text"]
    text: str


class Prediction(Fields):
    """What the answer is expected to be."""

    type: Literal["content"]
    content: str | list[TextPart]

    def text(self) -> str:
        """The parts as one text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatCompletionRequest(GenerationFields):
    """A conversation to answer."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = pydantic.Field(None, ge=1)
    max_completion_tokens: int | None = pydantic.Field(None, ge=1)
    logprobs: bool | None = False
    top_logprobs: Integer | None = pydantic.Field(None, ge=-1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    echo: bool = False
    draft_trees: bool = False
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True
    prediction: Prediction | None = None

    def check(self) -> None:
        """Raises ApiError for values that are refused for any engine."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs=true", "top_logprobs")
        check_continued(self.continue_final_message, self.add_generation_prompt)

    def tool_use(self) -> ToolUse | None:
        """The request's tools; None without any. Raises ApiError for bad fields."""
        return read_tools(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)

    def grammar(self) -> Grammar | None:
        """The answer's grammar: calls where they are required, else the requested format."""
        tools = self.tool_use()
        asked = super().grammar()
        return asked if tools is None else tools.grammar(asked)

    def field_names(self) -> dict[str, str]:
        """Engine fields with a different name in the body, with that name."""
        names = {"prompt": "messages", "logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return super().field_names() | names

    def chat_params(self, defaults: GenerationDefaults) -> SamplingParams:
        """The sampling parameters."""
        return self.sampling_params(
            defaults,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            record_draft_trees=self.draft_trees or None,
            prediction=None if self.prediction is None else self.prediction.text(),
        )
