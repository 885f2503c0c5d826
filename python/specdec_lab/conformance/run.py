"""Asks all questions, in rounds, for as long as there is time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from specdec_lab.conformance.experiments.base import Question
from specdec_lab.conformance.rows import Row


async def run(
    questions: Sequence[Question],
    seconds: float,
    on_question: Callable[[int, Question], None] = lambda _number, _question: None,
) -> list[Row]:
    """The rows of all questions. Every question is asked at least once.

    seconds: no question begins later, after the first round.
    on_question: is told the round and the question before each.
    """
    end = time.monotonic() + seconds
    number = 0
    while True:
        for question in questions:
            if question.is_over:
                continue
            if number and time.monotonic() > end:
                break
            on_question(number, question)
            await question.run_round(number)
        number += 1
        if time.monotonic() > end or all(question.is_over for question in questions):
            break
    for question in questions:
        question.conclude()
    return [row for question in questions for row in question.rows]
