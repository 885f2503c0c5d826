"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from specdec_native.requests.request_builder import GenerationDefaults
from specdec_native.requests.sampling_params import SamplingParams
from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.anthropic_messages import ChatMessages, chat_messages
from specdec_serve.http.protocol.body import Body, Fields, warn_of_unknown
from specdec_serve.http.protocol.common import GenerationFields
from specdec_serve.http.protocol.structured import schema_params
from specdec_serve.http.structured import Grammar
from specdec_serve.http.tools.request import ToolUse, read_tools

# The members of tools that are read, and those that change nothing here.
_TOOL_MEMBERS = ("name", "description", "input_schema", "strict")
_TOOL_MEMBERS_IGNORED = ("type", "cache_control", "eager_input_streaming", "allowed_callers")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # in the form of chat completions
# Fields that must be empty, with the advice what to do instead.
_REFUSED = {
    "stop": "the name of this field is stop_sequences",
    "response_format": "the name of this field is output_config.format",
    "container": "this server runs no code: leave it out",
    "mcp_servers": "this server calls no other servers: give their tools as tools",
    "prompt_logprobs": "a message has no place for them: ask /v1/completions",
    "return_token_ids": "a message has no place for them: ask /v1/chat/completions",
}


class ToolChoice(Fields):
    """Anthropic's `tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Fields):
    """Anthropic's `thinking`. Where thoughts are omitted, signatures have them."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = pydantic.Field(None, ge=1)
    display: Literal["summarized", "omitted", "updates"] = "summarized"


class OutputFormat(Fields):
    """Anthropic's format of a message's text."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] | None = pydantic.Field(None, alias="schema")


class OutputConfig(Fields):
    """Anthropic's `output_config`."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Conversation(Body):
    """A conversation, and what the chat template makes of it."""

    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat_messages(self) -> ChatMessages:
        """System and messages as chat messages.

        Raises ApiError for what no chat template can show, such as images.
        """
        return chat_messages(self.system, self.messages)

    def chat_tools(self) -> list[dict[str, Any]] | None:
        """The tools in the form of chat completions, which templates expect; None without any."""
        return [_chat_tool(tool, f"tools[{i}]") for i, tool in enumerate(self.tools or ())] or None

    def tool_use(self) -> ToolUse | None:
        """The request's tools; None without any. Raises ApiError for bad fields."""
        tools, asked = self.chat_tools(), self.tool_choice
        if asked is None:
            return read_tools(tools, None)
        if asked.type == "tool":
            if asked.name is None:
                raise bad_request('tool_choice.name is missing: "tool" needs it', "tool_choice")
            choice: Any = {"type": "function", "function": {"name": asked.name}}
        else:
            choice = _CHOICES[asked.type]
        if tools is None and choice == "auto":
            return None
        return read_tools(tools, choice, parallel=not asked.disable_parallel_tool_use)

    @property
    def thinks(self) -> bool | None:
        """Whether the model is to think; None: as its template says."""
        return None if self.thinking is None else self.thinking.type != "disabled"

    @property
    def effort(self) -> str | None:
        """How much effort the model should make."""
        return None if self.output_config is None else self.output_config.effort


class CountTokensRequest(Conversation):
    """A conversation whose tokens are to be counted."""


class MessagesRequest(Conversation, GenerationFields):
    """A conversation to answer, in the form of Anthropic's Messages API."""

    max_tokens: int = pydantic.Field(ge=1)
    stop_sequences: list[str] | None = None
    output_format: OutputFormat | None = None
    container: Any = None
    mcp_servers: list[Any] | None = None
    # About the service that Anthropic sells: read, and without a meaning here.
    metadata: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    service_tier: str | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether thinking blocks have their text."""
        return self.thinking is None or self.thinking.display != "omitted"

    def check(self) -> None:
        """Raises ApiError for values that are refused for any engine."""
        super().check()
        for name, advice in _REFUSED.items():
            if getattr(self, name):
                raise bad_request(f"{name}: {advice}", name)
        if self.n != 1:
            raise bad_request("n must be 1: a message is one answer", "n")
        thinking = self.thinking
        if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is None:
            raise bad_request(
                "thinking.budget_tokens is missing: say how many tokens the model may think, or "
                'set thinking.type to "adaptive"',
                "thinking",
            )

    def grammar(self) -> Grammar | None:
        """The answer's grammar: calls where they are required, else the requested format."""
        asked = super().grammar()
        by_format = self._format_grammar()
        if by_format is not None:
            if asked is not None:
                raise bad_request(
                    f"{by_format.field} and {asked.field} both say what the answer has to be like; "
                    "give one of them",
                    asked.field,
                )
            asked = by_format
        tools = self.tool_use()
        return asked if tools is None else tools.grammar(asked)

    def _format_grammar(self) -> Grammar | None:
        form, field, path = self.output_format, "output_format", "output_format"
        if self.output_config is not None and self.output_config.format is not None:
            if form is not None:
                raise bad_request(
                    "output_format is the older name of output_config.format; give one of them",
                    "output_format",
                )
            form, field, path = self.output_config.format, "output_config", "output_config.format"
        return None if form is None else Grammar(schema_params(form.schema_, path, field), field)

    def field_names(self) -> dict[str, str]:
        """Engine fields with a different name in the body, with that name."""
        return super().field_names() | {"prompt": "messages", "stop": "stop_sequences"}

    def message_params(self, defaults: GenerationDefaults) -> SamplingParams:
        """The sampling parameters."""
        return self.sampling_params(
            defaults, max_tokens=self.max_tokens, stop=self.stop_sequences or None
        )


def _chat_tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type", "custom") not in ("custom", None):
        raise bad_request(
            f"{path} is of the type {str(tool['type'])[:40]!r}, which Anthropic's servers know or "
            "run: this server has no tools of its own; give the tool a description and an "
            "input_schema, and leave the type out",
            "tools",
        )
    warn_of_unknown(tool, (*_TOOL_MEMBERS, *_TOOL_MEMBERS_IGNORED))
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise bad_request(f'{path} needs a "name"', "tools")
    if not isinstance(schema, Mapping):
        raise bad_request(f"{path}.input_schema must be a JSON schema", "tools")
    function = {
        "name": name,
        "description": tool.get("description"),
        "parameters": schema,
        "strict": tool.get("strict"),
    }
    given = {member: value for member, value in function.items() if value is not None}
    return {"type": "function", "function": given}
