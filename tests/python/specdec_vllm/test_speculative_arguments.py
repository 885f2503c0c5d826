"""vLLM's older arguments for speculation and its short forms, as a speculative_config."""

import warnings
from typing import Any

import pytest

from specdec_vllm.speculative_arguments import resolve_arguments, with_short_forms
from speculative_configs import parse_config


@pytest.mark.parametrize(
    ("older", "expected"),
    [
        (
            {
                "speculative_model": "[ngram]",
                "num_speculative_tokens": 5,
                "ngram_prompt_lookup_max": 4,
            },
            {
                "method": "ngram",
                "num_speculative_tokens": 5,
                "prompt_lookup_min": 1,
                "prompt_lookup_max": 4,
            },
        ),
        (
            {
                "speculative_model": "[ngram]",
                "num_speculative_tokens": 5,
                "ngram_prompt_lookup_max": 4,
                "ngram_prompt_lookup_min": 2,
                "use_v2_block_manager": True,
            },
            {
                "method": "ngram",
                "num_speculative_tokens": 5,
                "prompt_lookup_min": 2,
                "prompt_lookup_max": 4,
            },
        ),
        (
            {
                "speculative_model": "org/small",
                "num_speculative_tokens": 5,
                "speculative_draft_tensor_parallel_size": 1,
                "speculative_disable_by_batch_size": 4,
                "spec_decoding_acceptance_method": "rejection_sampler",
            },
            {
                "model": "org/small",
                "num_speculative_tokens": 5,
                "draft_tensor_parallel_size": 1,
                "num_speculative_tokens_per_batch_size": [[1, 3, 5], [4, 4, 0]],
                "rejection_sample_method": "standard",
            },
        ),
    ],
)
def test_older_arguments_warn_with_what_replaces_them(
    older: dict[str, Any], expected: dict[str, Any]
) -> None:
    with pytest.warns(DeprecationWarning) as caught:
        resolved = resolve_arguments({**older, "max_model_len": 64})
    assert resolved == {"speculative_config": expected, "max_model_len": 64}
    message = str(caught[-1].message)
    assert repr(resolved["speculative_config"]) in message and "speculative_model" in message
    parse_config(expected)


def test_an_argument_without_effect_only_warns() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3}
    arguments = {"use_v2_block_manager": True, "speculative_config": config}
    with pytest.warns(DeprecationWarning, match="use_v2_block_manager has no effect"):
        assert resolve_arguments(arguments) == {"speculative_config": config}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_arguments({"speculative_config": None, "spec_model": None}) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_speculative_tokens": 3}, 'write speculative_config={"method": "ngram"'),
        (
            {"speculative_model": "[ngram]", "speculative_config": {"method": "ngram"}},
            "put everything into speculative_config",
        ),
        ({"num_speculative_tokens": 3, "spec_method": "ngram"}, "put everything into"),
        (
            {"speculative_model": "x", "speculative_disable_by_batch_size": 1},
            "at least 2",
        ),
        (
            {"speculative_model": "x", "speculative_disable_by_batch_size": 4},
            "needs num_speculative_tokens",
        ),
        ({"spec_method": "ngram", "speculative_config": {"method": "ngram"}}, "not both"),
        ({"spec_tokens": 3, "speculative_config": "x"}, "must be a dict"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forms_are_not_mixed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_arguments(arguments)


def test_typical_acceptance_is_refused() -> None:
    older = {
        "speculative_model": "org/small",
        "num_speculative_tokens": 3,
        "spec_decoding_acceptance_method": "typical_acceptance_sampler",
    }
    with pytest.warns(DeprecationWarning):
        resolved = resolve_arguments(older)
    with pytest.raises(ValueError, match="rejection_sample_method"):
        parse_config(resolved["speculative_config"])


def test_short_forms_fill_in_what_the_config_leaves_out() -> None:
    short = {"spec_method": None, "spec_model": "org/small", "spec_tokens": 3}
    assert with_short_forms({"tree_width": 2}, short) == {
        "tree_width": 2,
        "model": "org/small",
        "num_speculative_tokens": 3,
    }
    assert with_short_forms(None, dict.fromkeys(short)) is None
    with pytest.raises(ValueError, match="--spec-tokens or 'num_speculative_tokens'"):
        with_short_forms({"num_speculative_tokens": 2}, short, {"spec_tokens": "--spec-tokens"})
