"""A head begins with the weights of an existing one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import training_runs
from specdec_lab.training.batch import Batch
from specdec_lab.training.errors import TrainingError
from specdec_lab.training.export import write_head
from specdec_lab.training.head_methods import METHODS, make_head
from specdec_lab.training.heads.base import TrainableHead
from specdec_lab.training.heads.eagle3 import Eagle3
from specdec_lab.training.heads.span import SpanHead
from specdec_lab.training.start_from import start_from
from specdec_lab.training.target import TargetWeights
from specdec_lab.training.training_options import TrainingOptions
from specdec_lab.training.training_run import train_head

pytestmark = pytest.mark.usefixtures("one_torch_thread")

VOCAB_SIZE = 160
SOME_IDS = torch.arange(0, VOCAB_SIZE, 2)
OTHER_IDS = torch.arange(40, 120)

LAYERS = {"num_layers": 2}
OWN_ROWS = {"train_lm_head": True}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle3": ("eagle3", {}),
    "eagle3_own_rows": ("eagle3", OWN_ROWS),
    "eagle3_two_layers": ("eagle3", LAYERS),
    "eagle": ("eagle", LAYERS),
    "medusa": ("medusa", LAYERS),
    "medusa_own_rows": ("medusa", {**LAYERS, **OWN_ROWS}),
    "mlp_speculator": ("mlp_speculator", {}),
    "parallel": ("parallel", {}),
    "dflash": ("dflash", {**LAYERS, **OWN_ROWS}),
    "dspark": ("dspark", {"num_layers": 1, "markov_rank": 8}),
}
Make = Callable[..., TrainableHead]


@pytest.fixture
def make(checkpoint: Callable[[str], Path]) -> Make:
    """Heads of random weights, and inputs of random sizes."""

    def made(name: str, seed: int, ids: Tensor = SOME_IDS, **options: Any) -> TrainableHead:
        method, given = FORMS[name]
        if METHODS[method].scores_all:
            ids = torch.arange(VOCAB_SIZE)
        training = TrainingOptions(method=method, max_depth=2, **{**given, **options})
        head = make_head(training, TargetWeights.load(checkpoint("llama")), ids)
        generator = torch.Generator().manual_seed(seed)
        head.initialise(generator)
        with torch.no_grad():
            for parameter in head.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
            if isinstance(head, Eagle3 | SpanHead):
                head.tap_sizes.copy_(torch.rand(head.num_taps, generator=generator) + 0.5)
        return head

    return made


def logits(head: TrainableHead) -> list[Tensor]:
    """Of each depth, for the same text."""
    generator = torch.Generator().manual_seed(9)
    num_taps = 1 + len(head.tap_layers(head.target.num_layers))
    states = torch.randn(2, 12, num_taps, head.target.hidden_size, generator=generator)
    token_ids = torch.randint(VOCAB_SIZE, (2, 12), generator=generator)
    batch = Batch(token_ids, torch.ones(2, 12, dtype=torch.bool), states)
    with torch.no_grad():
        outputs = head.outputs(batch, torch.Generator().manual_seed(1))
    scores = []
    for output in outputs:
        products = [(output.hidden, output.lm_head_weight)]
        products += [] if output.added is None else [output.added]
        scores.append(torch.stack([state @ weight.T for state, weight in products]).sum(0))
    return scores


@pytest.mark.parametrize("layout", ["common", "speculators"])
@pytest.mark.parametrize("name", FORMS)
def test_it_computes_what_the_other_head_does(
    make: Make, tmp_path: Path, name: str, layout: str
) -> None:
    method = FORMS[name][0]
    if layout not in METHODS[method].layouts:
        layout = "common"
    first, second = make(name, seed=1), make(name, seed=2)
    write_head(first.files(layout), tmp_path, "float32")
    expected = logits(first)
    assert not torch.allclose(logits(second)[0], expected[0], atol=0.1)
    start_from(second, method, tmp_path)
    for one, other in zip(logits(second), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["eagle3_own_rows", "medusa_own_rows"])
def test_rows_go_with_their_tokens(make: Make, tmp_path: Path, name: str) -> None:
    first, second = make(name, seed=1), make(name, seed=2, ids=OTHER_IDS)
    before = own_rows(second)
    write_head(first.files("common"), tmp_path, "float32")
    start_from(second, FORMS[name][0], tmp_path)
    for mine, theirs, kept in zip(own_rows(second), own_rows(first), before, strict=True):
        for place, token in enumerate(OTHER_IDS.tolist()):
            shared = (token == SOME_IDS).nonzero().flatten().tolist()
            assert torch.equal(mine[place], theirs[shared[0]] if shared else kept[place])


def own_rows(head: TrainableHead) -> list[Tensor]:
    return [w.detach().clone() for n, w in head.named_parameters() if n.startswith("lm_head")]


def change_config(directory: Path, **changes: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def without_a_norm(directory: Path) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    del tensors["norm.weight"]
    save_file(tensors, file)


def with_a_bias(directory: Path) -> None:
    file = directory / "model.safetensors"
    save_file({**load_file(file), "fc.bias": torch.zeros(4)}, file)


def with_four_taps(directory: Path) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["fc.weight"] = torch.cat([tensors["fc.weight"]] * 2, 1)
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: change_config(d, norm_before_residual=True), "norm_before_residual is True, "),
        (lambda d: change_config(d, rope_theta=7.0), "rope_theta is 7.0, that of the training"),
        (without_a_norm, "it lacks norm.weight"),
        (with_a_bias, "it has also fc.bias"),
        (with_four_taps, r"fc.weight is \[\d+, \d+\], that of the training \["),
    ],
)
def test_a_head_of_another_shape(
    make: Make, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    write_head(make("eagle3", seed=1).files("common"), tmp_path)
    spoil(tmp_path)
    head = make("eagle3", seed=2)
    before = {name: weight.clone() for name, weight in head.state_dict().items()}
    with pytest.raises(TrainingError, match=message):
        start_from(head, "eagle3", tmp_path)
    for name, weight in head.state_dict().items():
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize(
    ("written", "wanted", "message"),
    [
        ("medusa", "eagle3", "its method is medusa, that of the training eagle3"),
        ("eagle3", "eagle3_two_layers", "num_hidden_layers is 1, that of the training 2"),
        ("eagle3", "parallel", "it lacks mask_features"),
        ("parallel", "eagle3", "it has also mask_hidden"),
        ("medusa_own_rows", "medusa", "it has also lm_heads.0.weight"),
    ],
)
def test_a_head_of_another_method(
    make: Make, tmp_path: Path, written: str, wanted: str, message: str
) -> None:
    write_head(make(written, seed=1).files("common"), tmp_path)
    with pytest.raises(TrainingError, match=message):
        start_from(make(wanted, seed=2), FORMS[wanted][0], tmp_path)


def test_a_training_goes_on_from_a_head(toy_target: Path, tmp_path: Path) -> None:
    """Its first step has a lower loss than that of a new head."""
    first = training_runs.train_alone(toy_target, tmp_path)
    options = training_runs.options(
        start_from=str(first["out"] / "head"), learning_rate=1e-6, shallow=1.0
    )
    data = training_runs.data(None, first["store"], answer_tokens=0)
    second = tmp_path / "second"
    train_head(
        first["target"], second, options, data, measure=False, engine_options=training_runs.ENGINE
    )
    assert training_runs.losses(second)[0] < 0.9 * training_runs.losses(first["out"])[0]
