"""Callers with many completions get seats of the engine in turn, and leave some for others."""

import asyncio
import gc
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_native import Engine, RequestOutput, SamplingParams
from specdec_native.requests.fair_queue import FairQueue, Part, Share
from specdec_native.requests.group import RequestGroup
from specdec_native.requests.inputs import parse_prompts
from specdec_native.requests.request import Request
from specdec_native.requests.sampling_params import RequestOutputKind
from tiny_text_model import OPTIONS, is_idle, text_params
from waiting import wait_until

SEATS = 8  # callers with many completions take six of these together
STEP = 100  # tokens


class Seats:
    """An engine that runs what a test tells it to, and a queue before it."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.queue = FairQueue(self.start, SEATS, STEP)
        self.is_closed = False

    def start(self, parts: Sequence[Part]) -> list[Any]:
        if self.is_closed:
            raise RuntimeError("closed")
        self.parts += parts
        for part in parts:
            part.request.numbers.append(len(self.parts))
        return [SimpleNamespace(abort=lambda: None) for _ in parts]

    def enter(self, *requests: Request) -> Share:
        share = Share(requests)
        self.queue.enter(share)
        return share

    def running_of(self, share: Share) -> int:
        return sum(
            part.request.num_running(part.completions)
            for part in self.parts
            if part.request in share.requests
        )

    def report(self, part: Part, *, ended: bool) -> list[Request]:
        """One completion of a part gets a token, and perhaps ends with that."""
        number = next(i for i in part.completions if part.request.num_running(range(i, i + 1)))
        output = core_output(number - part.completions.start, "length" if ended else None)
        part.request.apply(output, part.completions.start)
        return self.queue.reported([part])

    def end_one_of(self, share: Share) -> list[Request]:
        part = next(
            part
            for part in self.parts
            if part.request in share.requests and part.request.num_running(part.completions)
        )
        return self.report(part, ended=True)


def core_output(index: int, reason: str | None) -> Any:
    part = SimpleNamespace(
        index=index,
        new_token_ids=[7],
        finish_reason=reason,
        stop_token_id=None,
        acceptance=None,
        tapped_states=None,
    )
    return SimpleNamespace(error="", metrics=None, new_prompt_logprobs=[], outputs=[part])


def request(n: int, num_tokens: int = 1, **options: Any) -> Request:
    return Request(
        "x",
        prompt=None,
        prompt_token_ids=[5] * num_tokens,
        params=SamplingParams(n=n, **options),
        prepared=None,  # type: ignore[arg-type]
        tokenizer=None,
    )


# -- the queue


def test_a_few_completions_run_as_one_part() -> None:
    seats = Seats()
    one = request(6)
    seats.enter(one)
    [part] = seats.parts
    assert part.completions == range(6)


@pytest.mark.parametrize("make", [lambda: [request(50)], lambda: [request(1) for _ in range(50)]])
def test_who_comes_later_does_not_wait(make: Any) -> None:
    seats = Seats()
    greedy = seats.enter(*make())
    assert seats.running_of(greedy) == 6
    polite = seats.enter(request(1))
    assert seats.running_of(polite) == 1
    for _ in range(10):
        seats.end_one_of(greedy)
    assert seats.running_of(greedy) == 5  # with the other one six
    seats.end_one_of(polite)
    assert seats.running_of(greedy) == 6


def test_callers_with_many_completions_share_the_seats() -> None:
    seats = Seats()
    shares = [seats.enter(request(50)), seats.enter(*[request(2) for _ in range(25)])]
    assert [seats.running_of(share) for share in shares] == [6, 1]
    for _ in range(4):
        seats.end_one_of(shares[0])
    assert [seats.running_of(share) for share in shares] == [3, 3]
    shares.append(seats.enter(request(9)))
    for share in (*shares[:2], *shares[:2]):
        seats.end_one_of(share)
    assert [seats.running_of(share) for share in shares] == [2, 2, 2]


def test_a_lower_priority_goes_first() -> None:
    seats = Seats()
    late, early = request(50), request(50)
    late.priority, early.priority = 5, -1
    shares = [seats.enter(late), seats.enter(early)]
    for _ in range(5):
        seats.end_one_of(shares[0])
    assert [seats.running_of(share) for share in shares] == [1, 5]


def test_prompts_come_a_step_at_a_time() -> None:
    """So that a short prompt is never behind thousands of tokens of one caller."""
    seats = Seats()
    greedy = seats.enter(*[request(1, num_tokens=60) for _ in range(20)])
    assert seats.running_of(greedy) == 2
    seats.report(seats.parts[0], ended=False)
    assert seats.running_of(greedy) == 3
    seats.report(seats.parts[0], ended=False)  # tells nothing of another prompt
    assert seats.running_of(greedy) == 3
    huge = seats.enter(*[request(1, num_tokens=5000) for _ in range(2)])
    assert seats.running_of(huge) == 1


def test_what_waits_is_counted() -> None:
    seats = Seats()
    share = seats.enter(
        request(4, num_tokens=3), request(4, num_tokens=5), request(2, num_tokens=7)
    )
    assert seats.queue.load() == (1, 7, 4)  # two of the second's, and all of the third's
    seats.queue.leave(share)
    assert seats.queue.load() == (0, 0, 0)


def test_nothing_more_starts_of_who_has_left() -> None:
    seats = Seats()
    begun, unbegun = request(20), request(3)
    share = seats.enter(begun, unbegun)
    assert seats.queue.leave(share) == [unbegun]
    outputs = unbegun.take_output().outputs
    assert [output.finish_reason for output in outputs] == ["abort"] * 3
    while not begun.finished:
        seats.end_one_of(share)
    reasons = [output.finish_reason for output in begun.peek()[0].outputs]
    assert reasons == ["length"] * 6 + ["abort"] * 14
    assert len(seats.parts) == 1


def test_who_is_forgotten_is_skipped() -> None:
    seats = Seats()
    forgotten, other = seats.enter(request(50)), seats.enter(request(50))
    parts = list(seats.parts)
    del forgotten
    gc.collect()
    for _ in range(5):
        seats.report(parts[0], ended=True)
    assert seats.running_of(other) == 5


def test_a_request_that_cannot_start_ends_with_the_error() -> None:
    seats = Seats()
    share = seats.enter(request(6), request(1), request(1))
    seats.is_closed = True
    failed = seats.end_one_of(share)
    assert failed == list(share.requests[1:])
    assert all(isinstance(each.error, RuntimeError) and each.finished for each in failed)
    with pytest.raises(RuntimeError, match="closed"):
        seats.enter(request(1))
    assert seats.queue.load() == (0, 0, 0)


def test_every_completion_runs_once() -> None:
    rng = random.Random(4)
    for _ in range(40):
        seats = Seats()
        requests: list[Request] = []
        shares = []
        while len(requests) < 30 or any(not each.finished for each in requests):
            if len(requests) < 30 and rng.random() < 0.3:
                new = [request(rng.randrange(1, 12), rng.randrange(1, 90)) for _ in range(5)]
                requests += new
                shares.append(seats.enter(*new))  # which keeps it
            running = [p for p in seats.parts if p.request.num_running(p.completions)]
            if running:
                seats.report(rng.choice(running), ended=rng.random() < 0.5)
        for each in requests:
            parts = [part for part in seats.parts if part.request is each]
            given = [i for part in parts for i in part.completions]
            assert given == list(range(each.params.n))
        assert (seats.queue._num_running, seats.queue._num_tokens) == (0, 0)


# -- before an engine


@pytest.fixture(scope="module")
def small(model: Path) -> Iterator[Engine]:
    with Engine(model, **OPTIONS, max_num_seqs=4) as engine:
        yield engine


async def read(group: RequestGroup) -> list[list[RequestOutput]]:
    outputs: list[list[RequestOutput]] = [[] for _ in group.requests]
    async for step in group:
        for index, output in step:
            outputs[index].append(output)
    return outputs


@pytest.mark.parametrize("caching", [True, False])
def test_answers_do_not_depend_on_the_parts(model: Path, caching: bool) -> None:
    params = text_params(n=9, temperature=1, logprobs=1, prompt_logprobs=1, max_tokens=6)
    with Engine(model, **OPTIONS, max_num_seqs=4, enable_prefix_caching=caching) as engine:
        expected = engine.generate(["abc", "the sea"], params, use_tqdm=False)

        async def run(kind: RequestOutputKind) -> list[list[RequestOutput]]:
            prompts = parse_prompts(["abc", "the sea"])
            return await read(engine.start(engine.prepare(prompts, params, kind=kind)))

        whole = asyncio.run(run(RequestOutputKind.FINAL_ONLY))
        assert [[o.outputs for o in outputs] for outputs in whole] == [
            [o.outputs] for o in expected
        ]
        assert [o.prompt_logprobs for [o] in whole] == [o.prompt_logprobs for o in expected]
        for outputs, answer in zip(
            asyncio.run(run(RequestOutputKind.DELTA)), expected, strict=True
        ):
            texts = [""] * 9
            for output in outputs:
                for part in output.outputs:
                    texts[part.index] += part.text
            assert texts == [part.text for part in answer.outputs]
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert is_idle(engine)


def test_requests_without_a_seed_are_not_alike(small: Engine) -> None:
    async def run() -> list[list[RequestOutput]]:
        params = text_params(n=9, seed=None, temperature=1)
        return await read(small.start(small.prepare(parse_prompts("abc"), params)))

    [outputs] = asyncio.run(run())
    assert len({part.text for part in outputs[-1].outputs}) == 9


@pytest.mark.parametrize("forgets", [False, True])
def test_a_group_that_is_left_leaves_nothing(small: Engine, forgets: bool) -> None:
    async def run() -> None:
        params = text_params(n=30, temperature=1, max_tokens=60)
        group = small.start(small.prepare(parse_prompts(["abc", "de"]), params))
        await anext(group)
        if not forgets:
            group.abort()
            assert all(part.finish_reason for part in (await read(group))[0][-1].outputs)

    asyncio.run(run())
    gc.collect()
    wait_until(lambda: is_idle(small) and not small._runner._running)


def test_an_engine_that_is_closed_ends_what_waits(model: Path) -> None:
    async def run() -> None:
        engine = Engine(model, **OPTIONS, max_num_seqs=4)
        params = text_params(n=30, temperature=1, max_tokens=60)
        group = engine.start(engine.prepare(parse_prompts(["abc", "de"]), params))
        await anext(group)
        engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            await read(group)
        assert all(request.finished for request in group.requests)

    asyncio.run(run())
