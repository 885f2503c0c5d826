"""Prepares the messages of clients for the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdec_native.common.checks import check_text
from specdec_serve.http.errors import ApiError, bad_request
from specdec_serve.http.protocol.body import warn_of_unknown

# Kinds of content parts that are text, with the key that holds the text.
_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
_MEDIA = ("image_url", "image_embeds", "image_pil", "input_audio", "audio_url", "video_url", "file")
# Members of parts that change nothing: of answers that clients send back, and of caches elsewhere.
_NOT_OF_TEXT = ("annotations", "logprobs", "citations", "cache_control")
# Members of messages that would be ignored, with the advice what to send instead.
_NOT_READ = {
    "function_call": 'send "tool_calls", and answers to them in messages of the role "tool"',
    "audio": "this engine reads text only; send what was said as content",
}


def plain_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages with content parts joined to one text; other members are kept.

    Raises ApiError for what no chat template can show, such as images.
    """
    return [
        plain_message(message, f"messages[{i}]", "messages") for i, message in enumerate(messages)
    ]


def plain_message(message: Any, path: str, field: str) -> dict[str, Any]:
    """One message; `path` is its location in the field."""
    if not isinstance(message, Mapping):
        raise bad_request(f'{path} must be an object with "role" and "content"', field)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise bad_request(f'{path} needs a "role", such as "user"', field)
    plain = {name: value for name, value in message.items() if value is not None}
    for name, advice in _NOT_READ.items():
        if name in plain:
            raise bad_request(f"{path}.{name} is not read: {advice}", field)
    if "content" not in message and "refusal" not in plain and "tool_calls" not in plain:
        raise bad_request(f'{path} needs "content", text or null', field)
    content = plain.get("content", plain.get("refusal"))  # an assistant may refuse
    plain["content"] = None if content is None else text_of(content, f"{path}.content", field)
    for name in ("name", "tool_call_id"):
        if not isinstance(plain.get(name), str | None):
            raise bad_request(f"{path}.{name} must be a string", field)
    if not isinstance(plain.get("tool_calls"), list | None):
        raise bad_request(f"{path}.tool_calls must be a list", field)
    return plain


def text_of(content: Any, path: str, field: str) -> str:
    """The text of a message's content: a string, or a list of text parts.

    Raises ApiError for parts of other kinds.
    """
    if isinstance(content, str):
        return _checked(content, path, field)
    if not isinstance(content, list):
        raise bad_request(f"{path} must be a string or a list of text parts", field)
    parts = (text_of_part(part, f"{path}[{i}]", field) for i, part in enumerate(content))
    return "\n".join(parts)


def text_of_part(part: Any, path: str, field: str) -> str:
    """The text of one part. Raises ApiError for parts of other kinds."""
    if isinstance(part, str):
        return _checked(part, path, field)
    if not isinstance(part, Mapping):
        raise bad_request(f"{path} must be a content part or a string", field)
    # vLLM's clients may leave out the type, or put an image beside a text.
    media = next((name for name in _MEDIA if part.get(name) is not None), "text")
    kind = part.get("type", media)
    key = _TEXT_KEYS.get(kind) if isinstance(kind, str) else None
    if key is None or media != "text":
        raise bad_request(
            f"{path} is of the type {str(kind if key is None else media)[:40]!r}, but this engine "
            'answers text only, whatever else a model reads: send parts of the type "text"',
            field,
        )
    warn_of_unknown(part, {"type", key, *_NOT_OF_TEXT})
    text = part.get(key)
    if not isinstance(text, str):
        raise bad_request(f'{path} needs a string "{key}"', field)
    return _checked(text, path, field)


def _checked(text: str, path: str, field: str) -> str:
    try:
        return check_text(path, text)
    except ValueError as error:
        raise ApiError(400, str(error)[:500], param=field) from error
