"""When requests of `bench serve` are sent, to whom, and what is asked."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import virtual_time
from specdec_lab.benchmark.answers import Acceptance, Answer, Question
from specdec_lab.benchmark.arrivals import arrival_times
from specdec_lab.benchmark.load_run import Load, Result, cut_into_rounds, run_rounds
from specdec_lab.benchmark.questions import custom_questions, random_questions, random_tokens
from specdec_lab.evaluation.prompts import PromptsError


class Sleeper:
    """A client whose answers take as long as their question has tokens, in seconds.

    Attributes:
        begun, ended: the time and the text of each question.
    """

    def __init__(self, name: str = "sleeper", counts: int | None = None) -> None:
        self.name = name
        self.begun: list[tuple[float, str]] = []
        self.ended: list[tuple[float, str]] = []
        self.running = self.most_running = 0
        self._drafts = counts

    async def ask(self, question: Question) -> Answer:
        clock = asyncio.get_running_loop().time
        text = str(question.prompt)
        answer = Answer(question, clock())
        self.begun.append((clock(), text))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(question.max_tokens)
        self.running -= 1
        answer.arrivals.append(clock())
        self.ended.append((clock(), text))
        if self._drafts is not None:
            self._drafts += 1
        return answer

    async def acceptance(self) -> Acceptance | None:
        return None if self._drafts is None else Acceptance(self._drafts)

    async def count_tokens(self, text: str) -> int | None:
        return None

    async def close(self) -> None:
        pass


def questions(*seconds: int) -> list[Question]:
    return [Question("x", f"q{i}", length) for i, length in enumerate(seconds)]


def send(client: Sleeper, asked: list[Question], load: Load) -> Result:
    (result,) = virtual_time.run(run_rounds([client], [asked], load))
    return result


def test_all_at_once_without_a_rate() -> None:
    client = Sleeper()
    result = send(client, questions(3, 1, 2), Load())
    assert [time for time, _ in client.begun] == [0, 0, 0] and client.most_running == 3
    assert result.seconds == 3
    assert [answer.question.prompt for answer in result.answers] == ["q0", "q1", "q2"]


def test_a_closed_loop_has_so_many_streams() -> None:
    client = Sleeper()
    result = send(client, questions(3, 1, 1, 4, 1), Load(max_concurrency=2))
    assert client.begun == [(0, "q0"), (0, "q1"), (1, "q2"), (2, "q3"), (3, "q4")]
    assert client.most_running == 2 and result.seconds == 6


def test_an_open_loop_sends_whatever_is_still_running() -> None:
    client = Sleeper()
    result = send(client, questions(*[10] * 5), Load(request_rate=2.0, burstiness=math.inf))
    assert [time for time, _ in client.begun] == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert client.most_running == 5 and result.seconds == pytest.approx(12)


def test_an_open_loop_keeps_its_seeded_arrivals() -> None:
    client = Sleeper()
    load = Load(request_rate=4.0, burstiness=0.5, seed=7)
    send(client, questions(*[1] * 20), load)
    assert [time for time, _ in client.begun] == pytest.approx(arrival_times(20, 4.0, 0.5, 7))


def test_an_open_loop_may_be_bounded() -> None:
    client = Sleeper()
    load = Load(request_rate=1.0, burstiness=math.inf, max_concurrency=1)
    send(client, questions(3, 1, 1), load)
    assert client.begun == [(0, "q0"), (3, "q1"), (4, "q2")]


def test_servers_take_turns_and_none_runs_beside_another() -> None:
    clients = [Sleeper("a"), Sleeper("b")]
    rounds = cut_into_rounds(questions(*[1] * 7), 3)
    assert [len(found) for found in rounds] == [2, 2, 3]
    load = Load(request_rate=1.0, burstiness=0.3, seed=5)
    results = virtual_time.run(run_rounds(clients, rounds, load))
    spans = []
    for number, found in enumerate(rounds):
        names = {str(question.prompt) for question in found}
        for client in clients:
            begin = min(time for time, text in client.begun if text in names)
            end = max(time for time, text in client.ended if text in names)
            spans.append((begin, end, client.name, number))
    spans.sort()
    assert [(name, number) for _, _, name, number in spans] == [
        *(("a", 0), ("b", 0), ("b", 1)),
        *(("a", 1), ("a", 2), ("b", 2)),
    ]
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    first, second = ([turn.seconds for turn in result.turns] for result in results)
    assert first == pytest.approx(second)  # the same arrivals
    assert [len(result.answers) for result in results] == [7, 7]


def test_counters_are_those_of_the_run() -> None:
    clients = [Sleeper("a", counts=100), Sleeper("b")]
    first, second = virtual_time.run(run_rounds(clients, [questions(1, 1)], Load()))
    assert first.acceptance == Acceptance(2) and second.acceptance is None


def test_counters_of_a_server_that_is_asked_twice_are_told_apart() -> None:
    shared = Sleeper("a", counts=0)
    rounds = [questions(1, 1), questions(1)]
    results = virtual_time.run(run_rounds([shared, shared], rounds, Load()))
    assert [result.acceptance for result in results] == [Acceptance(3), Acceptance(3)]


def test_rounds_are_never_empty() -> None:
    assert [len(found) for found in cut_into_rounds(questions(1, 1), 10)] == [1, 1]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_follow_the_gamma_distribution(burstiness: float) -> None:
    """Mean and variance of a gamma distribution; a Poisson process's median as well."""
    rate, num = 5.0, 40_000
    gaps = np.diff(arrival_times(num, rate, burstiness, seed=3))
    assert gaps.min() >= 0 and len(gaps) == num - 1
    deviation = 1 / (rate * math.sqrt(burstiness))
    assert gaps.mean() == pytest.approx(1 / rate, abs=5 * deviation / math.sqrt(num))
    assert gaps.std() == pytest.approx(deviation, rel=0.05)
    below = np.mean(gaps < math.log(2) / rate)
    is_poisson = abs(below - 0.5) < 5 * 0.5 / math.sqrt(num)
    assert is_poisson == (burstiness == 1.0)


