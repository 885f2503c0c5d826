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
# Blocks that are not text, with the role whose messages may have them, and their members.
_OWNERS = {
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
}
_MEMBERS = {
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}
_NOT_READ = ("type", "cache_control", "caller", "toolset_name")  # members of any block
# Anthropic's coding agent begins its system prompt with a line for the bill, which has another hash
# in each request. The model has no use for the line, and no prefix would be found in the cache.
_BILL = "x-anthropic-billing-header"


@dataclasses.dataclass
class ChatMessages:
    """A conversation in the form of chat completions.

    Attributes:
        paths: the location of each message in the request, such as "messages[0]".
    """

    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    paths: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        """Whether the last message is the beginning of the answer, to be continued."""
        return bool(self.messages[-1]["role"] == "assistant")

    def turn(self, role: str, path: str) -> dict[str, Any]:
        """The last message if it is of this role, else a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.append({"role": role, "content": None}, path)
        return self.messages[-1]

    def append(self, message: dict[str, Any], path: str) -> None:
        """Adds a message."""
        self.messages.append(message)
        self.paths.append(path)

    def without_later_systems(self) -> ChatMessages:
        """The conversation with system messages after the first message as texts of the user.

        For templates that know a system message at the beginning only. The texts keep their place,
        so that the prompt before them stays the same.
        """
        shown = ChatMessages()
        for i, (message, path) in enumerate(zip(self.messages, self.paths, strict=True)):
            role = message["role"]
            if role == "user" or (role == "system" and i > 0):
                turn = shown.turn("user", path)
                turn["content"] = _joined(turn["content"], message["content"] or "")
            else:
                shown.append(message, path)
        return shown


def chat_messages(
    system: str | Sequence[Any] | None, messages: Sequence[Mapping[str, Any]]
) -> ChatMessages:
    """The conversation as chat messages.

    Messages of one role that follow each other are one turn, as at Anthropic. A tool's result is a
    message of its own. Raises ApiError for blocks that no chat template can show.
    """
    if not messages:
        raise bad_request("messages is empty; send at least one message", "messages")
    chat = ChatMessages()
    if system is not None and (text := _system_text(system, "system", "system")):
        chat.append({"role": "system", "content": text}, "system")
    for i, message in enumerate(messages):
        _add_message(chat, message, f"messages[{i}]")
    if not chat.messages:
        raise bad_request("messages has no text and no results of tools", "messages")
    last, path = chat.messages[-1], chat.paths[-1]
    if chat.is_begun and "tool_calls" in last:
        raise bad_request(f"{path} uses tools: send their results after it", "messages")
    if chat.is_begun and not last["content"]:
        raise bad_request(
            f"{path} is the beginning of the answer, and has no text to continue: leave it out",
            "messages",
        )
    return chat


def _add_message(chat: ChatMessages, message: Mapping[str, Any], path: str) -> None:
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise bad_request(f'{path} needs a "role": "user" or "assistant"', "messages")
    warn_of_unknown(message, ("role", "content"))
    if role == "system":
        text = _system_text(content, f"{path}.content", "messages")
        if text:
            turn = chat.turn(role, path)
            turn["content"] = _joined(turn["content"], text)
        return
    if not isinstance(content, list):
        turn = chat.turn(role, path)
        text = text_of(content, f"{path}.content", "messages")
        turn["content"] = _joined(turn["content"], text)
        return
    for j, block in enumerate(content):
        _add_block(chat, role, block, path, f"{path}.content[{j}]")


def _add_block(chat: ChatMessages, role: str, block: Any, of_message: str, path: str) -> None:
    """Adds a block at `path` of the message at `of_message`."""
    kind = str(block.get("type")) if isinstance(block, Mapping) else ""
    owner = _OWNERS.get(kind)
    if owner is None:
        turn = chat.turn(role, of_message)
        turn["content"] = _joined(turn["content"], text_of_part(block, path, "messages"))
        return
    if role != owner:
        raise bad_request(
            f"{path} is of the type {kind!r}, which messages of the role {owner!r} have", "messages"
        )
    warn_of_unknown(block, (*_NOT_READ, *_MEMBERS[kind]))
    if kind == "tool_result":
        chat.append(_result(block, path), path)
    elif kind == "tool_use":
        chat.turn(role, of_message).setdefault("tool_calls", []).append(_call(block, path))
    elif kind == "thinking" and (thoughts := _thoughts(block, path)):
        turn = chat.turn(role, of_message)
        turn["reasoning"] = _joined(turn.get("reasoning"), thoughts)
    # Redacted thoughts can be read by nobody but the server that wrote them.


def _result(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The message of a tool's result. No template knows errors, so the text says it."""
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str) or not call_id:
        raise bad_request(f'{path} needs the "tool_use_id" of the tool_use', "messages")
    text = "" if content is None else text_of(content, f"{path}.content", "messages")
    if block.get("is_error"):
        text = f"Error: {text}" if text else "Error"
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    call_id, name, arguments = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str) or not name:
        raise bad_request(f'{path} needs an "id" and the "name" of a tool', "messages")
    if not isinstance(arguments, Mapping):
        raise bad_request(f"{path}.input must be an object", "messages")
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _thoughts(block: Mapping[str, Any], path: str) -> str:
    """The thoughts of a block; where the client did not want to see them, its signature's."""
    text, signature = block.get("thinking"), block.get("signature", "")
    if not isinstance(text, str) or not isinstance(signature, str | None):
        raise bad_request(f'{path} needs "thinking" and "signature", both texts', "messages")
    return text or thoughts_of(signature or "")


def _system_text(content: Any, path: str, field: str) -> str:
    if isinstance(content, list):
        texts = [text_of_part(part, f"{path}[{i}]", field) for i, part in enumerate(content)]
    else:
        texts = [text_of(content, path, field)]
    texts = [text.partition("\n")[2] if text.startswith(_BILL) else text for text in texts]
    return "\n".join(filter(None, texts))


def _joined(before: str | None, text: str) -> str:
    return text if before is None else f"{before}\n{text}"
