"""Medusa heads and MLP speculators against their transcriptions and the engine."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import head_oracles
from specdec_lab.training.batch import Batch, Example, collate
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.export import write_head
from specdec_lab.training.heads.base import TrainableHead
from specdec_lab.training.heads.medusa import Medusa
from specdec_lab.training.heads.mlp_speculator import MlpSpeculator
from specdec_lab.training.losses import ROW_LOSSES, score
from specdec_lab.training.target import TargetWeights
from specdec_native import _core, _core_testing
from specdec_native.checkpoints.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("one_torch_thread")

VOCAB_SIZE = 160
DRAFT_IDS = torch.arange(0, VOCAB_SIZE, 2)
ALL_IDS = torch.arange(VOCAB_SIZE)
TEXTS = [[(7 * i * i + 3 * i + k) % VOCAB_SIZE for i in range(14 + 3 * k)] for k in range(3)]
ANSWERS_BEGIN = (4, 9, 6)


@dataclasses.dataclass(frozen=True)
class Form:
    """A head, how its files are called, and the engine's method."""

    method: str
    make: Callable[[TargetWeights], TrainableHead]


def medusa(draft_ids: Tensor = ALL_IDS, **options: Any) -> Form:
    return Form("medusa", lambda target: Medusa(target, draft_ids, 3, **options))


def mlp(max_depth: int = 3, **options: Any) -> Form:
    return Form("mlp_speculator", lambda t: MlpSpeculator(t, ALL_IDS, max_depth, **options))


FORMS = {
    "medusa": medusa(),
    "medusa_cut": medusa(DRAFT_IDS),
    "medusa_two_layers": medusa(num_layers=2),
    "medusa_own_rows": medusa(train_lm_head=True),
    "medusa_own_rows_cut": medusa(DRAFT_IDS, num_layers=2, train_lm_head=True),
    "mlp": mlp(),
    "mlp_untied": mlp(inner_dim=48, tie_weights=False),
    "mlp_unscaled": mlp(inner_dim=80, scale_input=False),
    "mlp_one_step": mlp(max_depth=1),
}


@dataclasses.dataclass(frozen=True)
class Case:
    form: Form
    target: Path
    head: TrainableHead
    directory: Path
    oracle: head_oracles.DraftHead
    batch: Batch

    def config(self) -> _core.EngineConfig:
        drafter = _core.DrafterConfig(
            method=self.form.method, model=str(self.directory), quantization="none"
        )
        speculative = _core.SpeculativeConfig(
            num_speculative_tokens=self.head.max_depth, drafters=[drafter]
        )
        return _core.EngineConfig(model=str(self.target), dtype="float32", speculative=speculative)


def disturb(head: TrainableHead) -> None:
    """Gives all weights values that matter."""
    generator = torch.Generator().manual_seed(3)
    head.initialise(generator)
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise, alpha=0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5)


def make_batch(oracle: head_oracles.Target) -> Batch:
    examples = []
    for text, begin in zip(TEXTS, ANSWERS_BEGIN, strict=True):
        tokens = torch.tensor(text, dtype=torch.int32)
        states = oracle.states(tokens.long())[-1][:-1, None]
        examples.append(Example(tokens, torch.arange(len(text)) >= begin, states))
    return collate(examples, max_tokens=18)


Cases = Callable[..., Case]


