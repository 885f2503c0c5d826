"""A request's tools: its functions, and which of them the model may or must call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from specdec_native.common.checks import check_text
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.requests.structured_outputs import WrittenGrammar
from specdec_serve.http.errors import bad_request
from specdec_serve.http.protocol.body import warn_of_unknown
from specdec_serve.http.protocol.nesting import check_nesting
from specdec_serve.http.protocol.structured import made
from specdec_serve.http.structured import Grammar
from specdec_serve.http.tools.events import AnswerParser
from specdec_serve.http.tools.forced import NamedParser, required_parser
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.schemas import call_schemas, list_of, object_of

_EXAMPLE = '{"type": "function", "function": {"name": "f", "parameters": {...}}}'
FUNCTION_MEMBERS = ("name", "description", "parameters", "strict")
_SPACE = " ?"  # white space between the parts of required calls; with more, some models never end


@dataclasses.dataclass(frozen=True)
class ToolUse:
    """The tools of a request.

    Attributes:
        choice: "named": the function called `name` must be called.
        parallel: whether more than one call is allowed.
    """

    functions: Sequence[Function]
    choice: Literal["none", "auto", "required", "named"]
    name: str | None = None
    parallel: bool = True

    @property
    def is_forced(self) -> bool:
        """Whether an answer has to be a call."""
        return self.choice in ("required", "named")

    def grammar(self, asked: Grammar | None) -> Grammar | None:
        """The grammar that forces a call; if no call is required, `asked`, the other fields'.

        It is a list in JSON, for models whose own syntax of calls is not known, or cannot be held
        to a function's schema.

        Calls take precedence over a response_format, as in vLLM. Raises ApiError for
        structured_outputs beside required calls.
        """
        if not self.is_forced:
            return asked
        if asked is not None and asked.field == "structured_outputs":
            raise bad_request(
                "structured_outputs and a tool_choice that requires calls both say what the answer "
                "has to be like; give one of them",
                "structured_outputs",
            )
        if self.choice == "required":
            calls, definitions = call_schemas(
                self.functions, "parameters", lambda function: object_of(function.parameters)
            )
            schema = list_of(calls, definitions, parallel=self.parallel)
        else:
            (function,) = [f for f in self.functions if f.name == self.name][-1:]
            schema = object_of(function.parameters)
        params = made({"json": schema, "whitespace_pattern": _SPACE}, "tools")
        return Grammar(params, "tools")

    def forced_parser(self) -> AnswerParser | None:
        """The parser of calls that a grammar forces; None where it forces none."""
        if self.choice == "required":
            return required_parser()
        if self.choice == "named":
            assert self.name is not None
            return NamedParser(self.name)
        return None


def reads_calls(tools: ToolUse | None) -> bool:
    """Whether the model may choose to call."""
    return tools is not None and tools.choice == "auto"


def is_forced_in_syntax(tools: ToolUse | None, params: SamplingParams) -> bool:
    """Whether a call is forced in the model's own syntax of calls, not as a list in JSON."""
    is_written = isinstance(params.structured_outputs, WrittenGrammar)
    return tools is not None and tools.is_forced and is_written


def read_tools(
    tools: Sequence[Any] | None, tool_choice: Any, *, parallel: bool | None = None
) -> ToolUse | None:
    """Reads the fields in a chat's form; None without tools. Raises ApiError for bad fields."""
    if tools is not None and not tools:
        raise bad_request("tools must not be empty: leave the field out for none", "tools")
    check_nesting(tools, "tools")
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]
    is_parallel = parallel is not False
    if tool_choice == "none" or (tool_choice is None and not functions):
        return ToolUse(functions, "none") if functions else None
    if not functions:
        raise bad_request("tool_choice needs tools", "tool_choice")
    if tool_choice is None or tool_choice == "auto":
        return ToolUse(functions, "auto", parallel=is_parallel)
    if tool_choice == "required":
        return ToolUse(functions, "required", parallel=is_parallel)
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "allowed_tools":
        mode, names = _allowed(tool_choice)
        allowed = [function for function in functions if function.name in names]
        if unknown := names - {function.name for function in allowed}:
            raise bad_request(
                f"tool_choice: tools have no function {min(unknown)[:80]!r}", "tool_choice"
            )
        return ToolUse(allowed, mode, parallel=is_parallel)
    name = _chosen(tool_choice)
    if name not in [function.name for function in functions]:
        raise bad_request(f"tool_choice: tools have no function {name[:80]!r}", "tool_choice")
    return ToolUse(functions, "named", name, parallel=is_parallel)


def _function(tool: Any, path: str) -> Function:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
        raise bad_request(f"{path} must be a function, such as {_EXAMPLE}", "tools")
    warn_of_unknown(function, FUNCTION_MEMBERS)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        raise bad_request(f'{path}.function needs a "name"', "tools")
    try:
        check_text(f"{path}.function.name", name)
    except ValueError as error:
        raise bad_request(str(error), "tools") from error
    if parameters is not None and not isinstance(parameters, Mapping):
        raise bad_request(f"{path}.function.parameters must be a JSON schema", "tools")
    return Function(name, parameters, is_strict=function.get("strict") is True)


def _chosen(tool_choice: Any) -> str:
    name = _name_in(tool_choice)
    if name is None:
        raise bad_request(
            'tool_choice must be "none", "auto", "required", allowed tools, or one function, such '
            'as {"type": "function", "function": {"name": "f"}}',
            "tool_choice",
        )
    return name


def _name_in(choice: Any) -> str | None:
    """The name of a function as chats write it, or as responses do."""
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return None
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) and name else None


def _allowed(tool_choice: Mapping[str, Any]) -> tuple[Literal["auto", "required"], set[str]]:
    """Mode and names of OpenAI's allowed tools, as chats write them, or as responses do."""
    given = tool_choice.get("allowed_tools", tool_choice)
    mode = given.get("mode") if isinstance(given, Mapping) else None
    tools = given.get("tools") if isinstance(given, Mapping) else None
    names = [_name_in(tool) for tool in tools] if isinstance(tools, list) else []
    if mode not in ("auto", "required") or not names or None in names:
        raise bad_request(
            'tool_choice: allowed tools need a "mode", "auto" or "required", and "tools", such as '
            '[{"type": "function", "function": {"name": "f"}}]',
            "tool_choice",
        )
    return mode, {name for name in names if name is not None}
