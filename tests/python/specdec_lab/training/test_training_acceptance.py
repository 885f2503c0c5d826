"""The trainer's acceptance of a head's drafts equals the engine's acceptance with its file."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import head_oracles
import train_heads
from specdec_lab.training.batch import Example, collate
from specdec_lab.training.engine_acceptance import measure_by_engine
from specdec_lab.training.export import write_head
from specdec_lab.training.head_methods import METHODS, make_head
from specdec_lab.training.heads.base import TrainableHead
from specdec_lab.training.losses import ROW_LOSSES, score
from specdec_lab.training.predicted_acceptance import Acceptance, evaluate
from specdec_lab.training.target import TargetWeights
from specdec_lab.training.training_options import TrainingOptions
from specdec_native import Engine, SamplingParams
from specdec_native.speculation.methods import METHODS as ENGINE_METHODS

pytestmark = pytest.mark.usefixtures("one_torch_thread")

DEPTH = 3
STEPS = 50
BY_ENGINE = [m for m in METHODS if METHODS[m].speculative["method"] in ENGINE_METHODS]
Examples = Callable[[Path, list[int]], list[Example]]


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """A function from a method to a target for its heads."""
    return lambda method: request.getfixturevalue("toy_hybrid" if method == "mtp" else "toy_target")


@pytest.fixture(scope="module")
def examples() -> Examples:
    """Texts with greedy answers of a target, and its states at some layers."""
    prompts = [
        t[: 4 + i % 9] for i, t in enumerate(train_heads.ToyLanguage().texts(90, 16, 21).tolist())
    ]
    params = SamplingParams(temperature=0, max_tokens=28, ignore_eos=True)

    @functools.cache
    def states_of(directory: Path) -> list[tuple[Tensor, list[Tensor]]]:
        with Engine(directory, dtype="float32", max_model_len=64) as engine:
            outputs = engine.generate(prompts, params)
        target = head_oracles.Target(directory)
        texts = [
            torch.tensor([*prompt, *output.outputs[0].token_ids])
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
        return [(text, target.states(text)) for text in texts]

    def make(directory: Path, taps: list[int]) -> list[Example]:
        made = []
        for prompt, (tokens, states) in zip(prompts, states_of(directory), strict=True):
            is_answer = torch.arange(len(tokens)) >= len(prompt)
            stacked = torch.stack([*(states[layer] for layer in taps), states[-1]], 1)
            made.append(Example(tokens, is_answer, stacked[:-1]))
        return made

    return make


def train(head: TrainableHead, examples: list[Example]) -> None:
    generator = torch.Generator().manual_seed(4)
    head.initialise(generator, examples[:4])
    optimiser = torch.optim.AdamW([p for p in head.parameters() if p.requires_grad], 5e-3)
    for step in range(STEPS):
        batch = collate([examples[(7 * step + 3 * i) % len(examples)] for i in range(12)], 64)
        depths = score(
            head.outputs(batch, generator),
            batch.final_hidden.flatten(0, 1),
            head.target.lm_head[head.draft_ids],
            batch.is_scored.flatten(),
            ROW_LOSSES["ce"](),
        )
        optimiser.zero_grad()
        torch.stack([depth.loss / max(depth.num_rows, 1) for depth in depths]).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def trained(method: str, given: list[Example], weights: TargetWeights) -> TrainableHead:
    options = TrainingOptions(method=method, max_depth=DEPTH, num_layers=1, anchor_share=0.5)
    every = torch.arange(len(weights.embedding))
    draft_ids = every if METHODS[method].scores_all else every[: train_heads.NUM_WORDS + 8]
    head = make_head(options, weights, draft_ids)
    train(head, given)
    return head


@pytest.mark.parametrize(
    ("method", "layout"),
    [*((method, "common") for method in BY_ENGINE), ("eagle3", "speculators")],
)
def test_the_engine_accepts_what_the_trainer_counts(
    target: Callable[[str], Path], examples: Examples, tmp_path: Path, method: str, layout: str
) -> None:
    directory = target(method)
    weights = TargetWeights.load(directory)
    given = examples(directory, METHODS[method].head_class().tap_layers(weights.num_layers))
    head = trained(method, given[24:], weights)
    counted = evaluate(head, given[:24], DEPTH, max_length=64, batch_tokens=512)
    assert counted.rates[0] > 0.2  # or little would be compared
    written = write_head(head.files(layout), tmp_path, "float32")
    measured = measure_by_engine(
        directory,
        {**METHODS[method].speculative, "model": str(written)},
        given[:24],
        DEPTH,
        max_length=64,
        dtype="float32",
    )
    assert measured.num_same_answers == measured.num_answers == 24
    assert measured.acceptance == counted


@pytest.mark.parametrize("method", ["dflash", "dspark"])
@pytest.mark.parametrize("layout", ["common", "speculators"])
def test_the_oracle_accepts_what_the_trainer_counts(
    toy_target: Path, examples: Examples, tmp_path: Path, method: str, layout: str
) -> None:
    """Step for step along the answers, with chains of the transcription over the written file."""
    weights = TargetWeights.load(toy_target)
    given = examples(toy_target, METHODS[method].head_class().tap_layers(weights.num_layers))
    head = trained(method, given[24:], weights)
    counted = evaluate(head, given[:8], DEPTH, max_length=64, batch_tokens=512)
    assert counted.rates[0] > 0.2
    written = write_head(head.files(layout), tmp_path, "float32")
    oracle = head_oracles.Dflash(written, head_oracles.Target(toy_target))
    proposed, accepted = [0] * DEPTH, [0] * DEPTH
    for example in given[:8]:
        tokens = example.token_ids.tolist()
        root = int(example.is_answer.nonzero()[0])
        while (num_drafts := min(DEPTH, len(tokens) - root - 2)) > 0:
            chain = oracle.chain(tokens[: root + 1], num_drafts)
            num_right = 0
            while num_right < num_drafts and chain[num_right] == tokens[root + 1 + num_right]:
                num_right += 1
            for d in range(DEPTH):
                proposed[d] += d < num_drafts
                accepted[d] += d < num_right
            root += num_right + 1
    assert counted == Acceptance(proposed, accepted)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_tokens", [3, 5])
def test_texts_shorter_than_a_draft(
    target: Callable[[str], Path], examples: Examples, method: str, num_tokens: int
) -> None:
    """Depths that reach past the text have no rows, and the others have theirs."""
    directory = target(method)
    weights = TargetWeights.load(directory)
    options = TrainingOptions(method=method, max_depth=8, anchor_share=1.0)
    head = make_head(options, weights, torch.arange(len(weights.lm_head)))
    generator = torch.Generator().manual_seed(4)
    given = examples(directory, head.tap_layers(weights.num_layers))[:2]
    head.initialise(generator, given)
    batch = collate(given, num_tokens)
    batch.is_answer[:, 1:] = True
    outputs = head.outputs(batch, generator)
    assert len(outputs) == 8
    most = [2 * max(num_tokens - 2 - depth, 0) for depth in range(8)]
    counts = [len(output.positions) for output in outputs]
    assert counts[0] == most[0] and counts[-1] == 0
    assert all(count <= limit for count, limit in zip(counts, most, strict=True))
    if method != "parallel":  # which trains only some of the rows
        assert counts == most
    assert head.draft(batch, 8).shape == (2, num_tokens, 8)
