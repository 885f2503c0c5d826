"""What engines accept of a head's drafts is what its oracle foretells, whatever is cached.

A head that read a feature of another token, or one that a cached block holds of another text,
would still never change an answer. It would be right less often, which only this test sees.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import head_oracles
import make_heads
import train_heads
from specdec_native import Engine, SamplingParams, _core, _core_testing
from test_speculation_law import metrics_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")

METHODS = ["eagle", "eagle3", "p_eagle", "dflash", "dspark", "medusa", "mlp", "mtp", "assistant"]
WITH_PARD = [*METHODS, "pard"]  # which reads no features
PARALLEL = (head_oracles.ParallelEagle, head_oracles.ParallelDraftModel)
NUM_PROMPTS = 20
NUM_DRAFTS = 3
MAX_TOKENS = 24


@dataclass(frozen=True)
class Trained:
    """A trained head, its target and what the target answers greedily."""

    target: Path
    directory: Path
    method: str
    oracle: head_oracles.DraftHead
    prompts: list[list[int]]
    answers: list[list[int]]

    def engine(self, tokens: int = NUM_DRAFTS, width: int = 1, **options: Any) -> Engine:
        config = {
            "method": self.method,
            "parallel_drafting": isinstance(self.oracle, PARALLEL),
            "model": str(self.directory),
            "quantization": "none",
            "num_speculative_tokens": tokens,
            "tree_width": width,
            "draft_length_policy": "fixed",
        }
        return Engine(
            self.target,
            dtype="float32",
            speculative_config=config,
            **{"max_model_len": 192, "max_num_seqs": 32, **options},
        )

    def foretold(self, features_of: Callable[[Tensor], Tensor] | None = None) -> list[int]:
        """The acceptance histogram of chains; `features_of` a text takes the oracle's place."""
        features_of = features_of or self.oracle.features
        histogram = [0] * (NUM_DRAFTS + 1)
        for prompt, answer in zip(self.prompts, self.answers, strict=True):
            text = torch.tensor(prompt + answer)
            features = features_of(text)
            root = len(prompt)
            # The last token of an answer is no root, and no draft is longer than what is missing.
            while (missing := len(text) - 1 - root) > 1:
                drafts = self.chain(text[: root + 1], features, min(NUM_DRAFTS, missing - 1))
                right = (torch.tensor(drafts) == text[root + 1 :][: len(drafts)]).tolist()
                accepted = [*right, False].index(False)
                histogram[accepted] += 1
                root += accepted + 1
        return histogram

    def chain(self, text: Tensor, features: Tensor, num_drafts: int) -> list[int]:
        drafts: list[int] = []
        for _ in range(num_drafts):
            with torch.no_grad():
                nodes = head_oracles.chain_of(drafts)
                logits = self.oracle.rows(text, features[: len(text)], nodes)
            drafts.append(int(self.oracle.token_ids[logits[-1].argmax()]))
        return drafts

    def histogram(self, engine: Engine, prompts: Sequence[list[int]] | None = None) -> list[int]:
        """The acceptance histogram of an engine that answers the prompts."""
        before = metrics_of(engine).acceptance_histogram
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
        outputs = engine.generate(list(prompts or self.prompts), params)
        if prompts is None:
            assert [list(output.outputs[0].token_ids) for output in outputs] == self.answers
        after = metrics_of(engine).acceptance_histogram
        return [b - a for a, b in zip(before, after, strict=True)]


@pytest.fixture(scope="module")
def trained(
    target_of: Callable[[str], Path], trained_head: Callable[[str], Path]
) -> Callable[[str], Trained]:
    texts = train_heads.ToyLanguage().texts(NUM_PROMPTS, 60, seed=21).tolist()
    prompts = [text[: 5 + 2 * i] for i, text in enumerate(texts)]
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)

    @functools.cache
    def answered(target: Path) -> tuple[head_oracles.Target, list[list[int]]]:
        with Engine(target, dtype="float32", max_model_len=192) as engine:
            outputs = engine.generate(prompts, params)
        return head_oracles.Target(target), [list(o.outputs[0].token_ids) for o in outputs]

    def make(name: str) -> Trained:
        variant = make_heads.HEADS[train_heads.TRAINED[name]]
        directory = trained_head(name)
        target, answers = answered(target_of(name))
        oracle = head_oracles.load(variant.kind, directory, target)
        return Trained(target_of(name), directory, variant.method, oracle, prompts, answers)

    return make


