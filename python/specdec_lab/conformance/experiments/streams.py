"""Streamed answers against whole ones."""

from __future__ import annotations

from specdec_lab.conformance.experiments.base import (
    Fields,
    Question,
    SameAnswers,
    Subjects,
    request_of,
)
from specdec_lab.conformance.prompts import KIND_NAMES, prompt, prompts
from specdec_lab.conformance.rows import Row

_SUBJECT = "streamed and whole"
_REPORTS = ("llama.cpp#27972",)
_PROMPTS_PER_ROUND = 7
_REPLACEMENT = "\ufffd"


class StreamedAndWhole(Question):
    """The events of a streamed answer, put together, against the whole answer."""

    def __init__(self, subjects: Subjects) -> None:
        self._same = SameAnswers(_SUBJECT)
        self._usage = Row(_SUBJECT, "usage comes, with the same count of tokens")
        self._done = Row(_SUBJECT, "a stream ends with [DONE]")
        self._entries = Row(_SUBJECT, "as many logprobs streamed as whole", _REPORTS)
        rows = (*self._same.rows, self._usage, self._done, self._entries)
        super().__init__(subjects, rows)

    async def ask(self, number: int) -> None:
        """Each prompt whole, then streamed."""
        for text in prompts(number, _PROMPTS_PER_ROUND):
            fields: Fields = {"max_tokens": self.subjects.num_tokens, "temperature": 0}
            request = request_of(text, **fields)
            has_logprobs = self.server.has_logprobs
            whole = await self.server.ask(text, with_logprobs=has_logprobs, **fields)
            streamed = await self.server.ask(
                text, with_logprobs=has_logprobs, stream=True, **fields
            )
            self._same.add(whole, streamed, request)
            self._done.add(None if streamed.has_done else "the last event is another", request)
            counts = (whole.num_output_tokens, streamed.num_output_tokens)
            if streamed.num_output_tokens is None:
                self._usage.add("no usage, which stream_options.include_usage asks for", request)
            elif whole.first.text == streamed.first.text:
                are_equal = counts[0] == counts[1]
                self._usage.add(None if are_equal else f"{counts[0]} / {counts[1]} tokens", request)
            if not has_logprobs:
                self._entries.missing = "the server has no logprobs"
            elif whole.first.text == streamed.first.text:
                counts = (len(whole.first.tokens or ()), len(streamed.first.tokens or ()))
                are_equal = counts[0] == counts[1]
                self._entries.add(None if are_equal else f"{counts[0]} / {counts[1]}", request)


class WholeCharacters(Question):
    """Events of a stream never cut a character of several tokens."""

    def __init__(self, subjects: Subjects) -> None:
        self._row = Row(_SUBJECT, "no event cuts a character")
        super().__init__(subjects, (self._row,))

    async def ask(self, number: int) -> None:
        """Texts with emoji, Japanese and Greek."""
        text = prompt(KIND_NAMES.index("wide") + number * len(KIND_NAMES))
        fields: Fields = {"max_tokens": self.subjects.num_tokens, "temperature": 0}
        whole = (await self.server.ask(text, **fields)).first.text
        pieces = (await self.server.ask(text, stream=True, **fields)).pieces
        cut = [piece for piece in pieces if _REPLACEMENT in piece]
        # A model may write a broken character itself: then the whole answer has as many.
        is_ours = sum(piece.count(_REPLACEMENT) for piece in cut) > whole.count(_REPLACEMENT)
        self._row.add(f"an event has the text {cut[0]!r}" if is_ours else None, request_of(text))


def questions(subjects: Subjects) -> list[Question]:
    """The questions about streams."""
    return [StreamedAndWhole(subjects), WholeCharacters(subjects)]
