"""Functions of users that change logits, against transformers and float64, under the laws."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from logprobs import random_tokens
from make_checkpoints import VOCAB_SIZE
from specdec_native import LLM, RequestOutput, SamplingParams
from test_logits import (
    DEVICES,
    SHAPED,
    TOLERANCE,
    make_engine,
    processed,
    reference_logits,
    reported,
)
from test_speculation_law import Setting, check, metrics_of, speculative

Checkpoint = Callable[[str], Path]
Logits = npt.NDArray[np.float32]
PROMPT = random_tokens(20, seed=1)


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def lift_by_prompt(prompt: list[int], output: list[int], logits: Logits) -> Logits:
    """Depends on every token of the path; changes the array it is given."""
    logits[(sum(prompt) + 7 * sum(output) + 31 * len(output)) % VOCAB_SIZE] += 2.5
    return logits


def flatten(output: list[int], logits: Logits) -> Logits:
    """A new array; forbids the tokens that are there already."""
    changed = logits * np.float32(0.75)
    changed[output] = -np.inf
    return changed


def expected_row(
    raw: npt.NDArray[np.float64], output: list[int], params: SamplingParams
) -> npt.NDArray[np.float64]:
    """Bias, then the two functions, then penalties, temperature and top_k, in float64."""
    row = raw.copy()
    for token, bias in (params.logit_bias or {}).items():
        row[token] += bias
    row[(sum(PROMPT) + 7 * sum(output) + 31 * len(output)) % VOCAB_SIZE] += 2.5
    row *= 0.75
    row[output] = -np.inf
    after = params.clone()
    after.logit_bias = None
    return processed(row, PROMPT, output, after)


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits"])
def test_they_run_between_the_bias_and_the_penalties(
    checkpoint: Checkpoint, device: str, mode: str
) -> None:
    model = checkpoint("llama")
    params = SHAPED.clone()
    params.logits_processors = [lift_by_prompt, flatten]
    with make_engine(model, device, logprobs_mode=mode) as engine:
        completion = engine.generate([PROMPT], params)[0].outputs[0]
        assert engine.stats().num_device_steps == 0
    tokens = list(completion.token_ids)
    raw = reference_logits(model, PROMPT + tokens)[len(PROMPT) - 1 : -1]
    found = reported(completion)
    if mode == "raw_logits":
        np.testing.assert_allclose(found, raw, atol=TOLERANCE[device])
        for i, token in enumerate(tokens):
            assert expected_row(found[i], tokens[:i], params)[token] > -np.inf
        return
    for i in range(len(tokens)):
        expected = expected_row(raw[i], tokens[:i], params)
        # The device's rounding may move a token across top_k's edge.
        both = np.isfinite(expected) & np.isfinite(found[i])
        assert both.sum() >= (9 if device == "cpu" else 7)
        np.testing.assert_allclose(found[i][both], expected[both], atol=2 * TOLERANCE[device])


def test_greedy_tokens_are_the_likeliest_of_what_they_leave(
    checkpoint: Checkpoint, device: str
) -> None:
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=-1)
    params.logits_processors = [lift_by_prompt, flatten]
    with make_engine(checkpoint("llama"), device, logprobs_mode="raw_logits") as engine:
        completion = engine.generate([PROMPT], params)[0].outputs[0]
        plain = engine.generate([PROMPT], SamplingParams(temperature=0, max_tokens=10))[0]
    tokens = list(completion.token_ids)
    assert tokens != list(plain.outputs[0].token_ids)
    params.temperature = 1
    for i, row in enumerate(reported(completion)):
        assert tokens[i] == expected_row(row, tokens[:i], params).argmax()


def test_what_they_are_given(checkpoint: Checkpoint) -> None:
    """The path so far, logits with masks and bias, an array of their own, the stepping thread."""
    model = checkpoint("llama")
    calls: list[tuple[list[int], list[int], Logits, int]] = []

    def record(prompt: list[int], output: list[int], logits: Logits) -> Any:
        calls.append((prompt, output, logits, threading.get_ident()))
        return torch.from_numpy(logits.copy())

    params = SamplingParams(
        temperature=0,
        max_tokens=5,
        min_tokens=5,
        stop_token_ids=[9],
        logit_bias={7: 3.0},
        repetition_penalty=1.5,
        logits_processors=[record],
    )
    with make_engine(model, "cpu") as engine:
        tokens = list(engine.generate([PROMPT], params)[0].outputs[0].token_ids)
    assert len(calls) == 5 and calls[0][3] != threading.get_ident()
    expected = reference_logits(model, PROMPT + tokens)
    for i, (prompt, output, logits, thread) in enumerate(calls):
        assert (prompt, output, thread) == (PROMPT, tokens[:i], calls[0][3])
        assert logits.dtype == np.float32 and logits.flags.writeable
        row = expected[len(PROMPT) - 1 + i].copy()
        row[7] += 3.0
        row[9] = row[2] = -np.inf  # 2 ends a sequence
        np.testing.assert_allclose(logits, row, atol=2e-4)


# -- laws


class Processed(Setting):
    """Requests with functions, beside some without."""

    def params(self, sampling: str) -> list[SamplingParams]:
        params = super().params(sampling)
        for i, entry in enumerate(params):
            if i % 3 != 2:
                functions: list[Callable[..., Any]] = [lift_by_prompt, flatten]
                entry.logits_processors = functions[: 1 + i % 3]
        return params


def make_setting(checkpoint: Checkpoint, device: str, **options: Any) -> Processed:
    return Processed(
        checkpoint("llama"),
        VOCAB_SIZE,
        "float32" if device == "cpu" else "bfloat16",
        12,
        num_requests=6,
        device=device,
        **{"num_kv_blocks": 64, "max_num_batched_tokens": 128, **options},
    )


@pytest.mark.parametrize("sampling", ["greedy", "everything"])
@pytest.mark.parametrize(
    ("method", "tokens", "width"),
    [("ngram", 3, 1), ("draft_model", 4, 2), ("merged", 4, 3), ("custom", 5, 3)],
)
def test_answers_are_those_without_speculation(
    checkpoint: Checkpoint, method: str, tokens: int, width: int, sampling: str
) -> None:
    check_law(make_setting(checkpoint, "cpu"), method, tokens, width, sampling)


def test_answers_on_a_device_are_those_without_speculation(
    checkpoint: Checkpoint, device: str
) -> None:
    check_law(make_setting(checkpoint, device), "draft_model", 4, 2, "everything")


def check_law(setting: Processed, method: str, tokens: int, width: int, sampling: str) -> None:
    with check(setting, sampling, speculative(method, setting.model, tokens, width)) as engine:
        metrics = metrics_of(engine)
    assert metrics.num_draft_tokens > 0
    if method == "draft_model":  # the draft's rows are processed, too
        assert metrics.draft_acceptance_rate > 0.3


@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
@pytest.mark.parametrize(
    "batch",
    [{"max_num_seqs": 1}, {"num_kv_blocks": 14, "max_num_batched_tokens": 20}],
    ids=["alone", "preempted"],
)
def test_answers_do_not_depend_on_batch_or_preemption(
    checkpoint: Checkpoint, mode: str, batch: dict[str, Any]
) -> None:
    setting = make_setting(checkpoint, "cpu", logprobs_mode=mode)
    check(setting, "t1", speculative("suffix", setting.model, 4, 2), **batch).close()


@pytest.mark.parametrize("method", ["standard", "block"])
def test_weighed_drafts_follow_them(checkpoint: Checkpoint, device: str, method: str) -> None:
    """Only tokens of the output's own residue may come, and each has its processed logprob."""

    def residue(output: list[int], logits: Logits) -> Logits:
        allowed = np.arange(VOCAB_SIZE) % 5 == len(output) % 5
        return np.where(allowed, logits, -np.inf).astype(np.float32)

    model = checkpoint("llama")
    config = speculative("draft_model", model, 3, 1)
    config |= {"rejection_sample_method": method, "draft_sample_method": "probabilistic"}
    params = [
        SamplingParams(
            seed=i, max_tokens=12, ignore_eos=True, logits_processors=[residue], logprobs=0
        )
        for i in range(4)
    ]
    with make_engine(
        model, device, speculative_config=config, logprobs_mode="processed_logprobs"
    ) as engine:
        outputs = engine.generate([PROMPT] * 4, params)
        assert metrics_of(engine).num_accepted_draft_tokens > 0
    for output in outputs:
        completion = output.outputs[0]
        assert [token % 5 for token in completion.token_ids] == [i % 5 for i in range(12)]
        assert completion.logprobs is not None
        assert all(
            np.isfinite(position[token].logprob)
            for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
        )


