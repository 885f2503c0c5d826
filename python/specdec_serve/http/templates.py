"""The parts of prompt rendering that a request may change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_serve.http.errors import ApiError, bad_request
from specdec_serve.http.service import Service
from specdec_serve.http.tools.harmony import EFFORTS as HARMONY_EFFORTS
from specdec_serve.http.tools.request import ToolUse

# Names that templates get from fields; template variables of these names would be lost.
_FIELDS = ("chat_template", "messages", "tools", "add_generation_prompt", "continue_final_message")

# Variables by which templates turn reasoning on and off; a template reads one of them at most.
_THINKING_SWITCHES = ("enable_thinking", "thinking")


def template_options(
    service: Service,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_use: ToolUse | None = None,
    chat_template: str | None,
    chat_template_kwargs: Mapping[str, Any] | None,
    reasoning_effort: str | None = None,
    thinks: bool | None = None,
) -> dict[str, Any]:
    """Arguments of Engine.chat_prompt. Raises ApiError for what this server does not allow.

    `reasoning_effort` is a variable of templates, and goes over chat_template_kwargs. `thinks` sets
    the template's own switch of reasoning, as the effort "none" does; None leaves it.
    """
    if service.options.exclude_unused_tools and tool_use is not None and tool_use.choice == "none":
        tools = None
    if tools and tool_use is not None:  # without those that are not allowed
        allowed = [function.name for function in tool_use.functions]
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
    if chat_template is not None and not service.options.request_chat_template:
        raise bad_request(
            "chat_template: this server runs no templates of requests; leave the field out, or "
            "start the server with --trust-request-chat-template",
            "chat_template",
        )
    for name in _FIELDS:
        if name in (chat_template_kwargs or {}):
            raise bad_request(
                f"chat_template_kwargs holds variables of the template; {name} is a field of the "
                "request itself",
                "chat_template_kwargs",
            )
    given = dict(chat_template_kwargs or {})
    if reasoning_effort is not None:
        if service.answer_format.is_harmony and reasoning_effort not in HARMONY_EFFORTS:
            raise bad_request(
                f"reasoning_effort: this model knows {', '.join(HARMONY_EFFORTS)}, not "
                f"{reasoning_effort}",
                "reasoning_effort",
            )
        given["reasoning_effort"] = reasoning_effort
        thinks = False if reasoning_effort == "none" else thinks
    if thinks is not None:
        engine = service.engine
        source = (engine.tokenizer.chat_template if engine.has_tokenizer else None) or ""
        given = dict.fromkeys((n for n in _THINKING_SWITCHES if n in source), thinks) | given
    return {
        "tools": tools or None,
        "chat_template": chat_template,
        "template_kwargs": _variables(service.options.default_chat_template_kwargs, given),
    }


def located(error: ValueError, paths: Sequence[str], field: str) -> ApiError:
    """An error about chat messages with the locations in the client's request.

    `paths` has the location of each chat message; `field` is that of the conversation.
    """
    message = str(error)
    if found := re.match(r"messages(?:\[(\d+)\])?", message):
        path = field if found[1] is None else paths[int(found[1])]
        return bad_request(path + message[found.end() :], re.split(r"[.\[]", path, maxsplit=1)[0])
    return bad_request(message, field)


def _variables(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The server's variables, replaced by the request's unless these are null or "auto"."""
    return {
        **given,
        **{
            name: value
            for name, value in defaults.items()
            if name not in given or given[name] in (None, "auto")
        },
    }
