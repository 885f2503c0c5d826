"""Reads conversations from JSONL files, in the forms that data sets use."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_lab.training.errors import TrainingError
from specdec_native.common.checks import shown
from specdec_native.text.chat_template import Message

_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
}
_FORMS = (
    'a line may be {"prompt": text}, {"messages": [{"role", "content"}, ...]}, '
    '{"conversations": [{"from", "value"}, ...]} or {"turns": [texts of the user]}'
)


class _LineError(Exception):
    """Says what is wrong with a line."""


def read_conversations(path: str | os.PathLike[str]) -> list[list[Message]]:
    """The conversations of a JSONL file, one per line; empty lines are skipped.

    A line is {"prompt": text}, {"messages": [{"role", "content"}, ...]}, ShareGPT's
    {"conversations": [{"from", "value"}, ...]} or {"turns": [texts of the user]}. Roles are
    system, user (human) and assistant (gpt). Other keys of a line are ignored, and so are
    assistants' turns before the user's first.
    Raises TrainingError naming the file, the line and what is wrong with it.
    """
    path = Path(path)
    conversations = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    conversations.append(_conversation(line))
                except _LineError as fault:
                    raise TrainingError(f"line {number}: {fault}; {_FORMS}", path) from None
    except OSError as fault:
        raise TrainingError(f"cannot be read ({fault.strerror})", path) from fault
    if not conversations:
        raise TrainingError(f"has no conversations; {_FORMS}", path)
    return conversations


def _conversation(line: bytes) -> list[Message]:
    try:
        entry = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as fault:
        raise _LineError(f"is not valid JSON ({fault})") from None
    if not isinstance(entry, Mapping):
        raise _LineError(f"is {shown(entry)}, no object")
    if "messages" in entry:
        messages = _messages(entry, "messages", "role", "content")
    elif "conversations" in entry:
        messages = _messages(entry, "conversations", "from", "value")
    elif "turns" in entry:
        turns = _list(entry, "turns")
        messages = [_message("user", turn, f"turns[{i}]") for i, turn in enumerate(turns)]
    elif "prompt" in entry:
        messages = [_message("user", entry["prompt"], "prompt")]
    else:
        raise _LineError(f"has only the keys {', '.join(map(shown, entry)) or '(none)'}")
    return _from_the_user_on(messages)


def _messages(
    entry: Mapping[str, Any], name: str, role_key: str, text_key: str
) -> list[dict[str, str]]:
    messages = []
    for i, message in enumerate(_list(entry, name)):
        if not isinstance(message, Mapping):
            raise _LineError(f"{name}[{i}] is {shown(message)}, no object")
        role = message.get(role_key)
        if not isinstance(role, str) or role not in _ROLES:
            raise _LineError(
                f'{name}[{i}]["{role_key}"] must be one of {", ".join(_ROLES)}, got {shown(role)}'
            )
        path = f'{name}[{i}]["{text_key}"]'
        messages.append(_message(_ROLES[role], message.get(text_key), path))
    return messages


def _list(entry: Mapping[str, Any], name: str) -> list[Any]:
    value = entry[name]
    if not isinstance(value, list):
        raise _LineError(f"{name} must be a list, got {shown(value)}")
    return value


def _message(role: str, text: Any, path: str) -> dict[str, str]:
    if not isinstance(text, str):
        raise _LineError(f"{path} must be text, got {shown(text)}")
    if role == "user" and not text.strip():
        raise _LineError(f"{path} is empty")
    return {"role": role, "content": text}


def _from_the_user_on(messages: list[dict[str, str]]) -> list[Message]:
    roles = [message["role"] for message in messages]
    if "user" not in roles:
        raise _LineError("has no turn of the user")
    first = roles.index("user")
    return [m for i, m in enumerate(messages) if i >= first or m["role"] == "system"]
