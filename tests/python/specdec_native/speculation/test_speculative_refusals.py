"""speculative_config: what every wrong or missing value is told to write."""

from typing import Any

import pytest

from speculative_configs import TABLE, Repeater, ngram, parse, parse_config, repeat

SYNTHETIC = {"rejection_sample_method": "synthetic"}
STANDARD = {"rejection_sample_method": "standard"}
FIXED = {"draft_length_policy": "fixed"}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"method": "deepseek_mtp"}, "deepseek_mtp"),
        ({"method": "extract_hidden_states"}, "extract_hidden_states"),
    ],
)
def test_a_method_that_is_not_there_yet_lists_those_that_are(
    config: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=f'"{name}".*not available yet.*ngram, suffix') as caught:
        parse(num_speculative_tokens=3, **config)
    assert ('"method": "draft_model"' in str(caught.value)) == ("method" not in config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("ngram", "must be a dict"),
        ({}, '"method".*"drafters"'),
        ({"num_speculative_tokens": 3}, 'num_speculative_tokens needs a drafter: give "method"'),
        ({**FIXED, "method": "ngram"}, "num_speculative_tokens is missing"),
        ({**FIXED, "model": "org/small"}, "num_speculative_tokens is missing"),
        (
            {**FIXED, "drafters": [{"method": "suffix"}, {"method": "ngram"}]},
            "num_speculative.*missing",
        ),
        ({**STANDARD, "method": "ngram"}, "num_speculative_tokens is missing"),
        ({"method": "ngrm", "num_speculative_tokens": 3}, "did you mean 'ngram'"),
        ({"method": 3, "num_speculative_tokens": 3}, "use one of ngram"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, '"draft_model" needs "model"'),
        ({"method": "eagle3", "num_speculative_tokens": 3}, '"eagle3" needs "model": the head'),
        ({"method": "custom_class", "num_speculative_tokens": 3}, 'either "model".*"drafter"'),
        ({"model": 3, "num_speculative_tokens": 3}, "model must be a string"),
        (
            {"model": "a.B", "drafter": repeat, "method": "custom_class"},
            'either "model".*"drafter"',
        ),
        ({"method": "custom_class", "model": "a/b"}, '"package.module.Class"'),
        ({"drafter": Repeater}, "make an object of it"),
        ({"drafter": 3}, "propose"),
    ],
)
def test_a_missing_or_wrong_drafter(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_config(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        *(
            ({"num_speculative_tokens": value}, "num_speculative_tokens must be")
            for value in (0, -1, 1.5, True, "5")
        ),
        ({"num_speculative_tokens": 0}, "leave speculative_config out"),
        ({"num_speculative_tokens": 10**6}, "num_speculative_tokens"),
        ({"draft_length_policy": "long"}, "one of auto, fixed"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 3}, "at least prompt_lookup_min = 4, got 3"),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min"),
        ({"prompt_lookup_max": -2}, "prompt_lookup_max"),
        ({"suffix_decoding_max_tree_depth": 3}, 'belongs to the method "suffix", not to "ngram"'),
        ({"draft_sample_method": "greedy"}, 'belongs to the method "draft_model"'),
        ({"drafter": repeat}, 'belongs to the method "custom_class"'),
        ({"model": "org/small"}, '"ngram" takes no model.*"draft_model"'),
        ({"prompt_lokup_max": 3}, "did you mean 'prompt_lookup_max'"),
        ({"zzz": 3}, "unknown key 'zzz'; known are num_speculative_tokens"),
        ({"tensor_parallel_size": 1}, "draft_tensor_parallel_size"),
        ({"max_model_len": 0}, "max_model_len must be in"),
        ({"quantization": "int8"}, 'belongs to the method "draft_model"'),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"parallel_drafting": True}, 'belongs to the method "draft_model" or "eagle3"'),
        ({"draft_lm_head_quantization": "fp8"}, 'give "quantization"'),
        ({"dspark_draft_topk": 3}, "sampling parameters"),
        ({"index_share_for_mtp_iteration": True}, "sparse attention"),
        ({"enable_adaptive_verification": True}, "draft_length_policy"),
        ({"disable_by_batch_size": 4}, TABLE),
        ({"use_heterogeneous_vocab": True}, "vocabulary"),
        ({"enforce_eager": "yes"}, "enforce_eager.*False or True"),
        ({"rejection_sample_method": "fly"}, 'lossy.*"exact" or "standard"'),
        ({"rejection_sample_method": "rejection"}, "exact, standard, block, synthetic"),
        ({"tree_width": 0}, "tree_width"),
        ({"tree_width": 1.5}, "tree_width"),
        ({"max_draft_nodes": 0}, "max_draft_nodes"),
        ({"merge_drafters": True}, "needs several drafters"),
        ({"merge_drafters": 2}, "True or False"),
        ({"rejection_sample_method": "block", "tree_width": 2}, "tree_width to 1.*'standard'"),
        *(({TABLE: value}, TABLE) for value in ([], 3, "x", [3], [[1, 2]], [[1, 2, 3.5]], [None])),
        ({TABLE: [[2, 1, 3]]}, "first <= last"),
        ({TABLE: [[0, 1, 3]]}, "batch sizes start at 1"),
        ({TABLE: [[1, 1, -3]]}, "tokens must be 0 or more"),
        (SYNTHETIC, "either synthetic_acceptance_rates or synthetic_acceptance_length"),
        (
            {
                **SYNTHETIC,
                "synthetic_acceptance_rates": [1, 1, 1, 1],
                "synthetic_acceptance_length": 2,
            },
            "either synthetic_acceptance_rates or synthetic_acceptance_length",
        ),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [0.5]}, "1 entries for.*= 4"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": 0.5}, "list of numbers"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [0.5, 0.6, 0.5, 0.5]}, "must not rise"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [1.5, 1, 1, 1]}, r"rates\[0\]"),
        ({**SYNTHETIC, "synthetic_acceptance_length": 5.5}, r"\[1, 5\]"),
        ({**SYNTHETIC, "synthetic_acceptance_length": 0.5}, "must be in"),
        ({"synthetic_acceptance_length": 2}, "needs rejection_sample_method 'synthetic'"),
        ({"synthetic_acceptance_rates": [1, 1, 1, 1]}, "needs rejection_sample_method 'synthetic'"),
    ],
)
def test_a_wrong_value_says_what_to_write(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ngram(**config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"drafters": []}, "drafters is empty"),
        ({"drafters": {"method": "ngram"}}, "list of dicts"),
        ({"drafters": ["ngram"]}, r"drafters\[0\] must be a dict"),
        ({"drafters": [{"method": "ngram"}, {"method": "x"}]}, r"drafters\[1\]: unknown method"),
        ({"drafters": [{"method": "ngram", "zzz": 1}]}, r"drafters\[0\].*unknown key"),
        ({"drafters": [{"method": "ngram", "tree_width": 2}]}, "tree_width belongs beside"),
        ({"drafters": [{"drafters": []}]}, "belongs beside"),
        ({"drafters": [{"method": "ngram"}], "method": "suffix"}, "method beside drafters"),
        ({"drafters": [{"method": "ngram"}], "prompt_lookup_max": 3}, "prompt_lookup_max beside"),
        (
            {
                "drafters": [{"method": "ngram"}, {"method": "suffix"}],
                "merge_drafters": True,
                "rejection_sample_method": "block",
            },
            "verifies chains",
        ),
    ],
)
def test_a_wrong_list_of_drafters_says_what_to_write(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(num_speculative_tokens=3, **config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"min_confidence": 1.5}, "min_confidence"),
        ({"min_confidence": -0.5}, "min_confidence"),
        ({"draft_sample_method": "random"}, "greedy, probabilistic, got"),
        ({"quantization": "hqq"}, "quantization: 'hqq' is not supported.*'int4'"),
        ({"quantization": 8}, "quantization must be a string"),
        ({"revision": 8}, "revision must be a string"),
    ],
)
def test_a_wrong_draft_model_option_says_what_to_write(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        parse(model="org/small", num_speculative_tokens=3, **config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"method": "eagle", "parallel_drafting": True},
            'parallel_drafting belongs to the method "draft_model" or "eagle3", not to "eagle"',
        ),
        (
            {"method": "eagle3", "speculative_token_map": [1, 2]},
            '"eagle" or "medusa" or "mtp" or "dflash", not to "eagle3"',
        ),
        ({"method": "mlp_speculator", "speculative_token_map": [1]}, 'not to "mlp_speculator"'),
        ({"method": "draft_model", "speculative_token_map": [1]}, 'not to "draft_model"'),
        ({"method": "medusa", "prompt_lookup_max": 3}, 'belongs to the method "ngram"'),
        ({"method": "eagle3", "parallel_drafting": "yes"}, "True or False"),
        ({"method": "eagle", "quantization": "hqq"}, "'hqq' is not supported"),
        ({"method": "eagle", "min_confidence": 2}, "min_confidence"),
    ],
)
def test_a_wrong_option_of_a_head_says_what_to_write(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(model="org/head", num_speculative_tokens=3, **config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tree_depth", 0),
        ("max_cached_requests", -1),
        ("max_spec_factor", -0.5),
        ("max_spec_factor", float("nan")),
        ("min_token_prob", 1.5),
    ],
)
def test_a_wrong_suffix_option_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"suffix_decoding_{name}"):
        parse(method="suffix", **{f"suffix_decoding_{name}": value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"speculative_token_tree": 5}, "must be a list of paths"),
        ({"speculative_token_tree": "[(0,), (1,"}, "must be a list of paths"),
        ({"speculative_token_tree": "0"}, "must be a list of paths"),
        ({"speculative_token_tree": [[0.5]]}, "must be a list of paths"),
        ({"speculative_token_tree": []}, "not empty"),
        ({"speculative_token_tree": [[], [0]]}, "leave the root out"),
        ({"speculative_token_tree": [[0]], "max_draft_nodes": 4}, "leave max_draft_nodes out"),
        (
            {"speculative_token_tree": [[0], [0, 0]], "num_speculative_tokens": 3},
            "tokens must be 2, got 3",
        ),
        ({"speculative_token_tree": [[0], [1]], "tree_width": 3}, "tree_width must be 2, got 3"),
        ({"speculative_token_tree": [[16]]}, "tree_width must be"),
    ],
)
def test_bad_trees_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(model="org/small", **given)
