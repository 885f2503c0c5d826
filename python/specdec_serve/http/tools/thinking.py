"""Separates what a model thinks from its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec_native.text.reasoning import ReasoningFormat, ReasoningStart
from specdec_serve.http.tools.call_reader import overlap
from specdec_serve.http.tools.events import AnswerParser, Content, Event, Reasoning


class ThinkingParser:
    """Reasoning between two marks, then an answer, which may have a parser of its own.

    White space around the reasoning belongs to the marks. An end mark without reasoning before it
    is dropped. Reasoning that the end of the text cuts is reasoning.
    """

    def __init__(
        self, form: ReasoningFormat, start: ReasoningStart, answer: AnswerParser | None
    ) -> None:
        """`start` says where the text begins; without `answer`, the answer is content."""
        self._form = form
        self._answer = answer
        self._held = ""  # text whose kind is not known yet
        self._is_first = True  # no reasoning so far
        self._state: Callable[[], list[Event]] = {
            ReasoningStart.OPTIONAL: self._read_before,
            ReasoningStart.BEGUN: self._read_reasoning,
            ReasoningStart.OVER: self._read_answer,
        }[start]

    def feed(self, text: str) -> list[Event]:
        """The events of the next piece of text."""
        self._held += text
        return self._run()

    def finish(self) -> list[Event]:
        """The events at the end of the text."""
        if self._state == self._read_before:
            self._read_before(is_last=True)
        events = self._run()
        if self._state == self._read_reasoning:
            text, self._held = self._held, ""
            text = text.lstrip() if self._is_first else text
            return [*events, Reasoning(text)] if text.strip() else events
        self._state = self._read_answer
        events += self._run()
        if self._answer is not None:
            events += self._answer.finish()
        return events

    @property
    def holds(self) -> bool:
        """Whether text waits of which it is not known yet what it is."""
        return bool(self._held) or (self._answer is not None and self._answer.holds)

    def _run(self) -> list[Event]:
        events: list[Event] = []
        state = None
        while state != self._state:  # each step goes on from where the one before has stopped
            state = self._state
            events += state()
        return events

    def _read_before(self, *, is_last: bool = False) -> list[Event]:
        text = self._held.lstrip()
        marks = (*self._form.begin, *self._form.end)
        if any(mark.startswith(text) and mark != text for mark in marks) and not is_last:
            return []
        self._state = self._read_answer
        if mark := _first(marks, text):
            self._held = text[len(mark) :]
            is_end = mark in self._form.end
            self._state = self._skip_gap if is_end else self._read_reasoning
        return []

    def _read_reasoning(self) -> list[Event]:
        text = self._held.lstrip() if self._is_first else self._held
        found = [(at, mark) for mark in self._form.end if (at := text.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            thought, self._held = text[:at].rstrip(), text[at + len(mark) :]
            self._state = self._skip_gap
        else:
            # What is held may begin a mark, or be white space before one.
            at = len(text) - max(overlap(text, mark) for mark in self._form.end)
            thought = text[:at].rstrip()
            self._held = text[len(thought) :]
        self._is_first &= not thought
        return [Reasoning(thought)] if thought else []

    def _skip_gap(self) -> list[Event]:
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._read_answer
        return []

    def _read_answer(self) -> list[Event]:
        text, self._held = self._held, ""
        if self._answer is not None:
            return self._answer.feed(text)
        return [Content(text)] if text else []


def _first(marks: Sequence[str], text: str) -> str | None:
    """The mark that the text begins with; the longest of several."""
    return max((mark for mark in marks if text.startswith(mark)), key=len, default=None)