@pytest.mark.parametrize("method", WITH_PARD)
def test_the_oracle_foretells_what_is_accepted(
    trained: Callable[[str], Trained], method: str
) -> None:
    head = trained(method)
    foretold = head.foretold()
    assert all(count > 0 for count in foretold)
    with head.engine() as engine:
        assert head.histogram(engine) == foretold
    for options in ({"max_num_seqs": 3}, {"max_num_batched_tokens": 16, "max_num_seqs": 1}):
        with head.engine(**options) as engine:
            assert head.histogram(engine) == foretold, options


@pytest.mark.parametrize("method", WITH_PARD)
def test_features_come_back_with_cached_blocks(
    trained: Callable[[str], Trained], method: str
) -> None:
    """After hits of whole prompts, and of prompts that go on otherwise, drafts are as good."""
    head = trained(method)
    foretold = head.foretold()
    others = [[*prompt[:33], 5, 9, 14] for prompt in head.prompts[14:]]
    with head.engine(enable_prefix_caching=True, block_size=16) as engine:
        head.histogram(engine, others)  # leaves blocks that the prompts begin with
        for _ in range(2):
            assert head.histogram(engine) == foretold


@pytest.mark.parametrize("method", METHODS)
def test_features_of_another_token_are_noticed(
    trained: Callable[[str], Trained], method: str
) -> None:
    """Planted fault: rows read the features of one token further back."""
    head = trained(method)

    def shifted(text: Tensor) -> Tensor:
        features = head.oracle.features(text)
        return torch.cat([features[:1], features[:-1]])

    with head.engine() as engine:
        assert head.histogram(engine) != head.foretold(shifted)


@pytest.mark.parametrize("method", METHODS)
def test_stale_features_are_noticed(trained: Callable[[str], Trained], method: str) -> None:
    """Planted fault: after a hit the blocks of a prompt hold features of another text.

    Heads that read the root's features alone notice only where the root follows such a block.
    """
    head = trained(method)
    other = train_heads.ToyLanguage().texts(1, 64, seed=3)[0]

    def stale(text: Tensor) -> Tensor:
        features = head.oracle.features(text).clone()
        cached = features.shape[0] - MAX_TOKENS
        features[:cached] = head.oracle.features(other)[:cached]
        return features

    with head.engine() as engine:
        head.histogram(engine)
        again = head.histogram(engine)
    assert again == head.foretold()
    assert again != head.foretold(stale)


@pytest.mark.parametrize("method", WITH_PARD)
def test_branches_past_the_first_child_are_accepted(
    trained: Callable[[str], Trained], method: str
) -> None:
    """Where a head's second or third choice is right, a tree of width 3 brings it in one step."""
    head = trained(method)
    num_found = 0
    for prompt, answer in zip(head.prompts, head.answers, strict=True):
        for length in range(1, MAX_TOKENS - 3):
            text = prompt + answer[:length]
            tree = head.oracle.tree(text, width=3, levels=1, num_nodes=3)
            children = [node.token for node in tree]
            if answer[length] not in children[1:]:
                continue
            num_found += 1
            # The first token comes from the prompt's pass and is the root of the only tree.
            params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
            with head.engine(tokens=1, width=3) as engine:
                output = engine.generate([text[:-1]], params)[0]
                assert list(output.outputs[0].token_ids) == answer[length - 1 : length + 2]
                assert metrics_of(engine).acceptance_histogram == [0, 1]
            break
    assert num_found >= 3


def test_a_head_that_is_not_asked_for_a_while_catches_up(
    trained: Callable[[str], Trained],
) -> None:
    """Requests without drafts leave blocks whose features, but no keys of the head, are there."""
    head = trained("eagle3")
    params = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, num_speculative_tokens=0
    )
    with head.engine(block_size=16) as engine:
        engine.generate(head.prompts, params)
        assert sum(metrics_of(engine).acceptance_histogram) == 0
        assert head.histogram(engine) == head.foretold()


def test_drafts_of_the_engine_are_those_of_the_probe(trained: Callable[[str], Trained]) -> None:
    """_core_testing.drafted_tree, by which other tests compare drafts, drafts as an engine does."""
    head = trained("eagle3")
    drafter = _core.DrafterConfig(
        method=head.method, model=str(head.directory), quantization="none"
    )
    speculative = _core.SpeculativeConfig(num_speculative_tokens=NUM_DRAFTS, drafters=[drafter])
    config = _core.EngineConfig(model=str(head.target), dtype="float32", speculative=speculative)
    for prompt in head.prompts[:5]:
        assert _core_testing.drafted_tree(config, prompt)[0] == head.oracle.chain(
            prompt, NUM_DRAFTS
        )
