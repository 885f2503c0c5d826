"""The oracles of draft heads are what their authors' code computes, and heads learn from them.

EAGLE-1 is compared with the code of its authors, which a package index has. The others follow the
formulas of their papers and checkpoints alone.
"""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import head_oracles
import make_heads
import train_heads

pytestmark = pytest.mark.usefixtures("one_torch_thread")

PROMPTS = [[(7 * i * i + 31 * i + 5 * k) % 160 for i in range(9 + k)] for k in range(20)]


@pytest.fixture(scope="module")
def target(checkpoint: Callable[[str], Path]) -> head_oracles.Target:
    return head_oracles.Target(checkpoint("llama"))


@pytest.fixture(scope="module")
def authors_module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """eagle.model.cnets of the package eagle-llm."""
    folder = tmp_path_factory.mktemp("eagle")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "eagle-llm==1.2.1"]
    subprocess.run([*command, "--dest", str(folder)], check=True, timeout=300)
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder)
    sys.path.insert(0, str(folder))
    try:
        from eagle.model import cnets  # type: ignore[import-not-found,unused-ignore]
    finally:
        sys.path.remove(str(folder))
    return cnets


@pytest.mark.models
@pytest.mark.parametrize("name", ["eagle", "eagle_no_bias", "eagle_two_layers"])
def test_eagle_is_that_of_its_authors(
    name: str,
    authors_module: Any,
    target: head_oracles.Target,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    directory = make_heads.make(name, checkpoint("llama"), tmp_path / name)
    head = head_oracles.load("eagle", directory, target)
    assert isinstance(head, head_oracles.Eagle1)
    fields = json.loads((directory / "config.json").read_text())
    config = SimpleNamespace(
        **fields, pad_token_id=1, pretraining_tp=1, rope_scaling=None, gradient_checkpointing=False
    )
    authors = authors_module.Model(config, bias=fields.get("bias", True))
    tensors = dict(head.weights)
    tensors.setdefault("embed_tokens.weight", target.embedding)
    authors.load_state_dict(tensors, strict=False)
    authors.eval()

    def lm_head(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, target.lm_head)

    authors.reset()
    for prompt in PROMPTS:
        text = torch.tensor(prompt)
        features = head.features(text)
        with torch.no_grad():
            expected = lm_head(authors(features[None, :-1], text[None, 1:])[0])
        assert torch.allclose(head.logits(prompt), expected, atol=1e-4)
        drafted = authors.generate(features[None, :-1], text[None], lm_head, max_length=4)
        # Its loop stops after the token 2.
        assert head.chain(prompt, 4)[: len(drafted) - len(prompt)] == drafted[len(prompt) :]


@pytest.mark.parametrize("name", ["eagle", "eagle31_input_norm", "mlp_tied", "p_eagle"])
def test_rows_see_what_stands_before_them(
    name: str, target: head_oracles.Target, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Rows of a text are those of any longer one; a tree's are those of its chains."""
    directory = make_heads.make(name, checkpoint("llama"), tmp_path / name)
    head = head_oracles.load(make_heads.HEADS[name].kind, directory, target)
    whole = head.logits(PROMPTS[5])
    assert torch.allclose(head.logits(PROMPTS[5][:7]), whole[:6], atol=1e-5)
    tree = head.tree(PROMPTS[5], width=3, levels=3, num_nodes=10)
    assert len(tree) == 10
    for path, survival in head_oracles.paths_of(tree).items():
        rows = head.logits(PROMPTS[5], path[:-1])[-len(path) :].softmax(-1)
        column = {int(token): i for i, token in enumerate(head.token_ids)}
        chances = [rows[i, column[token]].item() for i, token in enumerate(path)]
        assert survival == pytest.approx(float(torch.tensor(chances).prod()), rel=1e-4)


@pytest.mark.parametrize("name", train_heads.TRAINED)
def test_trained_heads_are_often_right_and_often_wrong(
    name: str, trained_head: Callable[[str], Path], target_of: Callable[[str], Path]
) -> None:
    target = head_oracles.Target(target_of(name))
    kind = make_heads.HEADS[train_heads.TRAINED[name]].kind
    head = head_oracles.load(kind, trained_head(name), target)
    accepted = [0] * 4
    texts = train_heads.ToyLanguage().texts(24, 20, seed=5)
    for _ in range(4):
        texts = torch.cat([texts, target.logits(texts)[:, -1:].argmax(-1)], 1)
    for tokens in texts.tolist():
        drafts = head.chain(tokens[:21], 3)
        right = [draft == token for draft, token in zip(drafts, tokens[21:], strict=True)]
        accepted[[*right, False].index(False)] += 1
    # Chance is one in a hundred.
    assert accepted[0] >= 2 and accepted[3] >= 2 and sum(accepted[1:]) >= 8, accepted
