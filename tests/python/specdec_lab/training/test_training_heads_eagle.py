"""Trained EAGLE heads compute what the transcriptions of their formulas and the engine do."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import head_oracles
import make_heads
from specdec_lab.training.batch import Batch, Example, collate
from specdec_lab.training.export import write_head
from specdec_lab.training.heads import eagle1, layers, parallel_eagle
from specdec_lab.training.heads.base import DepthOutput, TrainableHead
from specdec_lab.training.heads.eagle import EagleHead
from specdec_lab.training.heads.eagle1 import Eagle1
from specdec_lab.training.heads.eagle3 import Eagle3
from specdec_lab.training.heads.parallel_eagle import ParallelEagle
from specdec_lab.training.target import TargetWeights
from specdec_native import Engine, SamplingParams, _core, _core_testing
from specdec_native.speculation.drafter_options import TOKEN_MAP_FILE
from test_speculation_law import metrics_of

pytestmark = pytest.mark.usefixtures("one_torch_thread")

DEPTH = 4
LENGTHS = (24, 31, 17)
TEXTS = [[(7 * i * i + (3 + k) * i + 5) % 160 for i in range(n)] for k, n in enumerate(LENGTHS)]
TAP_SIZES = [0.5, 2.0, 1.5]
DRAFT_IDS = torch.randperm(160, generator=torch.Generator().manual_seed(5))[:96].sort().values

# Each with the options of its class, the kind of its oracle and the layout it is written in.
HEADS: dict[str, tuple[type[EagleHead], dict[str, Any], str, str]] = {
    "eagle": (Eagle1, {}, "eagle", "common"),
    "eagle_two_layers": (Eagle1, {"num_layers": 2}, "eagle", "common"),
    "eagle3": (Eagle3, {}, "eagle3", "common"),
    "eagle3_speculators": (Eagle3, {}, "eagle3", "speculators"),
    "eagle3_two_layers": (Eagle3, {"num_layers": 2}, "eagle3", "common"),
    "eagle3_speculators_two_layers": (Eagle3, {"num_layers": 2}, "eagle3", "speculators"),
    "p_eagle": (ParallelEagle, {}, "p_eagle", "speculators"),
    "p_eagle_two_layers": (ParallelEagle, {"num_layers": 2}, "p_eagle", "speculators"),
}


@dataclasses.dataclass(frozen=True)
class Written:
    """A head of random weights, and its checkpoint in float32 as others read it."""

    head: EagleHead
    target: Path
    directory: Path
    oracle: head_oracles.EagleHead
    method: str

    def batch(self, texts: Sequence[Sequence[int]] = TEXTS) -> Batch:
        return batch_of(self.head, self.oracle.target, texts)

    def config(self) -> _core.EngineConfig:
        drafter = _core.DrafterConfig(
            method=self.method,
            model=str(self.directory),
            quantization="none",
            parallel_drafting=isinstance(self.head, ParallelEagle),
            speculative_token_map=self.oracle.token_ids.tolist() if self.method == "eagle" else [],
        )
        speculative = _core.SpeculativeConfig(num_speculative_tokens=DEPTH, drafters=[drafter])
        return _core.EngineConfig(model=str(self.target), dtype="float32", speculative=speculative)


Writer = Callable[..., Written]


def batch_of(
    head: TrainableHead, target: head_oracles.Target, texts: Sequence[Sequence[int]]
) -> Batch:
    """In which every token is of an answer, and one past the longest text is padding."""
    examples = []
    for text in texts:
        tokens = torch.tensor(text)
        states = target.states(tokens)
        taps = [*head.tap_layers(target.num_layers), target.num_layers]
        stacked = torch.stack([states[layer] for layer in taps], 1)[:-1]
        examples.append(Example(tokens, torch.ones(len(tokens), dtype=torch.bool), stacked))
    return collate(examples, max_tokens=100)


def randomise(head: TrainableHead) -> None:
    """As make_heads does: weights of which every one matters."""
    shapes = {name: tuple(tensor.shape) for name, tensor in head.named_parameters()}
    head.load_state_dict(make_heads.random_tensors(shapes), strict=True)


def load_oracle(kind: str, directory: Path, target: head_oracles.Target) -> head_oracles.EagleHead:
    is_cut = (directory / TOKEN_MAP_FILE).exists()
    oracle = CutEagle1(directory, target) if is_cut else head_oracles.load(kind, directory, target)
    assert isinstance(oracle, head_oracles.EagleHead)
    return oracle


class CutEagle1(head_oracles.Eagle1):
    """Whose file says which tokens to draft."""

    def __init__(self, directory: Path, target: head_oracles.Target) -> None:
        super().__init__(directory, target)
        self.token_ids = torch.tensor(json.loads((directory / TOKEN_MAP_FILE).read_text()))

    def run(
        self, ids: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits, below = super().run(ids, states, positions, visible)
        return logits[..., self.token_ids], below


@pytest.fixture(autouse=True)
def all_rows_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eagle1, "_NOISE", 0.0)
    monkeypatch.setattr(parallel_eagle, "_KEPT_SHARE", 1.0)


@pytest.fixture(scope="module")
def written(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Writer:
    targets: dict[str, head_oracles.Target] = {}
    made: dict[tuple[str, str], Written] = {}

    def make(name: str, target: str = "llama_deep") -> Written:
        if target not in targets:
            targets[target] = head_oracles.Target(checkpoint(target))
        if (name, target) not in made:
            kind, options, oracle_kind, layout = HEADS[name]
            weights = TargetWeights.load(checkpoint(target))
            head = kind(weights, DRAFT_IDS, DEPTH, **options)
            randomise(head)
            if isinstance(head, Eagle3):
                head.tap_sizes.copy_(torch.tensor(TAP_SIZES))
            directory = tmp_path_factory.mktemp("trained") / name
            write_head(head.files(layout), directory, "float32")
            oracle = load_oracle(oracle_kind, directory, targets[target])
            method = "eagle" if oracle_kind == "eagle" else "eagle3"
            made[name, target] = Written(head, checkpoint(target), directory, oracle, method)
        return made[name, target]

    return make


def training_time_logits(oracle: head_oracles.EagleHead, text: Tensor, depth: int) -> list[Tensor]:
    """Logits of the rows of each step of a training-time test, over one mask of all steps."""
    rows = len(text) - 1
    ids, positions = text[1:], torch.arange(1, rows + 1)
    states = oracle.fuse(oracle.features(text)[:-1])
    diagonal = torch.eye(rows, dtype=torch.bool)
    visible = torch.ones(rows, rows, dtype=torch.bool).tril()
    for d in range(1, depth):
        if isinstance(oracle, head_oracles.ParallelEagle):
            below = oracle.mask_state().expand(rows, -1)
            ids = torch.cat([ids, torch.full((rows,), oracle.mask_token)])
        else:
            below = oracle.run(ids, states, positions, visible)[1][-rows:]
            ids = torch.cat([ids, F.pad(text[1 + d :], (0, d))])
        states = torch.cat([states, below])
        positions = torch.cat([positions, torch.arange(1, rows + 1) + d])
        visible = torch.cat([F.pad(visible, (0, rows)), torch.cat([visible[-rows:], diagonal], 1)])
    return list(oracle.run(ids, states, positions, visible)[0].chunk(depth))


def outputs_of(head: TrainableHead, batch: Batch) -> Sequence[DepthOutput]:
    with torch.no_grad():
        return head.outputs(batch, torch.Generator().manual_seed(1))


def largest_error(head: Written) -> float:
    """Between the logits of all rows of all steps and the oracle's."""
    batch = head.batch()
    width = batch.token_ids.shape[1]
    outputs = outputs_of(head.head, batch)
    assert len(outputs) == DEPTH
    worst = 0.0
    for example, text in enumerate(TEXTS):
        with torch.no_grad():
            expected = training_time_logits(head.oracle, torch.tensor(text), DEPTH)
        for depth, output in enumerate(outputs):
            is_mine = output.positions // width == example
            positions = output.positions[is_mine] % width
            # Row r of depth d is about the token at r + 2 + d; the text's last token is the last.
            assert positions.tolist() == list(range(1 + depth, len(text) - 1))
            given = F.linear(output.hidden[is_mine], output.lm_head_weight)
            wanted = expected[depth][positions - 1 - depth]
            assert wanted.std() > 0.5  # or an error would not be seen
            worst = max(worst, float((given - wanted).abs().max()))
    return worst


