"""Who runs first, how busy an engine is, and what its steps held."""

import asyncio
import copy
import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specdec_native import LLM, AsyncLLM, Engine, LLMEngine, RequestOutput
from specdec_native.requests.outputs import (
    AcceptanceCounts,
    DraftPolicyStats,
    EngineLoad,
    EngineStats,
    SpeculativeDecodingMetrics,
    StepTokens,
)
from tiny_text_model import OPTIONS, PARAMS, text_params, texts

NGRAM: dict[str, Any] = {
    "method": "ngram",
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
    "num_speculative_tokens": 3,
    "draft_length_policy": "fixed",
}
LONG: dict[str, Any] = {"max_tokens": 60, "temperature": 0.5}


@pytest.fixture(scope="module")
def by_priority(model: Path) -> Iterator[Engine]:
    """One request after the other, by priority."""
    options = {**OPTIONS, "scheduling_policy": "priority", "max_num_seqs": 1}
    with Engine(model, **options) as engine:
        yield engine


def order_of_ends(engine: Any) -> list[str]:
    ends = []
    while engine.has_unfinished_requests():
        ends += [output.request_id for output in engine.step() if output.finished]
    return ends


# -- priority


def test_lower_priorities_run_first_and_equal_ones_in_order(by_priority: Engine) -> None:
    for name, priority in (("a", 0), ("b", 7), ("c", -1), ("d", 0), ("e", 7)):
        by_priority.add_request("abc", PARAMS, name, priority=priority)
    assert order_of_ends(by_priority) == ["c", "a", "d", "b", "e"]


def test_priorities_of_a_batch_change_its_order_and_no_answer(
    by_priority: Engine, engine: Engine
) -> None:
    prompts = ["abc", "xyz", "123", "qrs"]
    outputs = by_priority.generate(prompts, PARAMS, priority=[3, 1, 2**63 - 1, -(2**63)])
    starts = [output.metrics.first_scheduled_time for output in outputs if output.metrics]
    assert sorted(range(4), key=lambda i: starts[i]) == [3, 1, 0, 2]
    assert outputs[0].outputs == engine.generate("abc", PARAMS)[0].outputs
    assert texts(outputs) == texts(engine.generate(prompts, PARAMS))
    conversation: Any = [{"role": "user", "content": "hi"}]
    assert len(by_priority.chat([conversation] * 2, PARAMS, priority=(2, 1))) == 2


def test_a_priority_needs_its_policy(engine: Engine) -> None:
    calls = (
        lambda: engine.generate("abc", PARAMS, priority=1),
        lambda: engine.generate(["abc"] * 2, PARAMS, priority=[0, -1]),
        lambda: engine.stream("abc", PARAMS, priority=1),
        lambda: engine.add_request("abc", PARAMS, priority=1),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r'^priority.*scheduling_policy="priority"'):
            call()
    assert not engine.has_unfinished_requests()
    assert len(engine.generate(["abc"] * 2, PARAMS, priority=[0, 0])) == 2


@pytest.mark.parametrize("bad", ["ab", 1.5, True, 2**63, -(2**63) - 1, [1.5], [1, 2]])
def test_a_bad_priority_is_refused(by_priority: Engine, bad: Any) -> None:
    with pytest.raises(ValueError, match="priority"):
        by_priority.generate("abc", PARAMS, priority=bad)


def test_vllms_classes_take_priorities(model: Path) -> None:
    options: dict[str, Any] = {**OPTIONS, "scheduling_policy": "priority", "max_num_seqs": 1}
    llm = LLM(model, **options)
    assert llm.llm_engine.vllm_config.scheduler_config.policy == "priority"
    expected = texts(llm.generate(["abc", "xyz"], PARAMS, priority=[2, 1]))
    engine = LLMEngine(llm.engine)
    engine.add_request("0", "abc", PARAMS, priority=1)
    engine.add_request("1", "xyz", PARAMS, None, None, None, None, -1)
    assert order_of_ends(engine) == ["1", "0"]

    async def ask() -> list[RequestOutput]:
        given = AsyncLLM(llm.engine)
        first = [output async for output in given.generate("abc", PARAMS, "a", priority=5)]
        second = [output async for output in llm.stream("xyz", PARAMS, priority=-5)]
        return [first[-1], second[-1]]

    assert texts(asyncio.run(ask())) == expected


# -- load and steps


