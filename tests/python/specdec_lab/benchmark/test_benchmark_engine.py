"""`bench` in process: the engine as a client, batches and all prompts at once."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from metrics_page import ONE_LETTER, SPECULATIVE
from specdec_lab.benchmark.answers import Acceptance, Answer, Question
from specdec_lab.benchmark.batches import measure_latency, measure_throughput
from specdec_lab.benchmark.in_process import EngineClient, chat_tokens
from specdec_lab.benchmark.load_run import Load, Result, run_rounds
from specdec_native import Engine, SamplingParams
from tiny_text_model import OPTIONS


@pytest.fixture(scope="module")
def drafting(model: Path) -> Engine:
    return Engine(model, **OPTIONS, speculative_config=SPECULATIVE)


def run(client: EngineClient, questions: list[Question], load: Load | None = None) -> Result:
    (result,) = asyncio.run(run_rounds([client], [questions], load or Load()))
    return result


def ask(client: EngineClient, question: Question) -> Answer:
    return asyncio.run(client.ask(question))


def test_answers_are_those_of_generate(engine: Engine) -> None:
    prompts = ["abc", "xyzxyz", "hello"]
    questions = [Question("x", text, 8 + i) for i, text in enumerate(prompts)]
    client = EngineClient(engine, "tiny", ignore_eos=True)
    result = run(client, questions, Load(max_concurrency=2))
    for question, answer in zip(questions, result.answers, strict=True):
        params = SamplingParams(temperature=0, max_tokens=question.max_tokens, ignore_eos=True)
        expected = engine.generate([str(question.prompt)], params, use_tqdm=False)[0]
        assert answer.error is None and answer.text == expected.outputs[0].text
        assert answer.num_output_tokens == question.max_tokens
        assert answer.num_prompt_tokens == len(str(question.prompt))
        assert 1 <= len(answer.arrivals) <= question.max_tokens
        assert answer.sent <= answer.arrivals[0] and answer.arrivals == sorted(answer.arrivals)
    assert result.acceptance is None and result.answers[0].acceptance is None


def test_chats_are_put_into_the_template(engine: Engine) -> None:
    client = EngineClient(engine, "tiny", is_chat=True)
    answer = ask(client, Question("x", "hi", 6))
    params = SamplingParams(temperature=0, max_tokens=6)
    messages = [{"role": "user", "content": "hi"}]
    expected = engine.chat([messages], params, use_tqdm=False)[0]
    assert answer.text == expected.outputs[0].text
    assert answer.question.prompt == "hi"
    assert chat_tokens(engine, Question("x", "hi", 6)).prompt == expected.prompt_token_ids
    tokens = Question("x", [5, 6], 6)
    assert chat_tokens(engine, tokens) is tokens


def test_sampling_is_seeded(engine: Engine) -> None:
    client = EngineClient(engine, "tiny", temperature=1.0, ignore_eos=True)
    texts = [ask(client, Question("x", "abc", 20, seed)).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_acceptance_of_answers_adds_up_to_the_engines(drafting: Engine) -> None:
    client = EngineClient(drafting, "tiny", ignore_eos=True)
    result = run(client, [Question("x", "abab" * 4, 30), Question("y", "cdcdcd", 30)])
    found = [answer.acceptance for answer in result.answers]
    assert all(counts is not None for counts in found)
    total = sum((counts for counts in found if counts is not None), Acceptance())
    assert total == result.acceptance
    assert total.num_drafts > 0 and total.num_draft_tokens >= total.num_accepted_tokens


def test_what_the_engine_refuses_is_an_error(engine: Engine) -> None:
    client = EngineClient(engine, "tiny")
    answer = ask(client, Question("x", "a" * 500, 4))
    assert answer.error is not None and "500" in answer.error and answer.status is None
    assert asyncio.run(client.count_tokens("abc")) == 3


def test_latencies_are_those_of_the_clock(engine: Engine) -> None:
    """Two warm-ups and three batches, between whose readings 1, 2, ... 5 seconds pass."""
    seconds = [1.0, 2.0, 3.0, 4.0, 5.0]
    readings = itertools.accumulate(x for s in seconds for x in (100.0, s))
    told = []
    report = measure_latency(
        engine,
        input_len=6,
        output_len=5,
        batch_size=3,
        num_warmups=2,
        num_iters=3,
        on_iteration=lambda done, last: told.append((done, last)),
        clock=lambda: next(readings),
    )
    assert told == list(enumerate(seconds, 1))
    assert report.latencies == [3.0, 4.0, 5.0] and report.mean == 4.0
    assert report.num_output_tokens == 15 and report.tokens_per_s == 15 / 4
    fields = report.to_json()
    assert fields["percentiles"][50] == 4.0 and fields["percentiles"][75] == 4.5
    assert fields["std_latency"] == pytest.approx((2 / 3) ** 0.5)
    assert "spec_decode_num_drafts" not in fields


def test_throughput_is_of_all_prompts(drafting: Engine) -> None:
    questions = [
        Question("letters", "abcabcabc", 12),
        Question("tokens", ONE_LETTER * 9, 20),
        Question("letters", "xyxyxy", 12),
    ]
    before = drafting.stats().num_finished_requests
    readings = iter([10.0, 14.0])
    report = measure_throughput(drafting, questions, clock=lambda: next(readings))
    assert drafting.stats().num_finished_requests == before + 4  # the first warms up
    assert report.seconds == 4.0 and report.num_requests == 3
    assert (report.num_prompt_tokens, report.num_output_tokens) == (9 + 9 + 6, 44)
    assert set(report.categories) == {"letters", "tokens"}
    assert sum(report.categories.values(), Acceptance()) == report.acceptance
    fields = report.to_json()
    assert fields["tokens_per_second"] == (24 + 44) / 4
    assert fields["output_tokens_per_second"] == 11.0
    assert fields["requests_per_second"] == 0.75


def test_answers_may_end_early(engine: Engine) -> None:
    """Where the end of sequence counts, an answer is at most as long as without."""
    questions = [Question("x", text, 60) for text in "abcdefgh"]
    full = measure_throughput(engine, questions)
    ended = measure_throughput(engine, questions, ignore_eos=False)
    assert full.num_output_tokens == 60 * 8
    assert ended.num_output_tokens <= full.num_output_tokens
