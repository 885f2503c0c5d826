"""Reads the server-sent events of an answer as their bytes arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from specdec_lab.benchmark.answers import Acceptance, Answer

_MOST_ERROR_CHARS = 300
_TEXT_MEMBERS = ("content", "reasoning_content", "reasoning", "tool_calls")


class StreamError(Exception):
    """A stream that is not a whole answer."""


class AnswerStream:
    """Records a stream's content and arrival times in an Answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""
        self._is_whole = self._has_usage = False

    def take(self, piece: bytes, now: float) -> None:
        """Reads bytes that arrived at time `now`. Raises StreamError."""
        for data in self._events(piece):
            if data == "[DONE]":
                self._is_whole = True
            else:
                self._take_event(data, now)

    def end(self) -> None:
        """Raises StreamError if the answer is not complete."""
        if not self._is_whole:
            raise StreamError("the stream ended without [DONE]")
        if not self._answer.arrivals:
            raise StreamError("the stream has no tokens")
        if not self._has_usage:
            raise StreamError("the stream has no usage, without which tokens cannot be counted")

    def _events(self, piece: bytes) -> Iterator[str]:
        """The data of the events that are complete."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode()

    def _take_event(self, data: str, now: float) -> None:
        event = json.loads(data)
        if not isinstance(event, dict):
            raise StreamError(f"the stream has an event that is no object: {data[:80]}")
        if event.get("error"):
            raise StreamError(error_text(data.encode()))
        choices = event.get("choices") or []
        if choices and (text := _new_text(choices[0])) is not None:
            self._answer.arrivals.append(now)
            self._answer.text += text
        if usage := event.get("usage"):
            self._has_usage = True
            self._answer.num_prompt_tokens = usage["prompt_tokens"]
            self._answer.num_output_tokens = usage["completion_tokens"]
        member = (event.get("metrics") or {}).get("speculative_decoding")
        if member:
            self._answer.acceptance = Acceptance.from_member(member)


def _new_text(choice: Mapping[str, Any]) -> str | None:
    """The text of a chunk; None for the first chunk of a chat answer, which has none."""
    if "text" in choice:
        return str(choice["text"] or "")
    delta = choice.get("delta") or {}
    brought = [delta[name] for name in _TEXT_MEMBERS if delta.get(name)]
    if not brought and "role" in delta and not choice.get("finish_reason"):
        return None
    return "".join(part if isinstance(part, str) else json.dumps(part) for part in brought)


def error_text(body: bytes) -> str:
    """The message of an error, cut to a line."""
    text = body.decode(errors="replace")
    try:
        error = json.loads(text)
        error = error.get("error", error)
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, AttributeError):
        pass
    return " ".join(text.split())[:_MOST_ERROR_CHARS] or "an empty answer"