def test_load_counts_what_runs_and_what_waits(by_priority: Engine) -> None:
    idle = by_priority.load()
    assert (idle.num_running, idle.num_waiting, idle.num_waiting_tokens) == (0, 0, 0)
    by_priority.reset_prefix_cache()
    assert by_priority.load().num_free_kv_blocks == idle.num_kv_blocks > 0
    by_priority.add_request([5] * 20, PARAMS, "a")
    by_priority.add_request([5] * 30, text_params(n=1), "b")
    waiting = by_priority.load()
    assert (waiting.num_running, waiting.num_waiting, waiting.num_waiting_tokens) == (0, 2, 50)
    by_priority.step()
    load = by_priority.load()
    assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (1, 1, 30)
    assert load.num_free_kv_blocks == load.num_kv_blocks - 2
    by_priority.abort("a")
    by_priority.abort("b")
    load = by_priority.load()
    assert (load.num_running, load.num_waiting, load.num_waiting_tokens) == (0, 0, 0)
    assert load.num_free_kv_blocks == load.num_kv_blocks


def test_steps_are_counted_by_their_tokens(model: Path) -> None:
    with Engine(model, **OPTIONS) as engine:
        assert engine.stats().step_tokens.sum == 0
        engine.generate([[5] * 20], text_params(max_tokens=5))  # 20 tokens, then 4 times one
        tokens = engine.stats().step_tokens
    bounds = [1, *(2**i for i in range(3, 15))]
    assert tokens == StepTokens(bounds, [4, 0, 0, 1, *[0] * 10], 24)


def test_the_core_counts_what_statistics_show_and_nothing_else(model: Path) -> None:
    with Engine(model, **OPTIONS) as engine:
        counted, load = engine._runner.core.stats(), engine._runner.core.load()
    shown = {field.name for field in dataclasses.fields(EngineStats)}
    assert counted.keys() - {"acceptance"} == shown - {"speculative_decoding"}
    for part, kind in (("step_tokens", StepTokens), ("draft_policy", DraftPolicyStats)):
        assert counted[part].keys() == {field.name for field in dataclasses.fields(kind)}
    assert load.keys() == {field.name for field in dataclasses.fields(EngineLoad)}


# -- steps of a request


def metrics_of(output: RequestOutput) -> SpeculativeDecodingMetrics:
    assert output.metrics is not None
    metrics = output.metrics.speculative_decoding
    assert metrics is not None
    return metrics


def acceptance_of(outputs: list[RequestOutput]) -> SpeculativeDecodingMetrics:
    counts = [output.metrics.acceptance for output in outputs if output.metrics is not None]
    return AcceptanceCounts.merged([each for each in counts if each is not None]).metrics


def check_steps(metrics: SpeculativeDecodingMetrics) -> None:
    """The steps add up to what is counted anyway."""
    accepted, drafted = metrics.per_step_accepted, metrics.per_step_drafted
    assert accepted is not None and drafted is not None
    assert len(accepted) == len(drafted) == metrics.num_spec_steps > 0
    assert sum(accepted) == metrics.num_accepted_draft_tokens
    assert sum(drafted) == metrics.num_draft_tokens
    histogram = [accepted.count(n) for n in range(metrics.num_spec_tokens + 1)]
    assert histogram == metrics.acceptance_histogram


def test_steps_are_recorded_where_a_request_asks(model: Path) -> None:
    prompts = [[7, 8, 9] * 10, [5, 6] * 9]
    with Engine(model, **OPTIONS, speculative_config=NGRAM) as engine:
        plain = engine.generate(prompts, text_params(n=2, **LONG))
        asked = text_params(n=2, record_draft_steps=True, **LONG)
        outputs = engine.generate(prompts, asked)
        assert [o.outputs for o in outputs] == [o.outputs for o in plain]
        for output in outputs:
            metrics = metrics_of(output)
            check_steps(metrics)
            parts = [part.speculative_decoding for part in output.outputs]
            joined: list[int] = []
            for part in parts:
                assert part is not None and part.per_step_accepted is not None
                check_steps(part)
                joined += part.per_step_accepted
            assert joined == metrics.per_step_accepted
            assert metrics_of(copy.deepcopy(output)) == metrics
            assert metrics_of(pickle.loads(pickle.dumps(output))) == metrics
        assert acceptance_of([pickle.loads(pickle.dumps(output)) for output in outputs]) == (
            acceptance_of(outputs)
        )
        for output in plain:
            assert metrics_of(output).per_step_accepted is None
            assert metrics_of(output).per_step_drafted is None

        text = outputs[1].outputs[0].text
        asked = text_params(stop=text[50:56], record_draft_steps=True, **LONG)
        stopped = engine.generate(prompts[1], asked)
        assert stopped[0].outputs[0].finish_reason == "stop"
        check_steps(metrics_of(stopped[0]))
        streamed = list(engine.stream(prompts[1], text_params(record_draft_steps=True, **LONG)))
        assert all(metrics_of(output).per_step_accepted is None for output in streamed[:-1])
        check_steps(metrics_of(streamed[-1]))


def test_without_drafts_there_are_no_steps(engine: Engine) -> None:
    output = engine.generate("abc", text_params(record_draft_steps=True))[0]
    assert output.metrics is not None and output.metrics.speculative_decoding is None
