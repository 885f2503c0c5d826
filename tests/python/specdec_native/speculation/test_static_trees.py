"""speculative_token_tree: a draft model fills exactly the nodes of a given tree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec_native import Engine, SamplingParams, _core, _core_testing

TREE = [(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0), (0, 1, 1), (2, 0, 0)]
PROMPTS = [[3 + (7 * i * (j + 1)) % 60 for i in range(9 + 4 * j)] for j in range(5)]


def config_of(model: Path, **options: Any) -> dict[str, Any]:
    return {
        "model": str(model),
        "method": "draft_model",
        "quantization": "none",
        "speculative_token_tree": str(TREE),
        **options,
    }


def test_the_nodes_are_those_of_their_ranks(checkpoint: Callable[[str], Path]) -> None:
    model = checkpoint("llama")
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    drafter = _core.DrafterConfig(method="draft_model", model=str(model), quantization="none")
    drafter.draft_sample_method = "greedy"
    config = _core.EngineConfig(model=str(model), device="cpu", dtype="float32")
    config.speculative = _core.SpeculativeConfig(
        drafters=[drafter],
        num_speculative_tokens=3,
        tree_width=3,
        speculative_token_tree=[list(path) for path in TREE],
    )
    for prompt in PROMPTS:
        tokens, parents, _ = _core_testing.drafted_tree(config, prompt)
        paths: list[list[int]] = [[]]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*paths[parent], token])
        expected = []
        for ranks in TREE:
            path: list[int] = []
            for rank in ranks:
                with torch.no_grad():
                    logits = loaded(torch.tensor([prompt + path])).logits[0, -1]
                path.append(int(logits.topk(rank + 1).indices[rank]))
            expected.append(path)
        assert sorted(paths[1:]) == sorted(expected)


@pytest.mark.parametrize("policy", ["fixed", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_those_without_drafts(
    checkpoint: Callable[[str], Path], temperature: float, policy: str
) -> None:
    model = checkpoint("llama")
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=20, ignore_eos=True)
        for i in range(len(PROMPTS))
    ]

    def answers(**options: Any) -> tuple[list[list[int]], Any]:
        with Engine(model, dtype="float32", max_model_len=256, **options) as engine:
            outputs = engine.generate(PROMPTS, params)
            metrics = engine.stats().speculative_decoding
        return [list(output.outputs[0].token_ids) for output in outputs], metrics

    plain, _ = answers()
    drafted, metrics = answers(speculative_config=config_of(model, draft_length_policy=policy))
    assert drafted == plain
    if policy == "fixed":
        # The draft model is the target, so the first of every node's children is right. The tree
        # holds two in a row.
        assert metrics.mean_acceptance_length == pytest.approx(3.0, abs=0.1)
        assert metrics.num_draft_tokens > 8 * metrics.num_spec_steps


def test_what_the_core_refuses_names_the_tree(checkpoint: Callable[[str], Path]) -> None:
    model = checkpoint("llama")
    for tree, message in (
        ("[(0,), (0, 1)]", r"has \(0, 1\) without \(0, 0\)"),
        ("[(0,), (2,)]", r"has \(2,\) without \(1,\)"),
        ("[(0,), (1, 0)]", r"has \(1, 0\) without \(1,\)"),
        ("[(0,), (0,)]", "twice"),
    ):
        with pytest.raises(ValueError, match=f"speculative_token_tree.*{message}"):
            Engine(model, speculative_config=config_of(model, speculative_token_tree=tree))
    with pytest.raises(ValueError, match=r"speculative_token_tree.*needs one drafter"):
        Engine(model, speculative_config={"method": "ngram", "speculative_token_tree": "[(0,)]"})
