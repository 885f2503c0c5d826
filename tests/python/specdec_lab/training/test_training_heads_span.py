"""Trained DFlash and DSpark heads compute what the transcription of their formulas does."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import head_oracles
import make_heads
from specdec_lab.training.batch import Batch, Example, collate
from specdec_lab.training.export import write_head
from specdec_lab.training.heads.base import DepthOutput
from specdec_lab.training.heads.dflash import DFlash
from specdec_lab.training.heads.dspark import DSpark
from specdec_lab.training.heads.span import SpanHead
from specdec_lab.training.losses import ROW_LOSSES, score
from specdec_lab.training.target import TargetWeights

pytestmark = pytest.mark.usefixtures("one_torch_thread")

DEPTH = 4
LENGTHS = (24, 31, 17)
TEXTS = [[(7 * i * i + (3 + k) * i + 5) % 160 for i in range(n)] for k, n in enumerate(LENGTHS)]
ANSWERS_BEGIN = (5, 12, 1)
TAP_SIZES = [0.5, 2.0, 1.5]
DRAFT_IDS = torch.randperm(160, generator=torch.Generator().manual_seed(5))[:96].sort().values
ALL_IDS = torch.arange(160)

# Each with its tokens, the options of its class and the layout it is written in.
HEADS: dict[str, tuple[type[SpanHead], Tensor, dict[str, Any], str]] = {
    "dflash": (DFlash, DRAFT_IDS, {"num_layers": 2}, "common"),
    "dflash_whole_vocabulary": (DFlash, ALL_IDS, {"num_layers": 1}, "common"),
    "dflash_speculators": (DFlash, DRAFT_IDS, {"num_layers": 1}, "speculators"),
    "dspark": (DSpark, DRAFT_IDS, {"num_layers": 2, "markov_rank": 12}, "common"),
    "dspark_whole_vocabulary": (DSpark, ALL_IDS, {"num_layers": 1, "markov_rank": 80}, "common"),
    "dspark_without_markov": (DSpark, DRAFT_IDS, {"num_layers": 1, "markov_rank": 0}, "common"),
    "dspark_speculators": (DSpark, DRAFT_IDS, {"num_layers": 1}, "speculators"),
}


@dataclasses.dataclass(frozen=True)
class Written:
    """A head of random weights, and its checkpoint in float32 as others read it."""

    head: SpanHead
    directory: Path
    target: head_oracles.Target
    batch: Batch

    @property
    def oracle(self) -> head_oracles.Dflash:
        return head_oracles.Dflash(self.directory, self.target)


Writer = Callable[..., Written]


def batch_of(head: SpanHead, target: head_oracles.Target) -> Batch:
    examples = []
    for text, begin in zip(TEXTS, ANSWERS_BEGIN, strict=True):
        tokens = torch.tensor(text)
        states = target.states(tokens)
        taps = [*head.tap_layers(target.num_layers), target.num_layers]
        stacked = torch.stack([states[layer] for layer in taps], 1)[:-1]
        examples.append(Example(tokens, torch.arange(len(text)) >= begin, stacked))
    return collate(examples, max_tokens=100)


@pytest.fixture(scope="module")
def written(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Writer:
    target = head_oracles.Target(checkpoint("llama_deep"))

    def make(name: str) -> Written:
        kind, draft_ids, options, layout = HEADS[name]
        head = kind(TargetWeights.load(checkpoint("llama_deep")), draft_ids, DEPTH, **options)
        shapes = {n: tuple(tensor.shape) for n, tensor in head.named_parameters()}
        head.load_state_dict(make_heads.random_tensors(shapes), strict=True)
        head.tap_sizes.copy_(torch.tensor(TAP_SIZES))
        if draft_ids is ALL_IDS:  # the file leaves the target's rows out
            head.load_state_dict({"lm_head": head.target.lm_head}, strict=False)
        directory = tmp_path_factory.mktemp(name)
        write_head(head.files(layout), directory, "float32")
        return Written(head, directory, target, batch_of(head, target))

    return make


def outputs_of(head: SpanHead, batch: Batch) -> Sequence[DepthOutput]:
    with torch.no_grad():
        return head.outputs(batch, torch.Generator().manual_seed(1))


def logits_of(output: DepthOutput) -> Tensor:
    logits = F.linear(output.hidden, output.lm_head_weight)
    return logits if output.added is None else logits + F.linear(*output.added)


@dataclasses.dataclass(frozen=True)
class Row:
    """What the oracle says of a row: its place in the batch, logits and its confidence's logit."""

    place: int
    logits: Tensor
    confidence: Tensor | None