@pytest.mark.parametrize("name", HEADS)
def test_every_depth_is_the_oracles(written: Writer, name: str) -> None:
    assert largest_error(written(name)) < 1e-4


@pytest.mark.parametrize("name", HEADS)
def test_chains_are_the_oracles_at_every_root(written: Writer, name: str) -> None:
    head = written(name)
    drafts = head.head.draft(head.batch(), DEPTH)
    for example, text in enumerate(TEXTS):
        for root in range(1, len(text), 4):
            chain = head.oracle.chain(text[: root + 1], DEPTH)
            assert drafts[example, root].tolist() == chain


def check_engine(head: Written) -> None:
    drafts = head.head.draft(head.batch(), DEPTH)
    for example, text in enumerate(TEXTS):
        chain = drafts[example, len(text) - 1].tolist()
        assert _core_testing.drafted_tree(head.config(), text)[0] == chain
        if isinstance(head.head, ParallelEagle):  # whose engine has no logits of single rows
            continue
        logits = np.array(_core_testing.head_logits(head.config(), text, chain[:-1]), np.float32)
        expected = head.oracle.logits(text, chain[:-1]).numpy()
        assert np.abs(logits.reshape(expected.shape) - expected).max() < 1e-4


@pytest.mark.parametrize("name", HEADS)
def test_the_engine_reads_what_is_written(written: Writer, name: str) -> None:
    check_engine(written(name))


