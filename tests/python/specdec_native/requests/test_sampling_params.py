"""SamplingParams: vLLM's arguments, checks and adjustments."""

import logging
import math
import sys
from typing import Any

import numpy as np
import pytest

from specdec_native import RequestOutputKind, SamplingParams
from specdec_native.requests import sampling_params
from specdec_native.requests.core_params import to_core_params


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert params.stop == [] and params.stop_token_ids == []
    assert params.logprobs is None and params.prompt_logprobs is None
    assert params.output_kind is RequestOutputKind.CUMULATIVE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("n", value) for value in (0, -1, 1.5, True, 100_000)),
        *(("presence_penalty", value) for value in (-2.1, 2.1, math.nan, math.inf)),
        *(("frequency_penalty", value) for value in (-2.1, 2.1, math.nan, -math.inf)),
        *(("repetition_penalty", value) for value in (0, -1, math.nan, math.inf)),
        *(("temperature", value) for value in (-0.1, 2.1, math.nan, math.inf, "hot", None)),
        *(("top_p", value) for value in (0, -0.5, 1.01, math.nan)),
        *(("top_k", value) for value in (-2, 1.5, "all")),
        *(("min_p", value) for value in (-0.1, 1.1, math.nan)),
        *(("seed", value) for value in (1.5, "x", 2**64)),
        *(("max_tokens", value) for value in (0, -1, 2.5)),
        *(("min_tokens", value) for value in (-1, 17, 0.5)),
        *(("logprobs", value) for value in (-2, 0.5)),
        *(("prompt_logprobs", value) for value in (-2, "all")),
        *(("stop", value) for value in ("", ["a", ""], [1])),
        *(("stop_token_ids", value) for value in ([-1], ["2"], [1.5], 3)),
        *(("bad_words", value) for value in ([""], [1])),
        *(("allowed_token_ids", value) for value in ([], [-1], [2**31])),
        *(("logit_bias", value) for value in ({"x": 1}, {1: math.nan}, {-1: 0}, [1])),
        *((name, "a value") for name in ("max_tokens", "top_k", "logprobs", "n", "ignore_eos")),
        *((name, 2**63) for name in ("max_tokens", "min_tokens", "top_k", "logprobs")),
        *((name, 10**400) for name in ("n", "max_tokens", "temperature", "logprobs", "seed")),
        *((name, 5) for name in ("stop", "bad_words", "allowed_token_ids", "ignore_eos")),
        *((name, 5.5) for name in ("stop_token_ids", "allowed_token_ids", "detokenize")),
        *((name, ["a", "\ud800b"]) for name in ("stop", "bad_words")),
        *((name, np.array([1, 2])) for name in ("temperature", "top_k", "skip_special_tokens")),
        *((name, np.bool_(True)) for name in ("temperature", "n")),
        ("logit_bias", {5: 1e39}),
        ("logit_bias", {2**31: 1}),
        *(("logit_bias", {key: 1}) for key in ("1_0", " 1", "1 ", "+1", "\u0661", "", "1.0")),
        ("repetition_penalty", 1e39),
        ("stream_interval", 0),
        ("output_kind", "delta"),
        ("flat_logprobs", "yes"),
        *(
            ("logits_processors", value)
            for value in (
                max,
                [None],
                [dict],
                [lambda logits: logits],
                [lambda a, b, c, d: d],
                "not functions",
            )
        ),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprob_token_ids", [1]),
        ("best_of", 2),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_says_so(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} is not supported"):
        SamplingParams(**{field: value})


def test_the_fields_have_vllms_list() -> None:
    assert {"n", "structured_outputs", "extra_args"} <= set(SamplingParams.__struct_fields__)
    params = SamplingParams(n=2, stop="x", extra_args={"a": 1}, logits_processors=[])
    assert params.extra_args == {"a": 1}
    fields = {name: getattr(params, name) for name in SamplingParams.__struct_fields__}
    assert SamplingParams(**fields) == params
    with pytest.raises(ValueError, match="extra_args must be a dict"):
        SamplingParams(extra_args="a")


