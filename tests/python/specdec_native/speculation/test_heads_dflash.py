"""DFlash and DSpark heads: how deep they draft, and faults that must be seen.

What they compute is compared in test_heads.py, law 1 in test_heads_law.py.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import head_oracles
from conftest import HeadMaker
from specdec_native import Engine, SamplingParams
from speculative_configs import parse
from test_heads import PROMPTS, Pairs, check_drafts, pair  # noqa: F401
from test_speculation_law import metrics_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize(
    ("config", "depth"),
    [
        ({"block_size": 8}, 7),
        ({}, 15),
        ({"dflash_config": {"block_size": 10}}, 9),
        ({"block_size": 7, "architectures": ["Qwen3DSparkModel"]}, 7),
        ({"block_size": 7, "architectures": ["Qwen3DSparkModel"], "dspark_bonus_anchor": True}, 6),
        ({"block_size": 7, "sample_from_anchor": True}, 7),
        ({"block_size": 6, "architectures": [], "speculators_model_type": "dspark"}, 6),
        ({"block_size": 6, "architectures": [], "speculators_model_type": "dflash"}, 5),
    ],
)
def test_the_checkpoint_says_how_deep_it_drafts(
    tmp_path: Path, config: dict[str, Any], depth: int
) -> None:
    fields = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", **config}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert parse(model=tmp_path).num_speculative_tokens == depth
    with pytest.raises(ValueError, match=rf"{depth + 1} is more than the {depth} .*block_size"):
        parse(model=tmp_path, num_speculative_tokens=depth + 1)


def test_drafts_reach_to_the_end_of_the_longest_text(
    checkpoint: Callable[[str], Path], head: HeadMaker
) -> None:
    """Masks stand at positions past it, and need slots that the text has none for."""
    with Engine(
        checkpoint("llama"),
        dtype="float32",
        max_model_len=48,
        block_size=16,
        num_kv_blocks=3,
        speculative_config={
            "method": "dspark",
            "model": str(head("dspark")),
            "num_speculative_tokens": 4,
            "draft_length_policy": "fixed",
        },
    ) as engine:
        params = SamplingParams(temperature=0, max_tokens=48 - len(PROMPTS[0]), ignore_eos=True)
        (output,) = engine.generate([PROMPTS[0]], params)
        assert len(output.outputs[0].token_ids) == 48 - len(PROMPTS[0])
        assert metrics_of(engine).num_draft_tokens > 0


# ---- planted faults: formulas that differ from the head's by one of them


class Causal(head_oracles.Dflash):
    """Rows of a span see the rows before them alone."""

    def window(self, layer: int) -> int | None:
        return 1 << 20


class ContextWithAnchor(head_oracles.Dflash):
    """The context ends with the anchor's own states."""

    def rows(self, tokens: Tensor, features: Tensor, nodes: Any) -> Tensor:
        return super().rows(tokens, torch.cat([features, features[-1:]]), nodes)


class Shifted(head_oracles.Dflash):
    """The context has the states of one token further back."""

    def features(self, tokens: Tensor) -> Tensor:
        features = super().features(tokens)
        return torch.cat([features[:1], features[:-1]])


class OwnPosition(head_oracles.Dflash):
    """Each row gives the token of its own position."""

    def __init__(self, directory: Path, target: head_oracles.Target) -> None:
        super().__init__(directory, target)
        self.first = 1 - self.first


class MarkovOfTheAnchor(head_oracles.Dflash):
    """The Markov head reads the anchor at every level."""

    def score(self, rows: Tensor, before: Tensor) -> Tensor:
        return super().score(rows, before[:1].expand_as(before))


@pytest.mark.parametrize(
    "fault", [Causal, ContextWithAnchor, Shifted, OwnPosition, MarkovOfTheAnchor]
)
def test_a_faulty_formula_is_noticed(
    pair: Pairs,  # noqa: F811
    fault: type[head_oracles.Dflash],
) -> None:
    right = pair("dspark")
    oracle = fault(right.directory, right.oracle.target)
    oracle.max_depth = right.oracle.max_depth - 1  # which the wrong first row would shorten
    wrong = dataclasses.replace(right, oracle=oracle)
    with pytest.raises(AssertionError):
        check_drafts(wrong, PROMPTS[:4])
