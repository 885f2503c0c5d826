"""speculative_config: inference, defaults, custom drafters, the core's form."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdec_native.speculation.custom_drafter import CustomDrafter, make_drafter
from specdec_native.speculation.speculative_config import SpeculativeOptions
from speculative_configs import TABLE, Repeater, ngram, parse, repeat


def only_fields(options: SpeculativeOptions) -> dict[str, Any]:
    (drafter,) = options.drafters
    return dict(drafter.fields)


# -- methods


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"method": "ngram"}, "ngram"),
        ({"method": "[ngram]"}, "ngram"),
        ({"method": "ngram_gpu"}, "ngram"),
        ({"model": "ngram"}, "ngram"),
        ({"model": "[ngram]"}, "ngram"),
        ({"method": "suffix"}, "suffix"),
        ({"model": "Qwen/Qwen2.5-Coder-0.5B-Instruct"}, "draft_model"),
        ({"model": "Qwen2.5-Coder-0.5B-Instruct"}, "draft_model"),
        ({"model": "model.gguf"}, "draft_model"),
        ({"model": "models/some.directory"}, "draft_model"),
        ({"model": Path("models") / "small"}, "draft_model"),
        ({"method": "draft_model", "model": "org/eagle-by-name-only"}, "draft_model"),
        ({"model": "package.module.Drafter"}, "custom_class"),
        ({"method": "custom_class", "model": "package.Drafter"}, "custom_class"),
        ({"drafter": Repeater()}, "custom_class"),
        ({"drafter": repeat}, "custom_class"),
    ],
)
def test_the_method_is_given_or_inferred(config: dict[str, Any], method: str) -> None:
    (drafter,) = parse(num_speculative_tokens=3, **config).drafters
    assert drafter.method == method


def test_a_directory_with_a_dotted_name_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.model").mkdir()
    monkeypatch.chdir(tmp_path)
    (drafter,) = parse(model="small.model", num_speculative_tokens=1).drafters
    assert drafter.method == "draft_model"


# -- defaults


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 7}, (2, 7)),
        ({"prompt_lookup_min": None, "prompt_lookup_max": 3}, (3, 3)),
    ],
)
def test_ngram_lengths_mirror_each_other(config: dict[str, Any], expected: tuple[int, int]) -> None:
    fields = only_fields(ngram(**config))
    assert (fields["prompt_lookup_min"], fields["prompt_lookup_max"]) == expected


def test_suffix_drafts_as_deep_as_its_tree() -> None:
    assert parse(method="suffix").num_speculative_tokens == 24
    assert parse(method="suffix", suffix_decoding_max_tree_depth=9).num_speculative_tokens == 9
    assert parse(method="suffix", num_speculative_tokens=5).num_speculative_tokens == 5
    deep = parse(method="suffix", suffix_decoding_max_tree_depth=2**31 - 1)
    assert deep.num_speculative_tokens == 128
    both = [{"method": "suffix", "suffix_decoding_max_tree_depth": depth} for depth in (6, 11)]
    assert parse(drafters=both).num_speculative_tokens == 11


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"method": "ngram"}, 16),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 9}, 9),
        ({"model": "org/small"}, 8),
        ({"drafter": repeat}, 8),
        ({"drafters": [{"method": "suffix"}, {"model": "org/small"}]}, 24),
        ({"method": "ngram", "num_speculative_tokens": 3}, 3),
    ],
)
def test_the_longest_draft_has_a_default_where_the_length_adapts(
    config: dict[str, Any], tokens: int
) -> None:
    options = parse(**config)
    assert options.fields["draft_length_policy"] == "auto"
    assert options.num_speculative_tokens == tokens


def test_the_length_adapts_in_exact_verification_only() -> None:
    assert ngram(draft_length_policy="fixed").fields["draft_length_policy"] == "fixed"
    for method in ("standard", "block"):
        options = ngram(rejection_sample_method=method)
        assert options.fields["draft_length_policy"] == "fixed"
        with pytest.raises(ValueError, match='give "draft_length_policy": "fixed"'):
            ngram(rejection_sample_method=method, draft_length_policy="auto")
    synthetic = ngram(rejection_sample_method="synthetic", synthetic_acceptance_length=2)
    assert synthetic.fields["draft_length_policy"] == "fixed"


def test_suffix_keys_reach_the_core() -> None:
    config = {
        "suffix_decoding_max_tree_depth": 7,
        "suffix_decoding_max_cached_requests": 0,
        "suffix_decoding_max_spec_factor": 2,
        "suffix_decoding_min_token_prob": 0.25,
    }
    assert only_fields(parse(method="suffix", **config)) == {
        "suffix_decoding_max_tree_depth": 7,
        "suffix_decoding_max_cached_requests": 0,
        "suffix_decoding_max_spec_factor": 2.0,
        "suffix_decoding_min_token_prob": 0.25,
    }


@pytest.mark.parametrize("method", ["greedy", "probabilistic", "coupled", None])
@pytest.mark.parametrize("verification", ["exact", "standard", "block", None])
def test_words_reach_the_core_as_they_are(method: str | None, verification: str | None) -> None:
    options = parse(
        model="org/small",
        num_speculative_tokens=3,
        draft_sample_method=method,
        rejection_sample_method=verification,
    )
    core = options.to_core(resolve, encode)
    assert core.rejection_sample_method == (verification or "exact")
    (drafter,) = core.drafters
    assert drafter.draft_sample_method == ("greedy" if method == "greedy" else "probabilistic")


def test_what_vllm_accepts_without_effect_here_is_accepted() -> None:
    ngram(
        draft_tensor_parallel_size=1,
        disable_padded_drafter_batch=True,
        enforce_eager=True,
        parallel_drafting=False,
        max_model_len=None,
        quantization=None,
        attention_backend="auto",
        enable_adaptive_verification=False,
        acceptance_method="rejection_sampler",
    )


# -- how much, trees, several drafters


def test_tables_by_batch_size_are_lists_or_tuples() -> None:
    table = ngram(num_speculative_tokens_per_batch_size=[[1, 4, 4], (5, 9, np.int64(2))])
    assert table.fields["num_speculative_tokens_per_batch_size"] == [[1, 4, 4], [5, 9, 2]]


def test_several_drafters_keep_their_order_and_options() -> None:
    options = parse(
        drafters=[
            {"method": "suffix", "suffix_decoding_min_token_prob": 0.5},
            {"method": "ngram", "prompt_lookup_max": 3},
            {"model": "org/small"},
            {"drafter": repeat},
        ],
        num_speculative_tokens=6,
        merge_drafters=True,
        tree_width=2,
        max_draft_nodes=9,
    )
    assert [d.method for d in options.drafters] == [
        "suffix",
        "ngram",
        "draft_model",
        "custom_class",
    ]
    assert options.drafters[0].fields == {"suffix_decoding_min_token_prob": 0.5}
    assert options.drafters[1].fields["prompt_lookup_min"] == 3
    assert options.fields == {
        "draft_length_policy": "auto",
        "num_speculative_tokens": 6,
        "merge_drafters": True,
        "tree_width": 2,
        "max_draft_nodes": 9,
    }


@pytest.mark.parametrize("tree", ["[(0,), (1,), (0, 0)]", [[0], [1], (0, np.int64(0))]])
def test_a_given_tree_says_how_deep_and_wide_drafts_are(tree: Any) -> None:
    options = parse(model="org/small", speculative_token_tree=tree)
    assert options.fields["speculative_token_tree"] == [[0], [1], [0, 0]]
    assert options.fields["num_speculative_tokens"] == 2
    assert options.fields["tree_width"] == 2
    assert (
        parse(
            model="org/small", speculative_token_tree=tree, num_speculative_tokens=2, tree_width=2
        ).fields
        == options.fields
    )


# -- custom drafters


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([], []),
        (None, []),
        ([[]], []),
        ([1, 2, 3, 4], [[1, 2, 3]]),
        ((1,), [[1]]),
        ([[1, 2], (3,), []], [[1, 2], [3]]),
        (np.array([4, 5]), [[4, 5]]),
        (np.array([[4, 5], [6, 7]]), [[4, 5], [6, 7]]),
        (iter([1, 2]), [[1, 2]]),
    ],
)
def test_a_custom_drafter_may_return_one_draft_or_several(
    returned: Any, expected: list[list[int]]
) -> None:
    assert CustomDrafter(lambda tokens, max_tokens: returned).propose([1], 3) == expected


@pytest.mark.parametrize("returned", [3, "abc", [1.5], [[1], "x"], [1, [2]], [None]])
def test_a_custom_drafter_that_returns_something_else_is_told(returned: Any) -> None:
    with pytest.raises(ValueError, match="list of token ids"):
        CustomDrafter(lambda tokens, max_tokens: returned).propose([1], 3)


def test_objects_and_functions_get_the_tokens_and_the_limit() -> None:
    for drafter in (Repeater(), repeat, Repeater().propose):
        assert CustomDrafter(drafter).propose([7, 8], 2) == [[8, 8]]


def test_a_custom_class_is_found_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_drafters.py").write_text(
        "class Seven:\n"
        "    def propose(self, tokens, max_tokens):\n"
        "        return [7] * max_tokens\n"
        "def eight(tokens, max_tokens):\n"
        "    return [8] * max_tokens\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert CustomDrafter(make_drafter("my_drafters.Seven")).propose([1], 2) == [[7, 7]]
    assert CustomDrafter(make_drafter("my_drafters.eight")).propose([1], 2) == [[8, 8]]
    for path in ("my_drafters.Nine", "no_such_module.Seven"):
        with pytest.raises(ValueError, match=f'"{path}" cannot be imported'):
            make_drafter(path)


# -- the core's form


def resolve(name: str, revision: str | None, quantization: str) -> Path:
    return Path("found") / name / str(revision) / quantization


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_the_core_receives_everything() -> None:
    options = parse(
        drafters=[
            {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 3},
            {"method": "suffix", "suffix_decoding_max_spec_factor": 2.5},
            {"model": "small", "revision": "main", "min_confidence": 0.5},
            {"model": "smaller", "quantization": "int4"},
            {"drafter": repeat},
        ],
        num_speculative_tokens=4,
        tree_width=2,
        max_draft_nodes=6,
        merge_drafters=True,
        num_speculative_tokens_per_batch_size=[[1, 4, 4], [5, 5, 0]],
    )
    core = options.to_core(resolve, encode)
    assert (core.num_speculative_tokens, core.tree_width, core.max_draft_nodes) == (4, 2, 6)
    assert core.merge_drafters and core.rejection_sample_method == "exact"
    assert core.num_speculative_tokens_per_batch_size == [(1, 4, 4), (5, 5, 0)]
    lookup, suffix, draft, other_draft, custom = core.drafters
    methods = ["ngram", "suffix", "draft_model", "draft_model", "custom_class"]
    assert [d.method for d in core.drafters] == methods
    assert (lookup.prompt_lookup_min, lookup.prompt_lookup_max) == (2, 3)
    assert suffix.suffix_decoding_max_spec_factor == 2.5
    assert suffix.suffix_decoding_min_token_prob == 0.1
    assert suffix.suffix_decoding_max_tree_depth == 24
    assert suffix.suffix_decoding_max_cached_requests == 10000
    assert draft.model == str(resolve("small", "main", "int8"))
    assert (draft.min_confidence, draft.quantization) == (0.5, "int8")
    assert other_draft.model == str(resolve("smaller", None, "int4"))
    assert other_draft.quantization == "int4"
    assert custom.custom is not None and custom.custom.propose([1, 2], 2) == [[2, 2]]


def test_synthetic_options_reach_the_core() -> None:
    synthetic = {"rejection_sample_method": "synthetic"}
    length = ngram(**synthetic, synthetic_acceptance_length=2.5).to_core(resolve, encode)
    assert length.synthetic_acceptance_length == 2.5
    rates = ngram(**synthetic, synthetic_acceptance_rates=[0.8, 0.6, 0.6, 0])
    assert rates.to_core(resolve, encode).synthetic_acceptance_rates == [0.8, 0.6, 0.6, 0.0]


@pytest.mark.parametrize("table", [[[2, 4, 3]], [[1, 4, 3], [4, 6, 2]]])
def test_tables_with_an_overlap_or_a_late_start_are_refused(table: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=TABLE):
        ngram(num_speculative_tokens_per_batch_size=table).to_core(resolve, encode)


def test_a_config_survives_json() -> None:
    config: Callable[[], dict[str, Any]] = lambda: {  # noqa: E731
        "drafters": [{"method": "ngram"}, {"method": "suffix"}],
        "num_speculative_tokens": 3,
        TABLE: [[1, 2, 3]],
    }
    assert parse(**json.loads(json.dumps(config()))) == parse(**config())
