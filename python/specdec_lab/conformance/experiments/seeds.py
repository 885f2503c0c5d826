"""Sampled answers by their seeds."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from specdec_lab.conformance.experiments.base import Fields, Question, Subjects, request_of
from specdec_lab.conformance.prompts import KIND_NAMES, prompt
from specdec_lab.conformance.replies import text_difference
from specdec_lab.conformance.rows import Row

_SUBJECT = "seeds"
_NUM_SEEDS = 4
_STORY = KIND_NAMES.index("story")  # free text: two seeds hardly ever write the same


class Seeds(Question):
    """A seed names an answer: alone, beside others and among the answers of one prompt."""

    def __init__(self, subjects: Subjects) -> None:
        name = "one seed gives one answer, alone and in a batch"
        self._same = Row(_SUBJECT, name, is_promised=False)
        self._other = Row(_SUBJECT, "other seeds give other answers")
        self._among = Row(_SUBJECT, "n completions of one seed differ")
        self._without = Row(_SUBJECT, "requests without a seed differ")
        super().__init__(subjects, (self._same, self._other, self._among, self._without))

    async def ask(self, number: int) -> None:
        """One prompt, four seeds."""
        text = prompt(_STORY + number * len(KIND_NAMES))
        fields: Fields = {"temperature": 1, "top_p": 1, "max_tokens": 24}
        first = number * _NUM_SEEDS + 1
        seeds = range(first, first + _NUM_SEEDS)
        alone = [(await self.server.ask(text, seed=seed, **fields)).first for seed in seeds]
        batch = await asyncio.gather(
            *(self.server.ask(text, seed=seed, **fields) for seed in seeds)
        )
        for seed, a, b in zip(seeds, alone, batch, strict=True):
            self._same.add(text_difference(a, b.first), request_of(text, seed=seed, **fields))
        self._distinct(self._other, [c.text for c in alone], request_of(text, **fields))
        without = await self.server.ask_all([text] * _NUM_SEEDS, **fields)
        self._distinct(self._without, [r.first.text for r in without], request_of(text, **fields))
        several = await self.server.ask(text, n=_NUM_SEEDS, seed=first, **fields)
        texts = [completion.text for completion in several.completions]
        request = request_of(text, n=_NUM_SEEDS, seed=first, **fields)
        if len(texts) == _NUM_SEEDS:
            self._distinct(self._among, texts, request)
        else:
            self._among.add(f"{len(texts)} completions, {_NUM_SEEDS} asked", request)

    def _distinct(self, row: Row, texts: list[str], request: dict[str, Any]) -> None:
        pairs = list(itertools.combinations(texts, 2))
        equal = [a for a, b in pairs if a == b]
        row.add(f"{len(equal)} of {len(pairs)} pairs are equal" if equal else None, request)


def questions(subjects: Subjects) -> list[Question]:
    """The questions about seeds."""
    return [Seeds(subjects)]