# -- errors


def broken(how: str) -> Callable[[list[int], Logits], Any]:
    """Fails at the fourth token."""

    def fail(output: list[int], logits: Logits) -> Any:
        if len(output) < 3:
            return logits
        if how == "raises":
            raise KeyError("no such thing")
        if how == "nan":
            logits[17] = np.nan
            return logits
        if how == "nothing":
            return np.full_like(logits, -np.inf)
        return {"none": None, "shape": logits[:-1], "matrix": logits[None], "text": "x"}[how]

    return fail


MESSAGES = {
    "raises": "KeyError: 'no such thing'",
    "nan": "NaN for token 17",
    "nothing": "no token to sample",
    "none": "returned None",
    "shape": rf"shape \({VOCAB_SIZE - 1},\)",
    "matrix": rf"shape \(1, {VOCAB_SIZE}\)",
    "text": "ValueError",
}


@pytest.mark.parametrize("method", [None, "custom"])
@pytest.mark.parametrize("how", MESSAGES)
def test_an_error_ends_its_own_request_where_it_comes(
    checkpoint: Checkpoint, how: str, method: str | None
) -> None:
    check_error(checkpoint("llama"), "cpu", how, method)


def test_an_error_on_a_device_ends_its_own_request(checkpoint: Checkpoint, device: str) -> None:
    check_error(checkpoint("llama"), device, "raises", "custom")