# Biases, scaled rotation and other sizes of the target are not the head's, or are.
@pytest.mark.parametrize(
    "target", ["qwen2", "qwen3", "llama_llama3", "llama_legacy", "llama_head_dim", "llama_biases"]
)
def test_other_targets(written: Writer, target: str) -> None:
    head = written("eagle3", target)
    assert largest_error(head) < 1e-4
    check_engine(head)


def test_rotation_that_is_off_by_one_is_noticed(
    written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: rows of later steps are rotated as those of the text are."""

    def rotate(x: Tensor, positions: Tensor, theta: float, rotary_dim: int) -> Tensor:
        return right(x, positions - positions[:, :1], theta, rotary_dim)

    right = layers.rotate
    monkeypatch.setattr(layers, "rotate", rotate)
    assert largest_error(written("eagle3")) > 1e-2


def test_a_mask_without_earlier_steps_is_noticed(
    written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: rows see the text and themselves, and none of their steps between."""

    monkeypatch.setattr(layers.StepCache, "later", property(lambda cache: cache._later[-1:]))
    assert largest_error(written("eagle3")) > 1e-2


def test_rows_of_parallel_heads_are_nested(
    written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A depth has 0.7 to its power of the first one's rows and at least a fifth, of the same."""
    monkeypatch.undo()
    head = written("p_eagle_two_layers")
    batch = head.batch()
    with torch.no_grad():
        whole = head.head.outputs(batch, torch.Generator().manual_seed(1))
    monkeypatch.setattr(parallel_eagle, "_KEPT_SHARE", 1.0)
    every = outputs_of(head.head, batch)
    width = batch.token_ids.shape[1]
    before = [set(range(n)) for n in LENGTHS]
    for d, (some, all_positions) in enumerate(zip(whole, every, strict=True)):
        is_there = torch.isin(all_positions.positions, some.positions)
        assert torch.allclose(all_positions.hidden[is_there], some.hidden, atol=1e-5)
        for example, length in enumerate(LENGTHS):
            positions = some.positions[some.positions // width == example] % width
            anchors = {position - d for position in positions.tolist()}
            assert anchors <= before[example]
            kept = math.ceil(max(0.7**d, 0.2) * (length - 2))
            assert kept - d <= len(anchors) <= kept  # the last anchors have no place at depth d
            before[example] = anchors


def test_prompts_and_padding_change_nothing(written: Writer) -> None:
    """Rows that nobody asks for are left out, which the others must not feel."""
    for name in ("eagle3_two_layers", "eagle"):
        head = written(name).head
        whole = written(name).batch()
        is_answer = torch.zeros_like(whole.is_answer)
        is_answer[0, 9:14] = is_answer[0, 20:24] = is_answer[1, 30] = True
        part = dataclasses.replace(whole, is_answer=is_answer)
        for all_rows, some in zip(outputs_of(head, whole), outputs_of(head, part), strict=True):
            scored = part.is_scored.flatten()[all_rows.positions]
            assert torch.equal(all_rows.positions[scored], some.positions)
            assert torch.allclose(all_rows.hidden[scored], some.hidden, atol=1e-5)


def test_eagle_regresses_the_targets_states(
    written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = written("eagle")
    batch = head.batch()
    wanted = batch.final_hidden.flatten(0, 1)
    for output in outputs_of(head.head, batch):
        assert output.extra_loss is not None
        error = (output.hidden - wanted[output.positions]).abs()
        smooth = torch.where(error < 1, error.square() / 2, error - 0.5)
        assert torch.allclose(output.extra_loss, 10 * smooth.mean(-1), rtol=1e-5)
    monkeypatch.setattr(eagle1, "_NOISE", 0.1)
    clean, noisy = batch.final_hidden[:, :-1], head.head.fuse(batch, torch.Generator())
    errors = (noisy - clean).abs().amax(-1) / clean.square().mean(-1).sqrt()
    assert 0.08 < float(errors.nanmean()) <= 0.1


def test_gradients_are_those_of_the_big_mask(written: Writer) -> None:
    """Gradients of a loss over all steps, by weights of the module and of the oracle."""
    head = written("eagle3_two_layers")
    text = torch.tensor(TEXTS[1])
    factors = torch.randn(96, generator=torch.Generator().manual_seed(8))
    outputs = head.head.outputs(head.batch([TEXTS[1]]), torch.Generator())
    loss = torch.stack(
        [(F.linear(o.hidden, o.lm_head_weight).tanh() @ factors).sum() for o in outputs]
    )
    head.head.zero_grad()
    loss.sum().backward()  # type: ignore[no-untyped-call]
    names = {head.oracle.stored_names[name]: name for name in head.oracle.weights}
    leaves = {
        name: weight.requires_grad_()
        for name, weight in head.oracle.weights.items()
        if weight.is_floating_point()
    }
    by_depth = training_time_logits(head.oracle, text, DEPTH)
    wanted = torch.stack(
        [(x[: len(text) - 2 - d].tanh() @ factors).sum() for d, x in enumerate(by_depth)]
    )
    wanted.sum().backward()  # type: ignore[no-untyped-call]
    num_compared = 0
    for name, parameter in head.head.named_parameters():
        if parameter.requires_grad:
            stored = name.replace("layers.0.", "midlayer.")
            expected = leaves[names[stored]].grad
            assert parameter.grad is not None
            assert expected is not None
            if name == "fc.weight":
                expected = expected / torch.tensor(TAP_SIZES).repeat_interleave(64)
            assert torch.allclose(parameter.grad, expected, rtol=1e-3, atol=1e-3), name
            num_compared += 1
    assert num_compared == 21
    for weight in leaves.values():
        weight.requires_grad_(False)


@pytest.mark.parametrize("name", ["eagle", "eagle3_two_layers", "p_eagle_two_layers"])
def test_bfloat16_is_float32_rounded(written: Writer, name: str) -> None:
    head, batch = written(name).head, written(name).batch()
    exact = outputs_of(head, batch)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = outputs_of(head, batch)
    for a, b in zip(exact, rounded, strict=True):
        wanted, given = (
            F.linear(a.hidden, a.lm_head_weight),
            F.linear(b.hidden.float(), b.lm_head_weight),
        )
        assert not torch.equal(wanted, given)
        assert float((wanted - given).square().mean().sqrt() / wanted.std()) < 0.1


def test_a_new_head_knows_how_large_states_are(checkpoint: Callable[[str], Path]) -> None:
    """The first token's are far larger than all others."""
    weights = TargetWeights.load(checkpoint("llama_deep"))
    rows = torch.full((9, 4, 64), 3.0) * torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None]
    rows[0] = 1e4
    example = Example(torch.zeros(10), torch.ones(10, dtype=torch.bool), rows)
    made = []
    for _ in range(2):
        head = Eagle3(weights, DRAFT_IDS, DEPTH)
        head.initialise(torch.Generator().manual_seed(0), [example])
        assert head.tap_sizes.tolist() == [3.0, 6.0, 12.0]
        made.append(dict(head.named_parameters()))
    assert all(torch.equal(weight, made[0][name]) for name, weight in made[1].items())


def test_config_says_what_readers_would_guess_otherwise(written: Writer) -> None:
    common = json.loads((written("eagle3").directory / "config.json").read_text())
    assert common["norm_before_residual"] is False
    assert common["rope_theta"] == common["rope_parameters"]["rope_theta"]
    assert not any(key.endswith("layer_ids") for key in common)
    nested = json.loads((written("eagle3_speculators").directory / "config.json").read_text())
    assert [nested[flag] for flag in make_heads.FLAGS] == [False] * 4
    assert nested["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]


def test_a_speculators_head_names_its_target(written: Writer) -> None:
    """So that the head alone is enough to start an engine."""
    head = written("eagle3_speculators")
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with Engine(head.target, dtype="float32") as engine:
        answer = engine.generate([TEXTS[0]], params)[0].outputs[0].token_ids
    always = {"draft_length_policy": "fixed"}
    with Engine(head.directory, dtype="float32", speculative_config=always) as engine:
        assert engine.generate([TEXTS[0]], params)[0].outputs[0].token_ids == answer
        assert sum(metrics_of(engine).acceptance_histogram) > 0


@pytest.mark.models
def test_a_real_target_in_bfloat16(smollm2: Path, tmp_path: Path) -> None:
    """Whose first token has states in the ten thousands; the weights are stored rounded."""
    head = Eagle3(TargetWeights.load(smollm2), torch.arange(0, 49152, 48), DEPTH)
    head.initialise(torch.Generator().manual_seed(2))
    head.load_state_dict({k: v.bfloat16().float() for k, v in head.state_dict().items()})
    write_head(head.files("common"), tmp_path)
    oracle = load_oracle("eagle3", tmp_path, head_oracles.Target(smollm2))
    real = Written(head, smollm2, tmp_path, oracle, "eagle3")
    text = [(7 * i * i + 31 * i + 5) % 20000 for i in range(40)]
    drafts = head.draft(real.batch([text]), DEPTH)[0, -1].tolist()
    with torch.no_grad():
        expected = oracle.logits(text, drafts[:-1])
    logits = torch.tensor(_core_testing.head_logits(real.config(), text, drafts[:-1])).view_as(
        expected
    )
    errors = (logits - expected).abs()
    assert torch.all(errors < 1e-4 * (expected.abs() + expected.std()))
    assert _core_testing.drafted_tree(real.config(), text)[0] == drafts
