"""Renders a checkpoint's chat template, a Jinja program, in a sandbox."""

from __future__ import annotations

import datetime
import functools
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from specdec_native.checkpoints.text_files import is_file, read_text
from specdec_native.text.template_sandbox import (
    BoundedEnvironment,
    TemplateTooCostlyError,
    budget,
    charge,
)

# Marks the end of the final message while rendering a conversation that is to be continued.
_CONTINUE_MARK = "\u2063specdec-continue-here\u2063"

# Put around the texts of message i to see whether a template shows it. No filter changes digits.
_SHOWN_MARK = "6170843529{:06d}"
_SHOWN_MARKS = re.compile(r"6170843529(\d{6})")

_LONGEST_TEMPLATE = 1_000_000
_MOST_WARNINGS = 100  # requests must not fill the log
_MOST_SUSPECTS = 8  # messages that are rendered once more by themselves

Message = Mapping[str, Any]

_logger = logging.getLogger("specdec_native")
_warned: set[str] = set()


def render(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    source: str = "the chat template",
) -> str:
    """Returns the prompt text of a conversation.

    Messages may be in OpenAI's form: as in vLLM, a content of None is "", and a tool call's
    arguments, a JSON string there, become the dict that templates expect. The role "developer" is
    "system" for a template that does not know it, and what an assistant thought has the names that
    templates know.
    `variables` are further names the template sees: special tokens and template options. `source`
    is what messages call the template.
    Raises ValueError for a malformed conversation, for one the template refuses and for a template
    that fails or does not come to an end.
    """
    conversation = [_plain(message, i) for i, message in enumerate(messages)]
    for message in conversation:
        _adapt(message, template)
    if not conversation:
        raise ValueError("messages must not be empty")
    if continue_final_message:
        if add_generation_prompt:
            raise ValueError(
                "continue_final_message and add_generation_prompt exclude each other: "
                "set add_generation_prompt=False"
            )
        content = conversation[-1].get("content")
        if not isinstance(content, str) or not content:
            raise ValueError(
                "continue_final_message needs a final message whose content is a non-empty string"
            )
        conversation[-1]["content"] = content + _CONTINUE_MARK
    try:
        with budget():
            pieces = _compiled(template).generate(
                **{
                    **(variables or {}),
                    "messages": conversation,
                    "tools": None if tools is None else list(tools),
                    "add_generation_prompt": add_generation_prompt,
                }
            )
            text = "".join(_counted(pieces))
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(
            f"{source} is not valid Jinja (line {error.lineno}: {error.message:.500})"
        ) from error
    except jinja2.TemplateError as error:
        raise ValueError(f"{source} refused this conversation: {error!s:.1000}") from error
    except TemplateTooCostlyError as error:
        raise ValueError(f"{source} was stopped: {error}") from error
    except Exception as error:  # a template is a program: it may divide by zero
        raise ValueError(
            f"{source} failed on this conversation ({type(error).__name__}: {error!s:.500})"
        ) from error
    if continue_final_message:
        text = _cut_at_mark(text)
    return text


def warn_of_unread(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Iterable[str],
    source: str = "the chat template",
) -> None:
    """Warns once about each name that a conversation sets and the template never mentions."""
    names = {str(name) for name in variables}
    if tools:
        names.add("tools")
    if any(message.get("tool_calls") for message in messages):
        names.add("tool_calls")
    for name in sorted(names - _warned):
        if name not in template and len(_warned) < _MOST_WARNINGS:
            _warned.add(name)
            _logger.warning("%s does not read %.80r: the model sees nothing of them", source, name)


def check_all_shown(
    template: str, messages: Sequence[Message], *, source: str = "the chat template", **options: Any
) -> None:
    """Raises ValueError naming the first message that `render` leaves out of its text.

    All messages are rendered once more with marks. A message whose mark is in the output is shown,
    whatever the template trims, joins or puts around it. Without its mark it counts as left out,
    unless the mark changes the text or is refused.
    """

    def text(*marked: int) -> str | None:
        chosen = list(plain)
        for i in marked:
            chosen[i] = _marked(plain[i], i)
        try:
            return render(template, chosen, **options)
        except ValueError:
            return None

    plain = [_plain(message, i) for i, message in enumerate(messages)]
    shown = {int(digits) for digits in _SHOWN_MARKS.findall(text(*range(len(plain))) or "")}
    suspects = [i for i in range(len(plain)) if i not in shown]
    for i in suspects[:_MOST_SUSPECTS]:
        if text(i) == text():
            raise ValueError(
                f"messages[{i}]: {source} does not show this message, whose role is "
                f"{plain[i]['role']!r:.40}; give it a role that the model knows, or leave it out"
            )