def check_error(model: Path, device: str, how: str, method: str | None) -> None:
    config = None if method is None else speculative(method, model, 3, 2)
    good = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    bad = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, logits_processors=[flatten, broken(how)]
    )
    with make_engine(model, device, speculative_config=config) as engine:
        expected = engine.generate([PROMPT], good)[0].outputs[0].token_ids
        streams = [engine.stream(PROMPT, params) for params in (good, bad, good)]
        reports: list[RequestOutput] = []
        with pytest.raises(
            RuntimeError, match=rf"logits_processors\[1\] \(fail\): .*{MESSAGES[how]}"
        ):
            reports.extend(streams[1])
        assert len(reports[-1].outputs[0].token_ids) == 3
        for stream in (streams[0], streams[2]):
            assert list(stream)[-1].outputs[0].token_ids == expected
        assert engine.generate([PROMPT], good)[0].outputs[0].token_ids == expected
        stats = engine.stats()
        assert stats.num_free_kv_blocks + stats.num_cached_kv_blocks >= stats.num_kv_blocks


def test_an_error_for_drafts_that_turn_out_wrong_is_none(checkpoint: Checkpoint) -> None:
    """Nonsense is drafted; a function that accepts the answer alone never meets the user's eye."""
    model = checkpoint("llama")
    answer: list[int] = []
    num_refused = 0

    def strict(output: list[int], logits: Logits) -> Logits:
        nonlocal num_refused
        if output != answer[: len(output)]:
            num_refused += 1
            raise ValueError(f"{output} is not a beginning of {answer}")
        return logits

    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    with make_engine(model, "cpu") as engine:
        answer += engine.generate([PROMPT], params)[0].outputs[0].token_ids
    params.logits_processors = [strict]
    config = speculative("custom", model, 4, 3)
    with make_engine(model, "cpu", speculative_config=config) as engine:
        found = engine.generate([PROMPT], params)[0].outputs[0].token_ids
    assert list(found) == answer and num_refused > 0


def test_classes_for_all_requests_are_refused_with_advice(checkpoint: Checkpoint) -> None:
    with pytest.raises(ValueError, match=r"SamplingParams\(logits_processors"):
        LLM(checkpoint("llama"), logits_processors=[dict])


def test_the_functions_go_with_their_request(checkpoint: Checkpoint) -> None:
    """Nothing keeps them alive once the request has ended."""
    import gc
    import weakref

    class Keep:
        def __call__(self, output: list[int], logits: Logits) -> Logits:
            return logits

    processor = Keep()
    gone = weakref.ref(processor)
    with make_engine(checkpoint("llama"), "cpu") as engine:
        engine.generate([PROMPT], SamplingParams(max_tokens=2, logits_processors=[processor]))
        del processor
        gc.collect()
        assert gone() is None
