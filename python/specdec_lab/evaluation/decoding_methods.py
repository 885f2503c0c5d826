"""Decoding methods to compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_native.common.checks import check_integer, close_matches
from specdec_native.speculation.drafter_options import DRAFTER_KEYS, ConfigFinder
from specdec_native.speculation.speculative_config import parse_speculative_config


@dataclasses.dataclass(frozen=True)
class Method:
    """A decoding method: with a speculative_config, or plain."""

    name: str
    speculative_config: Mapping[str, Any] | None = None


PLAIN = Method("plain")
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
# Prompts repeat: with cached requests, a later answer would be drafted from an earlier one.
SUFFIX = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
FREE_DRAFT_TOKENS = 8
"""The longest draft for drafters that cost next to nothing, and for merged drafters."""

_HEAD_TOKENS = 3
_TREE_WIDTH = 3

HEAD = "head"
"""The method that drafts with a head as the engine does by default."""

HEAD_METHODS = (
    "plain",
    HEAD,
    "head-fixed",
    "tree",
    "tree-fixed",
    "ngram",
    "suffix",
    "ngram+head",
    "suffix+head",
)
"""The methods that a draft head is measured with. "-fixed" drafts the same number of tokens in
every step; otherwise the engine decides. "a+b" drafts with both at once, into one tree."""


def speculative(name: str, num_tokens: int, **config: Any) -> Method:
    """A method that drafts `num_tokens` at most."""
    return Method(name, {**config, "num_speculative_tokens": num_tokens})


def methods_of_head(
    config: Mapping[str, Any],
    find_config: ConfigFinder,
    *,
    tree_width: int | None = None,
    names: Sequence[str] = (),
) -> list[Method]:
    """Plain decoding, and a head that drafts chains, trees, and together with model-free drafters.

    config: a speculative_config of one head (or draft model): its own keys and
        num_speculative_tokens. If this is left out, fixed methods draft the number that the head
        proposes, else 3 tokens.
    tree_width: the width of trees; 3 if left out.
    names: the members of HEAD_METHODS to keep; plain decoding is always kept.

    Raises ValueError for an unknown name or key, and for a config that the engine refuses.
    """
    _check_names(names)
    misplaced = [key for key in config if key not in (*DRAFTER_KEYS, "num_speculative_tokens")]
    if misplaced:
        raise ValueError(
            f"{', '.join(misplaced)} in the speculative config: every method has its own; give the "
            "head's keys and num_speculative_tokens"
        )
    if config.get("model") is None:
        raise ValueError("a head is missing: give its directory or name (--spec-model)")
    drafter = {key: value for key, value in config.items() if key in DRAFTER_KEYS}
    tokens = config.get("num_speculative_tokens")
    length = {} if tokens is None else {"num_speculative_tokens": tokens}
    proposed = parse_speculative_config({**drafter, **length}, find_config).drafters[0]
    fixed_tokens = tokens or proposed.proposed_tokens or _HEAD_TOKENS
    fixed = {"draft_length_policy": "fixed", "num_speculative_tokens": fixed_tokens}
    width = check_integer("tree_width", tree_width or _TREE_WIDTH, minimum=2)
    tree = {"tree_width": width}
    grafted = {"merge_drafters": True, "num_speculative_tokens": FREE_DRAFT_TOKENS}
    methods = [
        PLAIN,
        Method(HEAD, {**drafter, **length}),
        Method("head-fixed", {**drafter, **fixed}),
        Method("tree", {**drafter, **length, **tree}),
        Method("tree-fixed", {**drafter, **fixed, **tree}),
        speculative("ngram", FREE_DRAFT_TOKENS, **NGRAM),
        speculative("suffix", FREE_DRAFT_TOKENS, **SUFFIX),
        Method("ngram+head", {"drafters": [NGRAM, drafter], **grafted}),
        Method("suffix+head", {"drafters": [SUFFIX, drafter], **grafted}),
    ]
    kept = [method for method in methods if not names or method.name in (PLAIN.name, *names)]
    for method in kept:  # refused before anything is loaded
        if method.speculative_config is not None:
            parse_speculative_config(method.speculative_config, find_config)
    return kept


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in HEAD_METHODS:
            raise ValueError(
                f"there is no method {name!r}; "
                + (close_matches(name, HEAD_METHODS) or f"there are {', '.join(HEAD_METHODS)}")
            )
