"""The content blocks of a message in the form of Anthropic's Messages API, as they grow."""

from __future__ import annotations

import base64
import json
from typing import Any

import pydantic_core

from specdec_serve.http.answer_items import AnswerItems, Item, Written
from specdec_serve.http.tools.answer import AnswerReader
from specdec_serve.http.tools.events import CallBegins


class Block(Item):
    """One content block, which is told of by its start, deltas and its stop."""

    def begins(self, index: int) -> list[Written]:
        """The block starts, empty."""
        return [("content_block_start", {"index": index, "content_block": self.json()})]

    def ends(self, index: int, status: str) -> list[Written]:
        """The block stops."""
        self.status = status
        return [("content_block_stop", {"index": index})]


def _delta(index: int, kind: str, **members: Any) -> list[Written]:
    return [("content_block_delta", {"index": index, "delta": {"type": kind, **members}})]


class TextBlock(Block):
    """A text."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def json(self) -> dict[str, Any]:
        """The block."""
        return {"type": "text", "text": self.text}

    def add(self, text: str, index: int) -> list[Written]:
        """More text."""
        self.text += text
        return _delta(index, "text_delta", text=text) if text else []


class ThinkingBlock(Block):
    """What the model thinks."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def json(self) -> dict[str, Any]:
        """The block; its signature is there when it has ended."""
        signature = "" if self.status == "in_progress" else signature_of(self.text)
        return {"type": "thinking", "thinking": self._shown(self.text), "signature": signature}

    def add(self, text: str, index: int) -> list[Written]:
        """More thoughts."""
        self.text += text
        shown = self._shown(text)
        return _delta(index, "thinking_delta", thinking=shown) if shown else []

    def ends(self, index: int, status: str) -> list[Written]:
        """The signature comes, and the block stops."""
        signature = _delta(index, "signature_delta", signature=signature_of(self.text))
        return signature + super().ends(index, status)

    def _shown(self, text: str) -> str:
        return text


class OmittedThinkingBlock(ThinkingBlock):
    """Thoughts that the client does not want to see: the signature alone has them."""

    def _shown(self, text: str) -> str:
        return ""


class ToolUseBlock(Block):
    """A call of a tool. Its input is an object; arguments of another kind are dropped."""

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__()
        self._head = {"type": "tool_use", "id": call_id, "name": name}
        self._arguments: list[str] = []
        self._is_object: bool | None = None  # None: not known yet

    def json(self) -> dict[str, Any]:
        """The block, with as much of the input as there is."""
        return {**self._head, "input": _input_of("".join(self._arguments))}

    def add(self, text: str, index: int) -> list[Written]:
        """More of the arguments."""
        if self._is_object is None and (text := text.lstrip()):
            self._is_object = text.startswith("{")
        if not self._is_object or not text:
            return []
        self._arguments.append(text)
        return _delta(index, "input_json_delta", partial_json=text)


class MessageBlocks(AnswerItems):
    """All content blocks of a message; the last one may still grow."""

    def __init__(self, reader: AnswerReader | None, *, shows_thinking: bool = True) -> None:
        """`reader` finds calls and reasoning; None if there can be none."""
        super().__init__(reader)
        self._thinking = ThinkingBlock if shows_thinking else OmittedThinkingBlock

    @property
    def thoughts(self) -> str:
        """The text of all reasoning so far, shown or not."""
        return "".join(item.text for item in self._items if isinstance(item, ThinkingBlock))

    @property
    def has_call(self) -> bool:
        """Whether the last call there is, if any, is complete, so that calls can be answered."""
        calls = [item for item in self._items if isinstance(item, ToolUseBlock)]
        return bool(calls) and calls[-1].status == "completed"

    def add(self, text: str, *, is_last: bool) -> list[Written]:
        """Adds a step's text. A message without content gets a block with an empty text."""
        written: list[Written] = []
        for event in self._events_of(text, is_last=is_last):
            written += self._add(event)
        if is_last:
            written += ([] if self._items else self._say("")) + self._close("completed")
        return written

    def _say(self, text: str) -> list[Written]:
        block, written = self._continued(TextBlock)
        return written + block.add(self._with_space(text), self._last)

    def _think(self, text: str) -> list[Written]:
        block, written = self._continued(self._thinking)
        return written + block.add(text, self._last)

    def _call(self, event: CallBegins) -> Item:
        return ToolUseBlock(event.id, event.name)

    @property
    def _in_text(self) -> bool:
        return isinstance(self._open_item, TextBlock)


def signature_of(thoughts: str) -> str:
    """What a thinking block's signature says: the thoughts themselves.

    A client that does not show them sends them back with the signature.
    """
    return base64.b64encode(thoughts.encode("utf-8", "surrogatepass")).decode()


def thoughts_of(signature: str) -> str:
    """The thoughts of a signature; "" where it is not one of this server's."""
    try:
        return base64.b64decode(signature, validate=True).decode()
    except ValueError:
        return ""


def _input_of(arguments: str) -> dict[str, Any]:
    """The input that the arguments' text gives so far, as Anthropic's client reads it.

    What is incomplete at the end is left out. Numbers beyond those of floats become null.
    """
    try:
        value = pydantic_core.from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        return {}
    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    return finite if isinstance(finite, dict) else {}
