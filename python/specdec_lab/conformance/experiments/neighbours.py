"""Answers alone, beside others, beside cancelled ones, and behind a warm cache."""

from __future__ import annotations

import asyncio

from specdec_lab.conformance.experiments.base import (
    Fields,
    Question,
    SameAnswers,
    Subjects,
    request_of,
)
from specdec_lab.conformance.prompts import prompts

_NUM_TOGETHER = 8
_NUM_ALONE = 4


class AloneAndTogether(Question):
    """A prompt alone, then beside seven others."""

    def __init__(self, subjects: Subjects) -> None:
        self._same = SameAnswers("alone and in a batch", "vllm#41758")
        super().__init__(subjects, self._same.rows)

    async def ask(self, number: int) -> None:
        """Compares the answers of half of the batch."""
        texts = prompts(number, _NUM_TOGETHER)
        fields: Fields = {"max_tokens": self.subjects.num_tokens, "temperature": 0}
        alone = [
            await self.server.ask(text, with_logprobs=self.server.has_logprobs, **fields)
            for text in texts[:_NUM_ALONE]
        ]
        together = await self.server.ask_all(
            texts, with_logprobs=self.server.has_logprobs, **fields
        )
        for text, a, b in zip(texts, alone, together, strict=False):
            self._same.add(a, b, request_of(text, **fields))


class BesideCancelled(Question):
    """A prompt alone, then beside streams whose clients leave."""

    def __init__(self, subjects: Subjects) -> None:
        self._same = SameAnswers("beside cancelled requests")
        super().__init__(subjects, self._same.rows)

    async def ask(self, number: int) -> None:
        """Half of a batch leaves after one to four events."""
        texts = prompts(number, _NUM_TOGETHER)
        fields: Fields = {"max_tokens": self.subjects.num_tokens, "temperature": 0}
        kept, leaving = texts[:_NUM_ALONE], texts[_NUM_ALONE:]
        alone = [
            await self.server.ask(text, with_logprobs=self.server.has_logprobs, **fields)
            for text in kept
        ]
        left = [
            self.server.try_ask(text, cancel_after=i + 1, stream=True, **fields)
            for i, text in enumerate(leaving)
        ]
        beside = asyncio.ensure_future(
            self.server.ask_all(kept, with_logprobs=self.server.has_logprobs, **fields)
        )
        await asyncio.gather(*left)
        answers = await beside
        for text, a, b in zip(kept, alone, answers, strict=True):
            self._same.add(a, b, request_of(text, **fields))


class ColdAndWarm(Question):
    """A prompt whose beginning the server has not seen, and again when it has."""

    def __init__(self, subjects: Subjects) -> None:
        self._same = SameAnswers("prefix cache cold and warm")
        super().__init__(subjects, self._same.rows)

    async def ask(self, number: int) -> None:
        """Long prompts that share a new beginning, each asked twice."""
        beginning = f"Notes of day {number + 1}, {'and '.join(prompts(number, 4))}\n\n"
        fields: Fields = {"max_tokens": self.subjects.num_tokens // 2, "temperature": 0}
        for ending in prompts(number + 1, 2):
            text = beginning + ending
            cold = await self.server.ask(text, with_logprobs=self.server.has_logprobs, **fields)
            warm = await self.server.ask(text, with_logprobs=self.server.has_logprobs, **fields)
            self._same.add(cold, warm, request_of(text, **fields))


def questions(subjects: Subjects) -> list[Question]:
    """The questions about neighbours."""
    return [AloneAndTogether(subjects), BesideCancelled(subjects), ColdAndWarm(subjects)]