def expected_rows(oracle: head_oracles.Dflash, batch: Batch) -> list[list[Row]]:
    """By depth, the rows of all spans, up to the end of their answers."""
    width = batch.token_ids.shape[1]
    rows: list[list[Row]] = [[] for _ in range(DEPTH)]
    for e, (text, begin) in enumerate(zip(TEXTS, ANSWERS_BEGIN, strict=True)):
        features = oracle.features(torch.tensor(text))
        for anchor in range(begin, len(text) - 1):
            span = oracle.span(torch.tensor(text[anchor]), features[:anchor])
            for d in range(min(DEPTH, len(text) - 1 - anchor)):
                previous = torch.tensor(text[anchor + d])
                has_markov = bool(oracle.config.get("markov_rank"))
                confidence = oracle.confidence(span[d], previous) if has_markov else None
                logits = oracle.score(span[d], previous)
                rows[d].append(Row(e * width + anchor + d, logits, confidence))
    return rows


def largest_error(written: Written, oracle: head_oracles.Dflash) -> float:
    """Between the logits of all rows and the oracle's, in shares of the logits' deviation."""
    worst = 0.0
    outputs = outputs_of(written.head, written.batch)
    assert len(outputs) == DEPTH
    with torch.no_grad():
        expected = expected_rows(oracle, written.batch)
    for output, rows in zip(outputs, expected, strict=True):
        assert output.positions.tolist() == [row.place for row in rows]
        wanted = torch.stack([row.logits for row in rows])
        error = (logits_of(output) - wanted).abs().max() / wanted.std()
        worst = max(worst, float(error))
    return worst


@pytest.mark.parametrize("name", HEADS)
def test_every_depth_is_the_oracles(written: Writer, name: str) -> None:
    made = written(name)
    assert largest_error(made, made.oracle) < 1e-4


