"""Muon and AdamW: updates against their formulas, the schedule, and going on after a stop."""

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from specdec_lab.training.batch import Batch, Example
from specdec_lab.training.heads.base import DepthOutput, HeadFiles, TrainableHead
from specdec_lab.training.optimizers import (
    Optimizers,
    default_learning_rate,
    make_optimizers,
)
from specdec_lab.training.training_options import METHODS, OPTIMIZERS, TrainingOptions

pytestmark = pytest.mark.usefixtures("one_torch_thread")

Array = npt.NDArray[np.float64]
SHAPES = {"wide": (12, 40), "tall": (40, 12), "square": (16, 16)}
STEPS = 6


class Weights(TrainableHead):
    """Weights of every kind, and nothing that uses them."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        generator = torch.Generator().manual_seed(1)
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.norm = nn.Parameter(torch.ones(16))
        self.mask = nn.Parameter(torch.randn(1, 1, 24, generator=generator))
        self.lm_head = nn.Parameter(torch.randn(30, 16, generator=generator))
        self.emb = nn.ModuleList([nn.Embedding(30, 16)])
        self.fixed = nn.Parameter(torch.ones(4, 4), requires_grad=False)
        with torch.no_grad():
            self.emb[0].weight.normal_(generator=generator)  # type: ignore[operator]

    @classmethod
    def tap_layers(cls, num_layers: int) -> list[int]:
        raise NotImplementedError

    def initialise(self, generator: torch.Generator, examples: Sequence[Example] = ()) -> None:
        raise NotImplementedError

    def outputs(self, batch: Batch, generator: torch.Generator) -> Sequence[DepthOutput]:
        raise NotImplementedError

    def draft(self, batch: Batch, depth: int) -> Tensor:
        raise NotImplementedError

    def weights_of(self, tensors: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def files(self, layout: str) -> HeadFiles:
        raise NotImplementedError

    def values(self) -> dict[str, Array]:
        return {n: p.detach().double().numpy().copy() for n, p in self.named_parameters()}


def gradients(head: Weights, step: int) -> dict[str, Array]:
    """Sets other gradients for each step, of very different sizes; returns them."""
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in head.parameters():
        if parameter.requires_grad:
            scale = 10.0 ** (step % 3 - 1)
            parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    return {
        name: parameter.grad.double().numpy().copy()
        for name, parameter in head.named_parameters()
        if parameter.grad is not None
    }


def orthogonal_factor(matrix: Array) -> Array:
    """By four steps of the quintic, on the singular values."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / (values**4).sum() ** 0.25
    for _ in range(4):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return (left * values) @ right  # type: ignore[no-any-return]


class MuonByHand:
    def __init__(self) -> None:
        self.momentum: dict[str, Array] = {}

    def __call__(self, name: str, weight: Array, gradient: Array, rate: float) -> Array:
        before = self.momentum.get(name, np.zeros_like(gradient))
        after = self.momentum[name] = 0.95 * before + 0.05 * gradient
        update = orthogonal_factor(0.05 * gradient + 0.95 * after)
        return weight - rate * 0.2 * math.sqrt(max(weight.shape)) * update


class AdamByHand:
    def __init__(self) -> None:
        self.moments: dict[str, tuple[Array, Array, int]] = {}

    def __call__(self, name: str, weight: Array, gradient: Array, rate: float) -> Array:
        zeros = np.zeros_like(gradient)
        mean, square, step = self.moments.get(name, (zeros, zeros, 0))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
        self.moments[name] = mean, square, step + 1
        corrected = mean / (1 - 0.9 ** (step + 1))
        spread = np.sqrt(square / (1 - 0.95 ** (step + 1)))
        return weight - rate * corrected / (spread + 1e-8)


def rate_by_hand(step: int, highest: float, warmup: int, total: int) -> float:
    if step < warmup:
        return highest * (step + 1) / warmup
    return highest * math.cos(0.5 * math.pi * (step - warmup) / (total - warmup)) ** 2


def is_muons(name: str) -> bool:
    return name in SHAPES


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_updates(optimizer: str) -> None:
    options = TrainingOptions(optimizer=optimizer, learning_rate=0.03, warmup=0.3)
    head = Weights()
    optimizers = make_optimizers(head, options, STEPS)
    expected, muon, adam = head.values(), MuonByHand(), AdamByHand()
    for step in range(STEPS):
        rate = rate_by_hand(step, 0.03, warmup=2, total=STEPS)
        assert optimizers.rate == pytest.approx(rate)
        for name, gradient in gradients(head, step).items():
            rule = muon if optimizer == "muon" and is_muons(name) else adam
            expected[name] = rule(name, expected[name], gradient, rate)
        optimizers.step()
        assert all(parameter.grad is None for parameter in head.parameters())
    for name, value in head.values().items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=2e-5, err_msg=name)
    assert (head.fixed == 1).all()


def test_the_rate_ends_at_zero() -> None:
    optimizers = make_optimizers(Weights(), TrainingOptions(learning_rate=1.0, warmup=0.1), 20)
    rates = []
    for _ in range(20):
        rates.append(optimizers.rate)
        optimizers.step()
    assert rates[:2] == [0.5, 1.0]
    assert rates[2] == 1.0
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert 0 < rates[-1] < 0.02
    assert optimizers.rate == 0.0


def run(optimizers: Optimizers, head: Weights, steps: range) -> None:
    for step in steps:
        gradients(head, step)
        optimizers.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_going_on_gives_the_same_bits(optimizer: str) -> None:
    options = TrainingOptions(optimizer=optimizer, learning_rate=0.01, warmup=0.5)
    whole = Weights()
    run(make_optimizers(whole, options, STEPS), whole, range(STEPS))

    first = Weights()
    optimizers = make_optimizers(first, options, STEPS)
    run(optimizers, first, range(2))
    file = io.BytesIO()
    torch.save({"weights": first.state_dict(), "optimizers": optimizers.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    second = Weights()
    second.load_state_dict(saved["weights"])
    optimizers = make_optimizers(second, options, STEPS)
    optimizers.load_state_dict(saved["optimizers"])
    assert optimizers.num_steps == 2
    run(optimizers, second, range(2, STEPS))
    for name, value in whole.values().items():
        assert (second.values()[name] == value).all(), name


def test_a_state_of_other_optimizers_is_refused() -> None:
    options = TrainingOptions(optimizer="adamw")
    saved = make_optimizers(Weights(), options, STEPS).state_dict()
    muon = make_optimizers(Weights(), dataclasses.replace(options, optimizer="muon"), STEPS)
    with pytest.raises(ValueError, match="options of the first run"):
        muon.load_state_dict(saved)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_method_has_a_rate(method: str, optimizer: str) -> None:
    options = TrainingOptions(method=method, optimizer=optimizer)
    assert 1e-5 < default_learning_rate(options, Weights()) < 0.1
