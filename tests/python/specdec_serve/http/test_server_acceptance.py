"""Answers' members about drafts and times."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server_world import World, serving
from specdec_native import Engine, SamplingParams
from specdec_native.requests.outputs import SpeculativeDecodingMetrics
from tiny_text_model import OPTIONS, only

PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"
PROMPTS = ["abcabcabcabcabc", "to be or not to be"]
SAMPLING: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "seed": 3, "top_k": 2}
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
    "draft_length_policy": "fixed",
}
MEMBERS = [
    *("mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram"),
    *("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens"),
]


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return Engine(model, **OPTIONS, speculative_config=NGRAM)


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    with serving(engine, acceptance_metrics="summary") as world:
        yield world


def offline(engine: Engine, prompts: list[str], n: int) -> list[SpeculativeDecodingMetrics]:
    """The metrics of every completion."""
    outputs = engine.generate(prompts, SamplingParams(**SAMPLING, n=n), use_tqdm=False)
    metrics = [part.speculative_decoding for output in outputs for part in output.outputs]
    return [each for each in metrics if each is not None]


def told(world: World, *, streamed: bool, path: str = PATH, **body: Any) -> dict[str, Any] | None:
    """An answer's figures about its drafts."""
    body = {**SAMPLING, **body}
    if streamed:
        events = world.events(path, **body, stream_options={"include_usage": True})
        assert not any("metrics" in event for event in events[:-1])
        answer = events[-1]
    else:
        answer = world.ask(path, **body)
    metrics: dict[str, Any] | None = answer.get("metrics", {}).get("speculative_decoding")
    return metrics


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("prompts", "n"), [(PROMPTS[:1], 1), (PROMPTS[:1], 3), (PROMPTS, 2)])
def test_the_drafts_of_all_completions_are_counted(
    world: World, engine: Engine, prompts: list[str], n: int, streamed: bool
) -> None:
    each = offline(engine, prompts, n)
    assert len(each) == len(prompts) * n
    steps = sum(metrics.num_spec_steps for metrics in each)
    accepted = sum(metrics.num_accepted_draft_tokens for metrics in each)
    drafted = sum(metrics.num_draft_tokens for metrics in each)
    assert 0 < accepted < drafted
    histograms = zip(*(metrics.acceptance_histogram for metrics in each), strict=True)
    assert told(world, prompt=prompts, n=n, streamed=streamed) == {
        "mean_acceptance_length": pytest.approx(1 + accepted / steps),
        "draft_acceptance_rate": pytest.approx(accepted / drafted),
        "acceptance_histogram": [sum(counts) for counts in histograms],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": 4,
    }


@pytest.mark.parametrize("streamed", [False, True])
def test_the_drafts_of_a_chat_are_counted(world: World, engine: Engine, streamed: bool) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPTS[0]}]
    params = SamplingParams(**SAMPLING)
    expected = only(engine.chat(messages, params, use_tqdm=False)).speculative_decoding
    assert expected is not None and expected.num_accepted_draft_tokens > 0
    metrics = told(world, streamed=streamed, path=CHAT_PATH, messages=messages)
    assert metrics == {name: getattr(expected, name) for name in MEMBERS}


def test_a_request_controls_its_drafts(world: World) -> None:
    answers = [
        world.ask(PATH, prompt=PROMPTS[0], num_speculative_tokens=tokens, **SAMPLING)
        for tokens in (0, 1, 4, None)
    ]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    metrics = [answer["metrics"]["speculative_decoding"] for answer in answers]
    assert [each["num_spec_tokens"] for each in metrics] == [0, 1, 4, 4]
    assert metrics[0]["num_draft_tokens"] == 0 < metrics[1]["num_draft_tokens"]
    assert metrics[1]["num_draft_tokens"] < metrics[2]["num_draft_tokens"]
    assert metrics[2] == metrics[3]
    error = world.error(PATH, prompt="abc", num_speculative_tokens=5)
    assert error["param"] == "num_speculative_tokens" and "(4)" in error["message"]


@pytest.mark.parametrize("streamed", [False, True])
def test_steps_in_detail(engine: Engine, streamed: bool) -> None:
    with serving(engine, acceptance_metrics="detailed") as world:
        detailed = told(world, prompt=PROMPTS, n=2, streamed=streamed)
    assert detailed is not None
    assert sorted(detailed) == sorted([*MEMBERS, "per_step_accepted", "per_step_drafted"])
    accepted, drafted = detailed["per_step_accepted"], detailed["per_step_drafted"]
    assert len(accepted) == len(drafted) == detailed["num_spec_steps"]
    assert sum(accepted) == detailed["num_accepted_draft_tokens"]
    assert sum(drafted) == detailed["num_draft_tokens"]
    counts = [accepted.count(length) for length in range(5)]
    assert counts == detailed["acceptance_histogram"]


def test_nothing_is_said_unasked(engine: Engine, model: Path) -> None:
    with serving(engine) as world:
        assert "metrics" not in world.ask(PATH, prompt="abc", **SAMPLING)
    plain = Engine(model, **OPTIONS)
    with serving(plain, acceptance_metrics="detailed") as world:
        assert told(world, prompt="abc", streamed=False) is None
        assert told(world, prompt="abc", streamed=True) is None


def test_the_members_are_vllms() -> None:
    ours = [field.name for field in dataclasses.fields(SpeculativeDecodingMetrics)]
    assert ours[: len(MEMBERS)] == MEMBERS
    assert ours[-2:] == ["per_step_accepted", "per_step_drafted"]


@pytest.mark.parametrize("streamed", [False, True])
def test_times(engine: Engine, streamed: bool) -> None:
    with serving(engine, request_metrics=True, acceptance_metrics="summary") as world:
        body = {**SAMPLING, "prompt": PROMPTS}
        if streamed:
            answer = world.events(PATH, **body, stream_options={"include_usage": True})[-1]
        else:
            answer = world.ask(PATH, **body)
        one = world.ask(PATH, prompt="abc", max_tokens=1)["metrics"]
    times = answer["metrics"]
    assert times.pop("speculative_decoding")["num_draft_tokens"] > 0
    assert sorted(times) == [
        *("generation_time_ms", "mean_itl_ms", "queue_time_ms"),
        *("time_to_first_token_ms", "tokens_per_second"),
    ]
    assert all(value >= 0 for value in times.values())
    # The longest completion has 40 tokens, both together 80.
    assert times["mean_itl_ms"] * 39 == pytest.approx(times["generation_time_ms"])
    seconds = (times["time_to_first_token_ms"] + times["generation_time_ms"]) / 1000
    assert times["tokens_per_second"] * seconds == pytest.approx(80)
    assert one["mean_itl_ms"] is None


def test_times_of_a_chat(engine: Engine) -> None:
    with serving(engine, request_metrics=True) as world:
        body = {**SAMPLING, "messages": [{"role": "user", "content": "hello"}]}
        whole = world.ask(CHAT_PATH, **body)
        *chunks, last = world.events(CHAT_PATH, **body, stream_options={"include_usage": True})
    assert not any("metrics" in chunk for chunk in chunks)
    for times in (whole["metrics"], last["metrics"]):
        assert times["mean_itl_ms"] * 39 == pytest.approx(times["generation_time_ms"])
        assert min(times.values()) >= 0
