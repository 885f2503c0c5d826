"""From the messages of Anthropic's API to those of chat completions, which templates know."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_serve.http.errors import bad_request
from specdec_serve.http.message_blocks import thoughts_of
from specdec_serve.http.messages import text_of, text_of_part
from specdec_serve.http.protocol.body import warn_of_unknown

_ROLES = ("user", "assistant", "system")
_NOT_READ = ("type", "cache_control", "caller", "toolset_name")  # members of any block
# Anthropic's coding agent begins its system prompt with a line for the bill, which has another hash
# in each request. The model has no use for the line, and no prefix would be found in the cache.
_BILL = "x-anthropic-billing-header"


def chat_messages(
    system: str | Sequence[Any] | None, messages: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The conversation as chat messages, by their location, such as "messages[0]".

    Messages of one role that follow each other are one turn, as at Anthropic. A tool's result is a
    message of its own. Raises ApiError for blocks that no chat template can show.
    """
    if not messages:
        raise bad_request("messages is empty; send at least one message", "messages")
    turns = _Turns()
    if system is not None and (text := _system_text(system)):
        turns.messages["system"] = {"role": "system", "content": text}
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        role = message.get("role")
        if role not in _ROLES:
            raise bad_request(f'{path} needs a "role": "user" or "assistant"', "messages")
        warn_of_unknown(message, ("role", "content"))
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise bad_request(f"{path}.content must be a string or a list of blocks", "messages")
        turns.begin(path, role)
        for j, block in enumerate(blocks):
            where = f"{path}.content" if blocks is not content else f"{path}.content[{j}]"
            turns.add(block, where)
    return turns.messages


def without_later_systems(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with system texts after the first message as texts of the user.

    For templates that know a system message at the beginning only. The texts keep their place, so
    that the prompt before them stays the same.
    """
    shown: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        is_later = i > 0 and message["role"] == "system"
        role = "user" if is_later else message["role"]
        if shown and role == "user" and shown[-1]["role"] == "user":
            content = f"{shown[-1]['content']}\n{message['content']}"
            shown[-1] = {**shown[-1], "content": content}
        else:
            shown.append({**message, "role": role})
    return shown


@dataclasses.dataclass
class _Turns:
    """The chat messages so far; the last one may still grow."""

    messages: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    _path: str = ""
    _role: str = ""

    def begin(self, path: str, role: str) -> None:
        """A message of the request begins."""
        self._path, self._role = path, role
        self._turn()

    def add(self, block: Any, path: str) -> None:
        """Adds a content block of the message."""
        if not isinstance(block, Mapping):
            raise bad_request(f'{path} must be an object with a "type"', "messages")
        kind = block.get("type")
        is_answer = self._role == "assistant"
        if is_answer and kind == "tool_use":
            self._turn().setdefault("tool_calls", []).append(_call(block, path))
        elif is_answer and kind == "thinking":
            if thoughts := _thoughts(block, path):
                turn = self._turn()
                turn["reasoning"] = _joined(turn.get("reasoning"), thoughts)
        elif is_answer and kind == "redacted_thinking":
            pass  # only those who wrote it can read it
        elif self._role == "user" and kind == "tool_result":
            self._result(block, path)
        else:
            turn = self._turn()
            turn["content"] = _joined(turn["content"], text_of_part(block, path, "messages"))

    def _turn(self) -> dict[str, Any]:
        """The open message of the role, or a new one."""
        last_path = next(reversed(self.messages), "")
        last = self.messages.get(last_path)
        if last is None or last["role"] != self._role or last_path == "system":
            last = self._append({"role": self._role, "content": None})
        return last

    def _append(self, message: dict[str, Any]) -> dict[str, Any]:
        path, i = self._path, 0
        while path in self.messages:  # a message with results of tools becomes several
            i += 1
            path = f"{self._path}#{i}"
        self.messages[path] = message
        return message

    def _result(self, block: Mapping[str, Any], path: str) -> None:
        pass


def _joined(before: str | None, text: str) -> str:
    return text if before is None else f"{before}\n{text}"