def _marked(message: dict[str, Any], index: int) -> dict[str, Any]:
    """A message with a mark at both ends of its content, and of the function names it calls."""
    mark = _SHOWN_MARK.format(index)
    marked = {**message, "content": f"{mark}{message['content']}{mark}"}
    if message["role"] != "assistant":  # whatever else has this key, _plain has not checked
        return marked
    calls = [dict(call) for call in message.get("tool_calls") or ()]
    for call in calls:
        call["function"] = {**call["function"], "name": f"{call['function'].get('name')}{mark}"}
    return {**marked, "tool_calls": calls} if calls else marked


def _plain(message: Message, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(
            f'messages[{index}] must be a dict with "role" and "content", got {message!r:.80}'
        )
    if not isinstance(message.get("role"), str):
        raise ValueError(f'messages[{index}] has no "role"')
    plain = dict(message)
    content = plain.get("content")
    if content is None:
        plain["content"] = ""
    elif isinstance(content, (list, tuple)):
        plain["content"] = "\n".join(_text_part(part, index) for part in content)
    elif not isinstance(content, str):
        raise ValueError(f'messages[{index}]["content"] must be text, got {content!r:.80}')
    if plain["role"] == "assistant":
        calls = plain.pop("tool_calls", None)
        if calls:
            plain["tool_calls"] = [_tool_call(call, index) for call in calls]
        if plain.get("reasoning") is not None:  # templates know one name or the other
            plain.setdefault("reasoning_content", plain["reasoning"])
    return plain


def _adapt(message: dict[str, Any], template: str) -> None:
    """Gives a message the role and the names that a template knows."""
    if message["role"] == "developer" and "developer" not in template:
        message["role"] = "system"
    thoughts = message.get("reasoning_content")
    if message["role"] != "assistant" or not thoughts or "message.thinking" not in template:
        return
    # gpt-oss's template takes one text beside calls, as thoughts, whichever of the two it is.
    if message.get("tool_calls") and message["content"] and "thinking" not in message:
        thoughts = f"{thoughts}\n{message['content']}"
        message["content"] = ""
    message.setdefault("thinking", thoughts)


def _tool_call(call: Any, index: int) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise ValueError(
            f'messages[{index}]["tool_calls"] must have entries {{"type": "function", "function": '
            f'{{"name", "arguments"}}}}, got {call!r:.80}'
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(arguments, Mapping):
        if function.get("arguments"):  # in the history, where an error would end the conversation
            _logger.warning(
                "messages[%d]: the arguments of a tool call are not a JSON object; using {}", index
            )
        arguments = {}
    return {**call, "function": {**function, "arguments": dict(arguments)}}


def _text_part(part: Any, index: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ValueError(
        f'messages[{index}]["content"] may only have parts of type "text", got {part!r:.80}'
    )


def _cut_at_mark(text: str) -> str:
    position = text.rfind(_CONTINUE_MARK)
    if position < 0:
        raise ValueError(
            "continue_final_message: the chat template does not show the final message in full"
        )
    return text[:position]


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks an assistant's turn for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _counted(pieces: Iterable[str]) -> Iterator[str]:
    for piece in pieces:
        charge(len(piece))
        yield piece


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    if len(template) > _LONGEST_TEMPLATE:
        raise TemplateTooCostlyError(f"it is longer than {_LONGEST_TEMPLATE} characters")
    environment = BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.add_filter("tojson", _to_json)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form[:1000])
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which prompts must not."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def load_chat_template(template: str | os.PathLike[str], names: Collection[str] = ()) -> str:
    """Jinja source from a file's path, or as given; `names` are the checkpoint's template names."""
    if isinstance(template, str) and any(mark in template for mark in ("{%", "{{", "\n")):
        return template
    path = Path(template)
    if not is_file(path):
        known = f" nor one of the checkpoint's: {', '.join(sorted(names))}" if names else ""
        raise ValueError(f"chat_template: {path} is neither a file nor Jinja source{known}")
    return read_text(path)