def test_confidence_is_the_oracles(written: Writer) -> None:
    made = written("dspark")
    outputs = outputs_of(made.head, made.batch)
    with torch.no_grad():
        expected = expected_rows(made.oracle, made.batch)
    for output, rows in zip(outputs, expected, strict=True):
        assert output.confidence is not None
        wanted = torch.stack([row.confidence for row in rows if row.confidence is not None])
        assert wanted.std() > 0.3
        assert (output.confidence - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_the_oracles_chains(written: Writer, name: str) -> None:
    made = written(name)
    drafts = made.head.draft(made.batch, DEPTH)
    assert drafts.shape == (*made.batch.token_ids.shape, DEPTH)
    compared = 0
    for e, (text, begin) in enumerate(zip(TEXTS, ANSWERS_BEGIN, strict=True)):
        for root in range(begin, len(text) - 1, 3):
            assert drafts[e, root].tolist() == made.oracle.chain(text[: root + 1], DEPTH)
            compared += 1
    assert compared > 10


def test_drafts_do_not_depend_on_how_many_are_made_at_a_time(
    written: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written("dspark")
    whole = made.head.draft(made.batch, DEPTH)
    monkeypatch.setattr("specdec_lab.training.heads.span._DRAFTED_ANCHORS", 5)
    assert torch.equal(made.head.draft(made.batch, DEPTH), whole)


class Causal(head_oracles.Dflash):
    """A row of a span sees the rows before it alone."""

    def visible(self, num_text: int) -> Tensor:
        return super().visible(num_text).tril()


class Blind(head_oracles.Dflash):
    """The rows of a span do not see one another."""

    def visible(self, num_text: int) -> Tensor:
        total = num_text + self.block_size
        return super().visible(num_text) & (
            (torch.arange(total) < num_text) | torch.eye(total, dtype=torch.bool)
        )


class Shifted(head_oracles.Dflash):
    """Rows predict what those before them do."""

    def span(self, anchors: Tensor, features: Tensor) -> Tensor:
        return super().span(anchors, features).roll(1, 0)


class TapsTurned(head_oracles.Dflash):
    """The taps in another order."""

    def features(self, tokens: Tensor) -> Tensor:
        first, second, third = super().features(tokens).chunk(3, -1)
        return torch.cat([second, first, third], -1)


class FromOutputs(head_oracles.Dflash):
    """target_layer_ids read as if they named inputs."""

    def __init__(self, directory: Path, target: head_oracles.Target) -> None:
        super().__init__(directory, target)
        self.taps = [layer - 1 for layer in self.taps]


class NormedContext(head_oracles.Dflash):
    """The text's states pass the layers' norms, too."""

    def linear(self, x: Tensor, name: str) -> Tensor:
        if name.endswith(("k_proj", "v_proj")):
            text = x[: -self.block_size]
            normed = self.norm(text, f"{name.partition('.self_attn')[0]}.input_layernorm")
            x = torch.cat([normed, x[-self.block_size :]])
        return super().linear(x, name)


class WrongPrevious(head_oracles.Dflash):
    """The Markov head reads the anchor in every row."""

    def span(self, anchors: Tensor, features: Tensor) -> Tensor:
        self.anchor = anchors
        return super().span(anchors, features)

    def score(self, rows: Tensor, before: Tensor) -> Tensor:
        return super().score(rows, self.anchor)


@pytest.mark.parametrize("name", ["dflash", "dspark"])
@pytest.mark.parametrize("fault", [Causal, Blind, Shifted, TapsTurned, FromOutputs, NormedContext])
def test_planted_faults_are_noticed(
    written: Writer, name: str, fault: type[head_oracles.Dflash]
) -> None:
    made = written(name)
    assert largest_error(made, fault(made.directory, made.target)) > 1e-2


def test_a_markov_head_that_reads_the_anchor_is_noticed(written: Writer) -> None:
    made = written("dspark")
    assert largest_error(made, WrongPrevious(made.directory, made.target)) > 1e-2


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_a_span_reads_nothing_from_its_anchor_on(written: Writer, name: str) -> None:
    """Neither states of the anchor and after it, which do not exist yet, nor later tokens."""
    made, anchor = written(name), 14
    anchors = torch.tensor([[anchor]])
    whole = Batch(made.batch.token_ids[1:2], made.batch.is_answer[1:2], made.batch.states[1:2])
    changed = Batch(whole.token_ids.clone(), whole.is_answer, whole.states.clone())
    changed.token_ids[:, anchor + 1 :] = 3
    changed.states[:, anchor:] = 100.0
    before = Batch(whole.token_ids, whole.is_answer, whole.states.clone())
    before.states[:, anchor - 1] += 1.0
    with torch.no_grad():
        first, second, third = (
            made.head.hidden(batch, made.head.text(batch), anchors)
            for batch in (whole, changed, before)
        )
    assert torch.equal(first, second)
    assert (first - third).abs().max() > 1e-3


def test_a_part_of_the_spans_is_drawn(written: Writer) -> None:
    made = written("dspark")
    whole = [set(output.positions.tolist()) for output in outputs_of(made.head, made.batch)]
    made.head.anchor_share = 0.4
    possible = [n - 1 - begin for n, begin in zip(LENGTHS, ANSWERS_BEGIN, strict=True)]
    wanted = [-(-4 * count // 10) for count in possible]
    seen = set()
    for seed in range(3):
        with torch.no_grad():
            outputs = made.head.outputs(made.batch, torch.Generator().manual_seed(seed))
        first = outputs[0].positions
        width = made.batch.token_ids.shape[1]
        assert torch.bincount(first // width, minlength=3).tolist() == wanted
        assert all({*o.positions.tolist()} <= w for o, w in zip(outputs, whole, strict=True))
        assert all((o.positions.diff() > 0).all() for o in outputs)
        seen.add(tuple(first.tolist()))
    assert len(seen) == 3


@pytest.mark.parametrize("name", ["dflash", "dspark"])
@pytest.mark.parametrize("loss", ["ce", "l1"])
def test_gradients_are_finite_differences(written: Writer, name: str, loss: str) -> None:
    """In float64, by a step along every parameter.

    What the confidence head reads and is to foretell is held fixed, so its loss has a part in its
    own gradients alone.
    """
    made = written(name)
    head = made.head.double()
    for part in ("embedding", "lm_head"):
        object.__setattr__(head.target, part, getattr(head.target, part).double())
    batch = Batch(made.batch.token_ids, made.batch.is_answer, made.batch.states.double())

    def total(*, with_confidence: bool = True) -> Tensor:
        outputs = head.outputs(batch, torch.Generator().manual_seed(1))
        if not with_confidence:
            outputs = [dataclasses.replace(output, confidence=None) for output in outputs]
        depths = score(
            outputs,
            batch.final_hidden.flatten(0, 1),
            head.target.lm_head[head.draft_ids],
            batch.is_scored.flatten(),
            ROW_LOSSES[loss](),
        )
        return torch.stack([0.8**d * depth.loss for d, depth in enumerate(depths)]).sum()

    def moved(parameter: Tensor, step: Tensor, *, with_confidence: bool) -> float:
        with torch.no_grad():
            parameter.add_(step)
            value = float(total(with_confidence=with_confidence))
            parameter.sub_(step)
        return value

    total().backward()  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(2)
    for parameter_name, parameter in head.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None, parameter_name
        step = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slope = float((parameter.grad * step).sum())
        has_part = parameter_name.startswith("confidence_head")
        ahead, behind = (
            moved(parameter, sign * 1e-6 * step, with_confidence=has_part) for sign in (1, -1)
        )
        assert abs(slope) > 1e-3, parameter_name
        assert slope == pytest.approx((ahead - behind) / 2e-6, rel=1e-4, abs=1e-4), parameter_name


@pytest.mark.parametrize("name", HEADS)
def test_what_is_written(written: Writer, name: str) -> None:
    made = written(name)
    kind, draft_ids, options, layout = HEADS[name]
    stored = load_file(made.directory / "model.safetensors")
    is_cut, rank = len(draft_ids) < 160, int(options.get("markov_rank", 64))
    vocabulary = {"lm_head.weight", "d2t", "t2d"} if is_cut or layout == "speculators" else set()
    if layout == "speculators":
        vocabulary.add("embed_tokens.weight")
    layer = {
        *(f"self_attn.{p}_proj" for p in "qkvo"),
        *("self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"),
        *(f"mlp.{p}_proj" for p in ("gate", "up", "down")),
    }
    names = {f"layers.{i}.{n}.weight" for i in range(int(options["num_layers"])) for n in layer}
    names |= {"fc.weight", "hidden_norm.weight", "norm.weight", *vocabulary}
    if kind is DSpark:
        names |= {"confidence_head.proj.weight", "confidence_head.proj.bias"}
        assert stored["confidence_head.proj.weight"].shape == (1, 64 + rank)
        if rank:
            names |= {f"markov_head.markov_w{i}.weight" for i in (1, 2)}
            assert stored["markov_head.markov_w1.weight"].shape == (160, rank)
            assert stored["markov_head.markov_w2.weight"].shape == (len(draft_ids), rank)
    assert set(stored) == names
    config = made.oracle.config
    assert config["block_size"] == DEPTH + (kind is DFlash)
    assert config["draft_vocab_size"] == len(draft_ids)
    taps = made.head.tap_layers(made.target.num_layers)
    if layout == "speculators":
        assert config["aux_hidden_state_layer_ids"] == taps
        proposal = config["speculators_config"]["proposal_methods"][0]
        assert proposal["speculative_tokens"] == DEPTH
        assert config["transformer_layer_config"]["model_type"] == "qwen3"
    elif kind is DFlash:
        assert config["architectures"] == ["DFlashDraftModel"]
        assert config["dflash_config"] == {
            "target_layer_ids": [layer - 1 for layer in taps],
            "mask_token_id": 159,
        }
    else:
        assert config["architectures"] == ["Qwen3DSparkModel"]
        assert config["target_layer_ids"] == [layer - 1 for layer in taps]
        assert (config["mask_token_id"], config["markov_rank"]) == (159, rank)


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_training_begins_at_the_targets_layers(written: Writer, name: str) -> None:
    made = written(name)
    kind, draft_ids, options, _ = HEADS[name]
    weights = made.head.target
    head = kind(weights, draft_ids, DEPTH, **options)
    examples = [Example(torch.tensor(TEXTS[0]), torch.ones(24).bool(), made.batch.states[0, :23])]
    head.initialise(torch.Generator().manual_seed(0), examples)
    last = weights.layer(weights.num_layers - 1)
    layer = dict(head.layers[-1].named_parameters())
    assert torch.equal(layer["mlp.up_proj.weight"], last["mlp.up_proj.weight"])
    assert (layer["self_attn.q_norm.weight"] == 1).all()
    sizes = examples[0].states.square().mean(-1).median(0).values.sqrt()
    assert torch.allclose(head.tap_sizes, sizes[:3])
    if isinstance(head, DSpark):
        added = outputs_of(head, made.batch)[1].added
        assert added is not None
        assert added[0].std() > 0.1
        assert not F.linear(*added).any()
