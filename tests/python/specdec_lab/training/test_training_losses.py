"""Losses scored in pieces have the values and gradients of losses over all logits at once."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_lab.training import losses
from specdec_lab.training.heads.base import DepthOutput
from specdec_lab.training.losses import ROW_LOSSES, DepthLoss, score

pytestmark = pytest.mark.usefixtures("one_torch_thread")

POSITIONS, HIDDEN, VOCABULARY, DEPTHS = 90, 12, 33, 3
FACTORS = [1.0, 0.8, 0.64]


def lk(p: Tensor, q: Tensor) -> Tensor:
    accepted = torch.minimum(p, q).sum()
    weight = torch.exp(-3 * accepted).detach()
    return weight * (p * (p / q).log()).sum() + (1 - weight) * (1 - accepted)


# By the definitions, of a row's distributions p and q.
EXPECTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ce": lambda p, q: -(p * q.log()).sum(),
    "kl": lambda p, q: (p * (p / q).log()).sum(),
    "lk": lk,
    "l1": lambda p, q: -0.1 * (p * q.log()).sum() + 0.9 * (p - q).abs().sum(),
}


class Case:
    """Rows of three depths, at places that begin later and have gaps."""

    def __init__(self, *, shared: bool, trained: bool) -> None:
        generator = torch.Generator().manual_seed(4)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.final_hidden = randn(POSITIONS, HIDDEN)
        self.target_lm_head = randn(VOCABULARY, HIDDEN)
        self.is_counted = torch.rand(POSITIONS, generator=generator) < 0.7
        self.positions = [torch.arange(d, POSITIONS - 7 * d, 1 + d) for d in range(DEPTHS)]
        self.hidden = [randn(len(rows), HIDDEN).requires_grad_() for rows in self.positions]
        weights = [randn(VOCABULARY, HIDDEN).requires_grad_(trained) for _ in range(DEPTHS)]
        self.weights = [weights[0] if shared else weight for weight in weights]

    def leaves(self) -> list[Tensor]:
        unique = {id(weight): weight for weight in self.weights}
        return [*self.hidden, *(weight for weight in unique.values() if weight.requires_grad)]

    def outputs(self) -> list[DepthOutput]:
        rows = zip(self.hidden, self.positions, self.weights, strict=True)
        return [DepthOutput(*row) for row in rows]

    def score(self, name: str) -> list[DepthLoss]:
        return score(
            self.outputs(),
            self.final_hidden,
            self.target_lm_head,
            self.is_counted,
            ROW_LOSSES[name](),
        )

    def expected(self, name: str) -> list[Tensor]:
        """The loss of each depth, row by row."""
        sums = []
        for hidden, positions, weight in zip(
            self.hidden, self.positions, self.weights, strict=True
        ):
            loss = torch.zeros((), dtype=torch.float64)
            for row, position in enumerate(positions.tolist()):
                if self.is_counted[position]:
                    p = F.softmax(self.target_lm_head @ self.final_hidden[position], -1)
                    loss = loss + EXPECTED[name](p, F.softmax(weight @ hidden[row], -1))
            sums.append(loss)
        return sums


def gradients(depth_losses: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    total = torch.stack([f * x for f, x in zip(FACTORS, depth_losses, strict=True)]).sum()
    return list(torch.autograd.grad(total, leaves))


@pytest.mark.parametrize("piece", [7, 512])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ROW_LOSSES)
def test_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, name: str, shared: bool, trained: bool, piece: int
) -> None:
    monkeypatch.setattr(losses, "_PIECE", piece)
    case = Case(shared=shared, trained=trained)
    given, wanted = [depth.loss for depth in case.score(name)], case.expected(name)
    for a, b in zip(given, wanted, strict=True):
        assert float(a.detach()) == pytest.approx(float(b.detach()), rel=1e-5)
    for a, b in zip(gradients(given, case.leaves()), gradients(wanted, case.leaves()), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-9)


def test_rows_and_matches_are_counted() -> None:
    case = Case(shared=False, trained=False)
    for depth, output in zip(case.score("ce"), case.outputs(), strict=True):
        counted = output.positions[case.is_counted[output.positions]]
        assert depth.num_rows == len(counted)
        best = (case.final_hidden[counted] @ case.target_lm_head.T).argmax(-1)
        hidden = output.hidden[case.is_counted[output.positions]]
        assert depth.num_matches == int(
            ((hidden @ output.lm_head_weight.T).argmax(-1) == best).sum()
        )


def test_no_position_is_counted() -> None:
    case = Case(shared=True, trained=True)
    case.is_counted[:] = False
    given = case.score("ce")
    assert [(depth.num_rows, depth.num_matches) for depth in given] == [(0, 0)] * DEPTHS
    for gradient in gradients([depth.loss for depth in given], case.leaves()):
        assert not gradient.any()


def test_extra_losses_are_added_where_rows_count() -> None:
    case = Case(shared=True, trained=False)
    plain = case.score("ce")
    extra = [hidden.square().sum(-1) for hidden in case.hidden]
    outputs = [
        DepthOutput(o.hidden, o.positions, o.lm_head_weight, more)
        for o, more in zip(case.outputs(), extra, strict=True)
    ]
    scored = score(
        outputs, case.final_hidden, case.target_lm_head, case.is_counted, ROW_LOSSES["ce"]()
    )
    for depth, before, more, positions in zip(scored, plain, extra, case.positions, strict=True):
        added = more[case.is_counted[positions]].sum()
        assert float((depth.loss - before.loss - added).detach()) == pytest.approx(0, abs=1e-4)
    first = torch.autograd.grad(scored[0].loss - plain[0].loss, case.hidden[0])[0]
    counted = case.is_counted[case.positions[0]]
    assert torch.allclose(first, 2 * case.hidden[0] * counted[:, None])


def test_a_second_product_is_added_to_the_scores() -> None:
    """As if states and weights were longer; gradients reach both parts."""
    case, generator = Case(shared=True, trained=True), torch.Generator().manual_seed(9)
    rank = 5
    matrix = torch.randn(VOCABULARY, rank, generator=generator, dtype=torch.float64)
    added = [
        torch.randn(len(rows), rank, generator=generator, dtype=torch.float64).requires_grad_()
        for rows in case.positions
    ]
    matrix.requires_grad_()
    leaves = [*case.leaves(), *added, matrix]

    def losses_of(outputs: list[DepthOutput]) -> list[Tensor]:
        scored = score(
            outputs, case.final_hidden, case.target_lm_head, case.is_counted, ROW_LOSSES["l1"]()
        )
        return [depth.loss for depth in scored]

    given = losses_of(
        [
            dataclasses.replace(output, added=(states, matrix))
            for output, states in zip(case.outputs(), added, strict=True)
        ]
    )
    joined = losses_of(
        [
            DepthOutput(
                torch.cat([output.hidden, states], -1),
                output.positions,
                torch.cat([output.lm_head_weight, matrix], -1),
            )
            for output, states in zip(case.outputs(), added, strict=True)
        ]
    )
    for one, other in zip(given, joined, strict=True):
        assert float(one.detach()) == pytest.approx(float(other.detach()))
    for one, other in zip(gradients(given, leaves), gradients(joined, leaves), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_confidence_learns_the_chance_of_acceptance() -> None:
    case = Case(shared=True, trained=False)
    logits = [torch.linspace(-2, 2, len(rows), dtype=torch.float64) for rows in case.positions]
    for foretold in logits:
        foretold.requires_grad_()
    outputs = [
        dataclasses.replace(output, confidence=foretold)
        for output, foretold in zip(case.outputs(), logits, strict=True)
    ]
    plain = case.score("ce")
    scored = score(
        outputs, case.final_hidden, case.target_lm_head, case.is_counted, ROW_LOSSES["ce"]()
    )
    for d, (depth, before) in enumerate(zip(scored, plain, strict=True)):
        expected = torch.zeros_like(logits[d])
        for row, position in enumerate(case.positions[d].tolist()):
            if case.is_counted[position]:
                p = F.softmax(case.target_lm_head @ case.final_hidden[position], -1)
                q = F.softmax(case.weights[d] @ case.hidden[d][row], -1)
                chance, foretold = torch.minimum(p, q).sum(), logits[d][row].sigmoid()
                entropy = chance * foretold.log() + (1 - chance) * (1 - foretold).log()
                before.loss = before.loss - entropy.detach()
                expected[row] = (foretold - chance).detach()
        assert float(depth.loss.detach()) == pytest.approx(float(before.loss.detach()))
        (gradient,) = torch.autograd.grad(depth.loss, logits[d], retain_graph=True)
        assert torch.allclose(gradient, expected)


def test_products_in_bfloat16() -> None:
    """Values and gradients near those of float64, in the dtypes of what they are of."""
    case = Case(shared=True, trained=True)
    exact = [depth.loss for depth in case.score("kl")]
    rounded = score(
        case.outputs(),
        case.final_hidden,
        case.target_lm_head.bfloat16(),
        case.is_counted,
        ROW_LOSSES["kl"](),
    )
    for depth, wanted in zip(rounded, exact, strict=True):
        assert float(depth.loss.detach()) == pytest.approx(float(wanted.detach()), rel=0.02)
    given = gradients([depth.loss for depth in rounded], case.leaves())
    for one, other in zip(given, gradients(exact, case.leaves()), strict=True):
        assert one.dtype == torch.float64
        assert 0 < (one - other).norm() < 0.05 * other.norm()
