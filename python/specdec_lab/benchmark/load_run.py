"""Sends the questions of a benchmark to one server, or to several in turns."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

from specdec_lab.benchmark.answers import Acceptance, Answer, Client, Question
from specdec_lab.benchmark.arrivals import arrival_times
from specdec_lab.evaluation.runner import rotated

AnswerListener = Callable[[Answer], None]


@dataclasses.dataclass(frozen=True)
class Load:
    """How requests are sent.

    Attributes:
        request_rate: requests a second, infinite for all at once.
        burstiness: see arrival_times().
        max_concurrency: the most requests at once; None for any number. With an infinite rate this
            is a closed loop of max_concurrency streams.
        seed: the seed of the arrival times.
    """

    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    seed: int = 0


@dataclasses.dataclass
class Turn:
    """One server's answers to the questions of one round, in their order, and how long it took."""

    seconds: float
    answers: list[Answer]


@dataclasses.dataclass
class Result:
    """The results of one server.

    Attributes:
        name: the server's.
        turns: one per round; round i of every server had the same questions.
        acceptance: how the drafts of all turns fared, by the server's counters; None without such
            counters.
    """

    name: str
    turns: list[Turn] = dataclasses.field(default_factory=list)
    acceptance: Acceptance | None = None

    @property
    def answers(self) -> list[Answer]:
        """The answers of all turns."""
        return [answer for turn in self.turns for answer in turn.answers]

    @property
    def seconds(self) -> float:
        """The seconds of all turns together."""
        return sum(turn.seconds for turn in self.turns)


async def send_load(
    client: Client, questions: Sequence[Question], load: Load, on_answer: AnswerListener
) -> Turn:
    """Asks all questions and waits for the answers."""
    clock = asyncio.get_running_loop().time
    slots = (
        contextlib.nullcontext()
        if load.max_concurrency is None
        else asyncio.Semaphore(load.max_concurrency)
    )

    async def ask(question: Question) -> Answer:
        async with slots:
            answer = await client.ask(question)
        on_answer(answer)
        return answer

    times = arrival_times(len(questions), load.request_rate, load.burstiness, load.seed)
    begin = clock()
    tasks = []
    try:
        for question, arrival in zip(questions, times, strict=True):
            if begin + arrival > clock():
                await asyncio.sleep(begin + arrival - clock())
            tasks.append(asyncio.create_task(ask(question)))
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return Turn(clock() - begin, answers)


def cut_into_rounds(questions: Sequence[Question], num_rounds: int) -> list[list[Question]]:
    """The questions in `num_rounds` parts of nearly the same number, none of them empty."""
    num_rounds = min(num_rounds, len(questions))
    bounds = [i * len(questions) // num_rounds for i in range(num_rounds + 1)]
    return [list(questions[a:b]) for a, b in itertools.pairwise(bounds)]


async def run_rounds(
    clients: Sequence[Client],
    rounds: Sequence[Sequence[Question]],
    load: Load,
    on_answer: AnswerListener = lambda _: None,
) -> list[Result]:
    """Each round's questions go to every client, one client after the other.

    The order of the clients changes from round to round, so that drift of the machine affects all
    of them alike. All have the same arrival times.
    """
    results = [Result(client.name) for client in clients]
    pairs = list(zip(clients, results, strict=True))
    for number, questions in enumerate(rounds):
        of_round = dataclasses.replace(load, seed=load.seed + number)
        for client, result in rotated(pairs, number):
            before = await client.acceptance()
            result.turns.append(await send_load(client, questions, of_round, on_answer))
            after = await client.acceptance()
            if before is not None and after is not None:
                result.acceptance = (result.acceptance or Acceptance()) + after - before
    return results