def test_arrivals_are_seeded() -> None:
    assert arrival_times(50, 2.0, 1.0, 1) == arrival_times(50, 2.0, 1.0, 1)
    assert arrival_times(50, 2.0, 1.0, 1) != arrival_times(50, 2.0, 1.0, 2)
    assert arrival_times(3, math.inf, 1.0, 1) == [0.0, 0.0, 0.0]
    assert arrival_times(0, 2.0, 1.0, 1) == []
    assert arrival_times(1, 2.0, 1.0, 1) == [0.0]


def test_random_texts_have_the_length_that_is_counted() -> None:
    """A tokenizer of 1 for the text and a token for each three letters of a word, rounded up."""

    async def count(text: str) -> int:
        return 1 + sum(math.ceil(len(word) / 3) for word in text.split())

    async def words(text: str) -> None:
        return None

    found = virtual_time.run(random_questions(8, 200, 7, seed=1, count_tokens=count))
    for question in found:
        assert isinstance(question.prompt, str)
        assert virtual_time.run(count(question.prompt)) == pytest.approx(200, abs=2)
        assert question.max_tokens == 7
    again = virtual_time.run(random_questions(8, 200, 7, seed=1, count_tokens=count))
    assert again == found and len({question.prompt for question in found}) == 8
    blind = virtual_time.run(random_questions(3, 20, 7, seed=1, count_tokens=words))
    assert [len(str(question.prompt).split()) for question in blind] == [20, 20, 20]


def test_lengths_differ_by_the_ratio() -> None:
    async def words(text: str) -> None:
        return None

    asked = random_questions(400, 100, 10, range_ratio=0.2, seed=2, count_tokens=words)
    found = virtual_time.run(asked)
    inputs = {len(str(question.prompt).split()) for question in found}
    outputs = {question.max_tokens for question in found}
    assert (min(inputs), max(inputs)) == (80, 120)
    assert outputs == set(range(8, 13))


def test_random_tokens_are_of_the_vocabulary() -> None:
    prompts = random_tokens(20, 50, 160, seed=1)
    assert {len(prompt) for prompt in prompts} == {50}
    used = {token for prompt in prompts for token in prompt}
    assert used <= set(range(160)) and len(used) > 140
    assert prompts != random_tokens(20, 50, 160, seed=2)


def test_questions_of_files_have_categories_and_start_again(tmp_path: Path) -> None:
    lines = [
        {"question_id": 1, "category": "writing", "turns": ["one", "two"]},
        {"prompt": "three"},
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = custom_questions([file], 3, 5, seed=10)
    assert [(q.category, q.prompt, q.max_tokens, q.seed) for q in found] == [
        ("writing", "one", 5, 10),
        ("mine", "three", 5, 11),
        ("writing", "one", 5, 12),
    ]
    assert len(custom_questions([file], None, 5, seed=0)) == 2
    file.write_text("{}\n")
    with pytest.raises(PromptsError, match=r"mine\.jsonl, line 1"):
        custom_questions([file], None, 5, seed=0)
