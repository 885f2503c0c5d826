"""Answers with drafts against answers without."""

from __future__ import annotations

from collections.abc import Mapping

from specdec_lab.conformance.experiments.base import (
    Fields,
    Question,
    SameAnswers,
    Subjects,
    request_of,
)
from specdec_lab.conformance.prompts import prompts
from specdec_lab.conformance.rows import Row
from specdec_lab.conformance.server import Missing

_PROMPTS_PER_ROUND = 7
_SEED = 20_000

_WAYS: Mapping[str, Fields] = {
    # What is asked, with the fields that ask it.
    "greedy": {"temperature": 0},
    "sampled with a seed": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {"temperature": 0, "presence_penalty": 0.6, "frequency_penalty": 0.6},
}
_REPORTS = {
    "greedy": ("vllm#41758", "vllm#54506", "mlx-lm#1423"),
    "sampled with a seed": ("vllm#54282",),
}


class WithAndWithoutDrafts(Question):
    """One way of asking, with drafts and without; then all prompts at once with drafts."""

    def __init__(self, subjects: Subjects, way: str) -> None:
        reports = _REPORTS.get(way, ())
        self._same = SameAnswers(f"drafts on and off, {way}", *reports)
        super().__init__(subjects, self._same.rows)
        self._fields = _WAYS[way]
        self._is_sampled = bool(self._fields["temperature"])

    async def ask(self, number: int) -> None:
        """Every prompt alone on both servers, and once more beside the others.

        Those asked beside others come without logprobs: some servers draft nothing with them.
        """
        plain = self.subjects.plain
        if plain is None:
            raise Missing("second URL without drafts (--plain)")
        texts = prompts(number, _PROMPTS_PER_ROUND)
        fields: Fields = {"max_tokens": self.subjects.num_tokens, **self._fields}
        if self._is_sampled:
            fields["seed"] = _SEED + number
        has_logprobs = self.server.has_logprobs and plain.has_logprobs
        together = await self.server.ask_all(texts, **fields)
        for text, beside in zip(texts, together, strict=True):
            request = request_of(text, **fields)
            without = await plain.ask(text, with_logprobs=has_logprobs, **fields)
            alone = await self.server.ask(text, with_logprobs=has_logprobs, **fields)
            self._same.add(without, alone, request)
            self._same.add_texts(without, beside, request)


class DraftsAreKept(Question):
    """Whether drafts were accepted at all: without any, the other rows say nothing."""

    def __init__(self, subjects: Subjects) -> None:
        self._row = Row("drafts on and off", "drafts are accepted")
        super().__init__(subjects, (self._row,))
        self._first: int | None = None
        self._last: int | None = None
        self._told = 0

    async def ask(self, number: int) -> None:
        """Reads the counter, and asks something that repeats its prompt."""
        if self._first is None:
            self._first = await self.server.num_accepted()
        text = prompts(number, 1)[0]
        reply = await self.server.ask(text, temperature=0, max_tokens=self.subjects.num_tokens)
        self._told += reply.num_accepted or 0
        self._last = await self.server.num_accepted()
        if self._last is None and reply.num_accepted is None:
            raise Missing("count of accepted drafts, in /metrics or in answers")

    def conclude(self) -> None:
        """One case: the count of all rounds."""
        if self.is_over:
            return
        count = max(self._told, (self._last or 0) - (self._first or 0))
        self._row.note = f"{count} accepted"
        if count:
            self._row.add(None, {})
        else:
            self._row.missing = "no draft was accepted: the rows about drafts say nothing"


def questions(subjects: Subjects) -> list[Question]:
    """The questions about drafts."""
    return [DraftsAreKept(subjects), *(WithAndWithoutDrafts(subjects, way) for way in _WAYS)]