@pytest.fixture(scope="module")
def case(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Cases:
    def make(name: str, target: str = "llama") -> Case:
        form, directory = FORMS[name], tmp_path_factory.mktemp("head")
        oracle = head_oracles.Target(checkpoint(target))
        head = form.make(TargetWeights.load(checkpoint(target)))
        disturb(head)
        write_head(head.files("common"), directory, "float32")
        written = head_oracles.load(form.method, directory, oracle)
        return Case(form, checkpoint(target), head, directory, written, make_batch(oracle))

    return make


def seen_tokens(batch: Batch) -> list[list[int]]:
    return [batch.token_ids[e, : min(len(t), 18)].tolist() for e, t in enumerate(TEXTS)]


@pytest.mark.parametrize("name", FORMS)
def test_logits(case: Cases, name: str) -> None:
    made = case(name)
    outputs = made.head.outputs(made.batch, torch.Generator())
    assert len(outputs) == made.head.max_depth
    for depth, output in enumerate(outputs):
        positions, expected = [], []
        for e, tokens in enumerate(seen_tokens(made.batch)):
            for position in range(1 + depth, len(tokens) - 1):
                if position + 1 < ANSWERS_BEGIN[e]:
                    continue
                root = position - depth
                rows = made.oracle.logits(tokens[: root + 1], tokens[root + 1 : position + 1])
                positions.append(e * made.batch.token_ids.shape[1] + position)
                expected.append(rows[-1])
        assert output.positions.tolist() == positions
        logits = output.hidden @ output.lm_head_weight.T
        assert torch.stack(expected).std() > 0.3
        assert (logits - torch.stack(expected)).abs().max() < 1e-5


@pytest.mark.parametrize("name", FORMS)
def test_drafts(case: Cases, name: str) -> None:
    made = case(name)
    depth = made.head.max_depth
    drafts = made.head.draft(made.batch, depth)
    assert drafts.shape == (*made.batch.token_ids.shape, depth)
    for e, tokens in enumerate(seen_tokens(made.batch)):
        for root in range(1, len(tokens), 5):
            expected = made.oracle.chain(tokens[: root + 1], depth)
            if root < len(tokens) - 1:  # the last token's features are not in the batch
                assert drafts[e, root].tolist() == expected


@pytest.mark.parametrize("name", FORMS)
def test_the_engine_computes_the_same(case: Cases, name: str) -> None:
    made = case(name)
    text, drafts = TEXTS[2], [3, 140][: made.head.max_depth - 1]
    expected = made.oracle.logits(text, drafts).numpy()
    logits = np.array(_core_testing.head_logits(made.config(), text, drafts), np.float32)
    assert np.abs(logits.reshape(expected.shape) - expected).max() < 1e-4


@pytest.mark.parametrize("target", ["granite", "opt", "gpt_neox", "gemma3", "llama_tied"])
@pytest.mark.parametrize("name", ["medusa_cut", "mlp"])
def test_other_families(case: Cases, name: str, target: str) -> None:
    made = case(name, target)
    output = made.head.outputs(made.batch, torch.Generator())[0]
    width = made.batch.token_ids.shape[1]
    example, position = divmod(int(output.positions[-1]), width)
    expected = made.oracle.logits(made.batch.token_ids[example, : position + 1].tolist())[-1]
    logits = output.hidden[-1] @ output.lm_head_weight.T
    assert (logits - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name", FORMS)
def test_every_weight_learns(case: Cases, name: str) -> None:
    made = case(name)
    batch, ids = made.batch, made.head.draft_ids
    losses = []
    optimizer = torch.optim.AdamW(made.head.parameters(), lr=3e-3)
    for _ in range(12):
        optimizer.zero_grad()
        depths = score(
            made.head.outputs(batch, torch.Generator()),
            batch.final_hidden.flatten(0, 1),
            made.head.target.lm_head[ids],
            batch.is_scored.flatten(),
            ROW_LOSSES["kl"](),
        )
        loss = torch.stack([depth.loss for depth in depths]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter_name, parameter in made.head.named_parameters():
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.abs().max() > 0, parameter_name
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.75 * losses[0]


def test_medusa_starts_as_the_target(case: Cases) -> None:
    made = case("medusa_cut")
    made.head.initialise(torch.Generator())
    for output in made.head.outputs(made.batch, torch.Generator()):
        assert (output.lm_head_weight == made.head.target.lm_head[DRAFT_IDS]).all()
    # The first head reads the state before a place's.
    first = made.head.outputs(made.batch, torch.Generator())[0]
    assert (first.hidden == made.batch.final_hidden.flatten(0, 1)[first.positions - 1]).all()


def test_what_medusa_stores(case: Cases) -> None:
    names = set(load_file(case("medusa").directory / "model.safetensors"))
    assert names == {f"{d}.0.linear.{part}" for d in range(3) for part in ("weight", "bias")}
    stored = load_file(case("medusa_own_rows_cut").directory / "model.safetensors")
    assert stored["token_map"].tolist() == DRAFT_IDS.tolist()
    assert stored["lm_heads.2.weight"].shape == (len(DRAFT_IDS), 64)


def test_texts_shorter_than_the_depth(case: Cases) -> None:
    for name in ("medusa", "mlp"):
        made = case(name)
        whole = made.batch
        short = Batch(whole.token_ids[:, :2], whole.is_answer[:, :2], whole.states[:, :2])
        outputs = made.head.outputs(short, torch.Generator())
        assert sum(len(output.positions) for output in outputs) == 0
        assert made.head.draft(short, 5).shape == (3, 2, 5)


def test_refusals(case: Cases) -> None:
    target = case("mlp").head.target
    with pytest.raises(TrainingError, match="draft_vocab_size: 80, but an MLP speculator"):
        MlpSpeculator(target, DRAFT_IDS, 3)
    for name in ("mlp", "medusa"):
        with pytest.raises(TrainingError, match="layout: 'speculators'"):
            case(name).head.files("speculators")


@pytest.mark.parametrize(
    "target",
    [
        *("llama", "llama_tied", "llama_sharded", "llama_base", "llama_bfloat16", "qwen3"),
        *("opt", "opt_untied", "gpt_neox", "gpt_neox_base", "granite"),
        *("gemma2", "gemma3", "phi3", "olmo2", "mixtral", "qwen3_moe"),
    ],
)
def test_targets_weights(checkpoint: Callable[[str], Path], target: str) -> None:
    weights = TargetWeights.load(checkpoint(target))
    oracle = head_oracles.Target(checkpoint(target))
    tokens = torch.tensor(TEXTS[0])
    final_hidden = oracle.states(tokens)[-1]
    logits = final_hidden @ weights.lm_head.T
    cap = getattr(oracle.config, "final_logit_softcapping", None)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    assert (logits - oracle.logits(tokens)).abs().max() < 1e-4
    assert weights.num_layers == oracle.num_layers
    assert weights.hidden_size == final_hidden.shape[-1]


def test_layers_of_other_families_have_llamas_names(checkpoint: Callable[[str], Path]) -> None:
    llama = TargetWeights.load(checkpoint("llama")).layer(1)
    for target in ("phi3", "gemma3", "llama_base", "mistral"):
        layer = TargetWeights.load(checkpoint(target)).layer(1)
        assert layer.keys() >= llama.keys()
    model = head_oracles.Target(checkpoint("phi3")).model.model.layers[1]
    layer = TargetWeights.load(checkpoint("phi3")).layer(1)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    gate, up = x @ layer["mlp.gate_proj.weight"].T, x @ layer["mlp.up_proj.weight"].T
    out = (torch.nn.functional.silu(gate) * up) @ layer["mlp.down_proj.weight"].T
    assert (out - model.mlp(x)).abs().max() < 1e-5
    joined = torch.cat([layer[f"self_attn.{part}_proj.weight"] for part in "qkv"])
    assert (joined == model.self_attn.qkv_proj.weight).all()


def test_targets_that_cannot_be_read(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    tensors = load_file(checkpoint("llama") / "model.safetensors")
    config = json.loads((checkpoint("llama") / "config.json").read_text())

    def refuses(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            TargetWeights.load(tmp_path)

    refuses("config.json")
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": None}))
    refuses("num_hidden_layers: None")
    (tmp_path / "config.json").write_text(json.dumps(config))
    refuses("no .safetensors file")
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"no tensors")
    refuses("cannot be read")
    save_file({"other": torch.ones(2)}, file)
    refuses("no embedding")
    head = tensors.pop("lm_head.weight")
    save_file(tensors | {"lm_head.qweight": head.int()}, file)
    refuses("quantized")
    save_file(tensors | {"lm_head.weight": head.to(torch.int8)}, file)
    refuses("lm_head.weight is of int8")
    save_file(tensors | {"lm_head.weight": head[:, :8].contiguous()}, file)
    refuses(r"\[160, 8\]")
