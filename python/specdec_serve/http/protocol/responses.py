"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from specdec_native.requests.request_builder import GenerationDefaults
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.requests.structured_outputs import StructuredOutputsParams
from specdec_serve.http.errors import bad_request
from specdec_serve.http.messages import plain_message, text_of
from specdec_serve.http.protocol.body import Fields, warn_of_unknown
from specdec_serve.http.protocol.common import GenerationFields, Integer, ReasoningEffort
from specdec_serve.http.protocol.structured import schema_params
from specdec_serve.http.structured import Grammar
from specdec_serve.http.tools.request import FUNCTION_MEMBERS, ToolUse, read_tools

_LOGPROBS = "message.output_text.logprobs"
# The values of OpenAI's `include`; all but the logprobs concern tools.
_Include = Literal[
    "message.output_text.logprobs",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
# The members that are read from input items, by the items' type.
_ITEM_MEMBERS = {
    "message": ("role", "content", "name", "phase"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("summary", "content", "encrypted_content"),
}
# Fields that must be empty, with the advice what to do instead.
_REFUSED = {
    "previous_response_id": "responses are not stored: send the whole conversation as input",
    "conversation": "conversations are not stored: send the whole conversation as input",
    "background": "responses cannot run in the background: set stream=true, or wait for the answer",
    "prompt": "prompt templates are not stored: send instructions and input",
    "previous_input_messages": "send the whole conversation as input",
    "enable_response_messages": "messages are not reported: leave it out",
    "prompt_logprobs": "a response has no place for them: ask /v1/completions",
    "return_token_ids": "a response has no place for them: ask /v1/chat/completions",
}


class TextFormat(Fields):
    """OpenAI's format of a response's text. `strict` is accepted: schemas are always kept to."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = pydantic.Field(None, alias="schema")
    strict: bool | None = None

    def structured_outputs(self) -> StructuredOutputsParams | None:
        """The engine's parameters; None for text. Raises ApiError for a missing schema."""
        if self.schema_ is not None and self.type != "json_schema":
            raise bad_request(
                f'text.format of the type "{self.type}" has no "schema"; set its type to '
                '"json_schema", or leave the schema out',
                "text",
            )
        if self.type == "text":
            return None
        if self.type == "json_object":
            return StructuredOutputsParams(json_object=True)
        return schema_params(self.schema_, "text.format", "text")


class TextOptions(Fields):
    """OpenAI's `text`."""

    format: TextFormat | None = None


class ReasoningOptions(Fields):
    """OpenAI's `reasoning`. Summaries are not made: answers have the whole reasoning."""

    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(GenerationFields):
    """A conversation to answer, in the form of OpenAI's Responses API."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = pydantic.Field(None, ge=1)
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    previous_input_messages: list[Any] | None = None
    enable_response_messages: bool = False
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    store: bool | None = None
    prompt: dict[str, Any] | None = None
    include: list[_Include] | None = None
    top_logprobs: Integer | None = pydantic.Field(None, ge=-1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer has the logprobs of its tokens."""
        return _LOGPROBS in (self.include or [])

    def check(self) -> None:
        """Raises ApiError for values that are refused for any engine."""
        super().check()
        for name, advice in _REFUSED.items():
            if getattr(self, name):
                raise bad_request(f"{name}: {advice}", name)
        if self.n not in (None, 1):
            raise bad_request("n must be 1: a response is one answer", "n")
        if self.top_logprobs and not self.has_logprobs:
            raise bad_request(f"top_logprobs needs include=[{_LOGPROBS!r}]", "top_logprobs")

    def chat_tools(self) -> list[dict[str, Any]] | None:
        """The tools in the form of chat completions, which templates expect; None without any."""
        return [_chat_tool(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or ())] or None

    def tool_use(self) -> ToolUse | None:
        """The request's tools; None without any. Raises ApiError for bad fields."""
        choice = self.tool_choice
        if not self.tools and choice == "auto":
            return None
        return read_tools(self.chat_tools(), choice, parallel=self.parallel_tool_calls)

    def grammar(self) -> Grammar | None:
        """The answer's grammar: calls where they are required, else the requested format."""
        asked = super().grammar()
        form = None if self.text is None or self.text.format is None else self.text.format
        by_text = None if form is None else form.structured_outputs()
        if by_text is not None:
            if asked is not None:
                raise bad_request(
                    f"text.format and {asked.field} both say what the answer has to be like; give "
                    "one of them",
                    asked.field,
                )
            asked = Grammar(by_text, "text")
        tools = self.tool_use()
        return asked if tools is None else tools.grammar(asked)

    def field_names(self) -> dict[str, str]:
        """Engine fields with a different name in the body, with that name."""
        return super().field_names() | {
            "prompt": "input",
            "logprobs": "top_logprobs",
            "max_tokens": "max_output_tokens",
        }

    def text_format(self) -> dict[str, Any]:
        """The text format, as the answer repeats it."""
        if self.text is None or self.text.format is None:
            return {"type": "text"}
        form = self.text.format
        members = {
            "type": form.type,
            "name": form.name,
            "description": form.description,
            "schema": form.schema_,
            "strict": form.strict,
        }
        return {name: value for name, value in members.items() if value is not None}

    def response_params(self, defaults: GenerationDefaults) -> SamplingParams:
        """The sampling parameters."""
        return self.sampling_params(
            defaults,
            max_tokens=self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if self.has_logprobs else None,
        )

    def messages(self) -> dict[str, dict[str, Any]]:
        """Instructions and input as chat messages, by their location, such as "input[0]".

        Raises ApiError for items that are neither messages nor tool calls.
        """
        messages: dict[str, dict[str, Any]] = {}
        if self.instructions is not None:
            messages["instructions"] = {"role": "system", "content": self.instructions}
        if self.input == []:
            raise bad_request("input is empty; send text or messages", "input")
        if isinstance(self.input, str):
            return {**messages, "input": {"role": "user", "content": self.input}}
        for i, item in enumerate(self.input):
            _append(messages, item, f"input[{i}]")
        return {
            path: plain_message(message, path, path.partition("[")[0])
            for path, message in messages.items()
            if not _is_reasoning_alone(message)
        }


def _chat_tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise bad_request(
            f'{path} must be a function, such as {{"type": "function", "name": "f", '
            '"parameters": {...}}; the server runs no tools of its own',
            "tools",
        )
    warn_of_unknown(tool, ("type", *FUNCTION_MEMBERS))
    given = {name: tool[name] for name in FUNCTION_MEMBERS if tool.get(name) is not None}
    return {"type": "function", "function": given}


def _append(messages: dict[str, dict[str, Any]], item: dict[str, Any], path: str) -> None:
    """Adds an item of the input; calls of one turn, and reasoning before them, share a message."""
    kind = item.get("type", "message")
    if kind in _ITEM_MEMBERS:
        warn_of_unknown(item, ("type", "id", "status", *_ITEM_MEMBERS[kind]))
    if kind == "message":
        members = ("role", "content", "name")
        message: dict[str, Any] = {key: item[key] for key in members if key in item}
        last_path = next(reversed(messages), None)
        last = messages.get(last_path or "", {})
        if last_path is not None and _is_reasoning_alone(last) and item.get("role") == "assistant":
            message["reasoning"] = last["reasoning"]
            del messages[last_path]
        messages[path] = message
    elif kind == "function_call":
        if not isinstance(item.get("name"), str):
            raise bad_request(f'{path} needs the "name" of a function', "input")
        call = {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        last = next(reversed(messages.values()), {})
        if last.get("role") != "assistant":
            last = messages[path] = {"role": "assistant", "content": None}
        last.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        text = text_of(item.get("output"), f"{path}.output", "input")
        messages[path] = {"role": "tool", "tool_call_id": item.get("call_id"), "content": text}
    elif kind == "reasoning":
        if text := _reasoning_of(item):
            messages[path] = {"role": "assistant", "content": None, "reasoning": text}
    else:
        raise bad_request(
            f"{path} has the type {str(kind)[:40]!r}; send items of the types message, reasoning, "
            "function_call and function_call_output",
            "input",
        )


def _reasoning_of(item: dict[str, Any]) -> str:
    """The text of a reasoning item as answers have it; without parts of other forms."""
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _is_reasoning_alone(message: dict[str, Any]) -> bool:
    """Whether it is a reasoning item that nothing of the same turn has followed."""
    return (
        message.get("reasoning") is not None
        and message.get("content") is None
        and "tool_calls" not in message
    )
