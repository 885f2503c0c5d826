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

_PROMPTS_PER_ROUND = 7
_REPLACEMENT = "\ufffd"


class StreamedAndWhole(Question):
    """The events of a streamed answer, put together, against the whole answer."""

    def __init__(self, subjects: Subjects) -> None:
        self._same = SameAnswers("streamed and whole")
        self._usage = Row("streamed and whole", "same count of tokens in usage")
        super().__init__(subjects, (*self._same.rows, self._usage))

    async def ask(self, number: int) -> None:
        """Each prompt whole, then streamed."""
        for text in prompts(number, _PROMPTS_PER_ROUND):
            fields: Fields = {"max_tokens": self.subjects.num_tokens, "temperature": 0}
            request = request_of(text, **fields)
            whole = await self.server.ask(text, with_logprobs=True, **fields)
            streamed = await self.server.ask(text, with_logprobs=True, stream=True, **fields)
            self._same.add(whole, streamed, request)
            if streamed.num_output_tokens is None:
                self._usage.missing = "the server streams no usage"
                continue
            counts = (whole.num_output_tokens, streamed.num_output_tokens)
            are_equal = counts[0] == counts[1]
            self._usage.add(None if are_equal else f"{counts[0]} / {counts[1]} tokens", request)


class WholeCharacters(Question):
    """Events of a stream never cut a character of several tokens."""

    def __init__(self, subjects: Subjects) -> None:
        self._row = Row("streamed and whole", "no event cuts a character")
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
