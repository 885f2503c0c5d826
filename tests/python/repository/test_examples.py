"""The scripts of examples/python run. The teaching script also notices faults planted in it."""

import json
import runpy
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doc_snippets import ROOT, fences
from specdec_native import Engine, SamplingParams

EXAMPLES = ROOT / "examples/python"
TEACHING = EXAMPLES / "speculative_step.py"
pytestmark = pytest.mark.usefixtures("one_torch_thread")

AGREES = "equal to plain decoding, and to the engine with and without speculation"

# Mistakes that a student may make: a text of the script, and its wrong replacement.
FAULTS = {
    "drafts are not compared": (
        "    while (*node, sampled[node]) in sampled:\n        node = (*node, sampled[node])\n",
        "    for child in sampled:\n        node = child if child[:-1] == node else node\n",
    ),
    "rows see siblings": ("return node[: len(other)] == other", "return len(other) <= len(node)"),
    "siblings differ in position": (
        "[[len(node) - 1 for node in nodes]]",
        "[[len(nodes[0]) - 1 + row for row in range(len(nodes))]]",
    ),
    "KV of other rows is kept": ("= layer.keys[:, :, rows],", "= layer.keys[:, :, : len(rows)],"),
    "noise of the root at all nodes": (
        "sampler.draw(logits[node], len(node))[0]",
        "sampler.draw(logits[node], len(tree[0]))[0]",
    ),
    "other noise than the engine's": ("for _ in range(10):", "for _ in range(9):"),
    "tokens share noise": ("np.stack(words, axis=1)", "np.stack(words)"),
}


def load(*edits: tuple[str, str]) -> Any:
    """The teaching script as a module, some of its text replaced."""
    source = TEACHING.read_text()
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    module = types.ModuleType("speculative_step")
    exec(compile(source, TEACHING, "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def script() -> Any:
    return load()


@pytest.fixture(scope="module")
def networks(script: Any) -> Any:
    return script.make_networks()


@pytest.fixture(scope="module")
def chat_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for as many tokens as the examples ask for."""
    roomy = tmp_path_factory.mktemp("examples") / "model"
    shutil.copytree(model, roomy)
    config = json.loads((roomy / "config.json").read_text())
    (roomy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    return roomy


@pytest.mark.parametrize(
    ("name", "last_line"), [("offline", "'Once upon"), ("speculative", "answers identical: True")]
)
def test_example_runs(
    name: str,
    last_line: str,
    chat_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [script, str(chat_model)])
    runpy.run_path(script, run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1].startswith(last_line)


def test_teaching_script_agrees_with_the_engine(
    script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main()
    assert capsys.readouterr().out.count(AGREES) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_teaching_script_notices(fault: str) -> None:
    with pytest.raises(AssertionError):
        load(FAULTS[fault]).main()


def test_page_quotes_the_teaching_script(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script.main()
    log = capsys.readouterr().out
    source = TEACHING.read_text()
    page = fences(ROOT / "docs/exact.md")
    functions = [fence.text for fence in page if "a part of the script" in str(fence.attributes)]
    logs = [fence.text for fence in page if "step" in fence.text and fence.language == "text"]
    assert functions and all(text in source for text in functions)
    assert logs and all(text in log for text in logs)


def test_drafts_under_other_noise_only_cost_acceptance(script: Any, networks: Any) -> None:
    """docs/exact.md: coupled noise gives about twice as many tokens a step."""
    first_line = "    tree = level = [text]\n"
    longer = ("MAX_TOKENS = 32", "MAX_TOKENS = 96")
    other_noise = (first_line, first_line + "    sampler = sampler._replace(seed=8)\n")
    texts, num_steps = [], []
    for module in (load(longer), load(longer, other_noise)):
        models = (module.Model(network) for network in networks)
        text, steps = module.decode_speculatively(*models, module.Sampler(0.8, 7))
        texts.append(text)
        num_steps.append(len(steps))
    assert texts[0] == texts[1]
    assert 1.8 * num_steps[0] < num_steps[1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_engine_drafts_the_same_trees(
    script: Any, networks: Any, temperature: float, tmp_path: Path
) -> None:
    models = (script.Model(network) for network in networks)
    _, steps = script.decode_speculatively(*models, script.Sampler(temperature, 7))
    trees, accepted = recorded_trees(script, networks, temperature, tmp_path)
    assert trees == [set(tree[1:]) for tree, _ in steps if len(tree) > 1]
    assert accepted == [last for tree, last in steps if len(tree) > 1]


def recorded_trees(
    script: Any, networks: Any, temperature: float, folder: Path
) -> tuple[list[set[tuple[int, ...]]], list[tuple[int, ...]]]:
    """Each step's drafts as the engine records them, and the last one accepted, as texts."""
    for network, name in zip(networks, ("target", "draft"), strict=True):
        network.save_pretrained(folder / name)
    shape = "[(0,), (1,), (0,0), (0,1), (1,0), (1,1), (0,0,0), (0,1,0), (1,0,0), (1,1,0)]"
    engine = Engine(
        folder / "target",
        skip_tokenizer_init=True,
        speculative_config={
            "model": str(folder / "draft"),
            "quantization": "none",
            "speculative_token_tree": shape,
            "draft_length_policy": "fixed",
        },
    )
    params = SamplingParams(
        temperature=temperature,
        seed=7,
        max_tokens=script.MAX_TOKENS,
        ignore_eos=True,
        record_draft_trees=True,
    )
    output = engine.generate({"prompt_token_ids": list(script.PROMPT)}, params)[0].outputs[0]
    assert output.draft_trees is not None
    trees, accepted = [], []
    for tree in output.draft_trees:
        root = (*script.PROMPT, *output.token_ids[: tree.num_tokens])
        nodes = {-1: root}
        for node, token in enumerate(tree.tokens):
            nodes[node] = (*nodes[token.parent], token.token_id)
        kept = [node for node, token in enumerate(tree.tokens) if token.is_accepted]
        accepted.append(nodes[max(kept, key=lambda node: len(nodes[node]), default=-1)])
        trees.append(set(nodes.values()) - {root})
    return trees, accepted


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_token_of_the_teaching_script_nearly_ties(
    script: Any, networks: Any, temperature: float
) -> None:
    """Torch and the engine round differently, and so do different machines."""
    margins = []

    class Watched(script.Sampler):  # type: ignore[misc]
        def draw(self, logits: Any, position: int, count: int = 1) -> list[int]:
            drawn: list[int] = super().draw(logits, position, count + 1)
            scores = logits
            if self.temperature > 0:
                noise = script.gumbel_noise(self.seed, position, len(logits))
                scores = logits / self.temperature + noise
            margins.append(-np.diff(scores[drawn]).max())
            return drawn[:count]

    models = (script.Model(network) for network in networks)
    _, steps = script.decode_speculatively(*models, Watched(temperature, 7))
    assert len(margins) > sum(len(tree) for tree, _ in steps)
    assert min(margins) > 1e-4