def test_their_defaults_are_accepted() -> None:
    SamplingParams(structured_outputs=None, guided_decoding=None, thinking_token_budget=-1)


def test_a_copy_shares_the_logits_processors() -> None:
    class Counting:
        def __call__(self, output: list[int], logits: Any) -> Any:
            return logits

    processor = Counting()
    params = SamplingParams(logits_processors=[processor])
    copied = params.clone()
    assert copied.logits_processors is not params.logits_processors
    assert copied.logits_processors == [processor]


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


def test_a_tiny_temperature_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    sampling_params._warn_of_low_temperatures.cache_clear()
    with caplog.at_level(logging.WARNING, logger="specdec_native"):
        assert SamplingParams(temperature=0.001).temperature == 0.01
    assert "temperature" in caplog.text


def test_scalars_of_numpy_are_numbers() -> None:
    fields: dict[str, Any] = {
        "n": np.int64(2),
        "temperature": np.float32(0.5),
        "ignore_eos": np.bool_(True),
        "stop_token_ids": np.array([7, 9, 7]),
        "logit_bias": {np.int32(5): np.float64(1.5)},
    }
    params = SamplingParams(**fields)
    assert (params.n, params.temperature, params.ignore_eos) == (2, 0.5, True)
    assert params.stop_token_ids == [7, 9]
    assert params.logit_bias == {5: 1.5}
    assert all(type(value) is int for value in (params.n, *params.stop_token_ids))


def test_no_limit_may_be_as_large_as_one_likes() -> None:
    params = SamplingParams(max_tokens=sys.maxsize, min_tokens=2**32, top_k=2**31)
    assert (params.max_tokens, params.min_tokens, params.top_k) == (2**63 - 1, 2**32, 2**31)
    core = to_core_params(params, eos_token_ids=[])
    assert core.max_tokens == core.min_tokens == core.top_k == 2**31 - 1


def test_greedy_turns_the_filters_off() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=10, min_p=0.1)
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_several_greedy_completions_are_refused() -> None:
    with pytest.raises(ValueError, match="n must be 1"):
        SamplingParams(n=2, temperature=0)


def test_stop_needs_text() -> None:
    with pytest.raises(ValueError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_values_take_their_canonical_form() -> None:
    params = SamplingParams(
        stop="end",
        stop_token_ids=[3, 3, 1],
        bad_words=["a", "a"],
        logit_bias={"5": 1, 7: -2.5},
        logprobs=True,
        seed=-1,
    )
    assert params.stop == ["end"]
    assert params.stop_token_ids == [3, 1]
    assert params.bad_words == ["a"]
    assert params.logit_bias == {5: 1.0, 7: -2.5}
    assert params.logprobs == 1
    assert params.seed is None


def test_a_clone_is_independent() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 1.0}, seed=4)
    copy = params.clone()
    assert copy == params
    assert isinstance(copy.stop, list)
    copy.stop.append("b")
    assert params.stop == ["a"]


def test_assigned_values_are_checked_by_validate() -> None:
    params = SamplingParams()
    params.temperature = math.nan
    with pytest.raises(ValueError, match="temperature"):
        params.validate()


def test_from_optional_reads_none_as_the_default() -> None:
    params = SamplingParams.from_optional(
        temperature=None, top_p=0.5, max_tokens=None, logit_bias={"3": 1000}
    )
    assert params.temperature == 1.0 and params.top_p == 0.5
    assert params.max_tokens is None
    assert params.logit_bias == {3: 100.0}


def test_repr_shows_what_was_set_and_evaluates_to_it() -> None:
    params = SamplingParams(temperature=0.5, stop="x", seed=3)
    assert repr(params) == "SamplingParams(temperature=0.5, seed=3, stop=['x'])"
    assert eval(repr(params)) == params
    assert repr(SamplingParams()) == "SamplingParams()"


def test_low_temperatures_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    sampling_params._warn_of_low_temperatures.cache_clear()
    for temperature in (1e-6, 1e-4, 1e-6):
        assert SamplingParams(temperature=temperature).temperature == 0.01
    assert len(caplog.records) == 1 and "temperature" in caplog.text
