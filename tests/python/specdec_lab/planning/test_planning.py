"""Predictions of `specdec-native plan`: formulas against closed forms and simulations, costs
against machines that are made up."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from typing import Any

import pytest

from model_facts import facts_of
from specdec_lab.planning.costs import CostPoint, MeasuredCosts
from specdec_lab.planning.measure import Grid
from specdec_lab.planning.plan import RATES, WORTH_IT, Plan, predict
from specdec_lab.planning.plan_report import sentence, switch
from specdec_lab.planning.ranks import Link, RankCosts
from specdec_lab.planning.roofline import (
    Machine,
    decoding_point,
    observed_machine,
    prompt_point,
)
from specdec_lab.planning.speedup import (
    Acceptance,
    best_length,
    break_even_batch,
    break_even_rate,
    draft_count_shares,
    speedup,
    step_seconds,
)


@dataclasses.dataclass(frozen=True)
class Affine:
    """A machine on which a pass takes `fixed` seconds, and more for rows, requests and context."""

    fixed: float = 10.0
    per_row: float = 1.0
    per_token: float = 0.0
    draft: float = 0.0

    def target_seconds(self, batch: int, num_rows: float, context: int) -> float:
        return self.fixed + self.per_row * num_rows + self.per_token * batch * context

    def draft_seconds(self, batch: int, length: int, context: int) -> float:
        return self.draft * length


# -- formulas


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_tokens_of_a_chain_are_a_geometric_sum(rate: float, length: int) -> None:
    closed = length + 1 if rate == 1 else (1 - rate ** (length + 1)) / (1 - rate)
    assert Acceptance.chain(rate, length).tokens_per_step == pytest.approx(closed)


def test_shares_must_make_sense() -> None:
    for proposed, kept in (
        ((1.0,), ()),
        ((0.5,), (0.6,)),
        ((0.5, 0.6), (0.1, 0.1)),
        ((2.0,), (1,)),
    ):
        with pytest.raises(ValueError, match=r"positions|shares"):
            Acceptance(proposed, kept)


def test_cutting_keeps_the_first_positions() -> None:
    whole = Acceptance((0.8, 0.5, 0.5), (0.4, 0.3, 0.1))
    assert whole.cut(2) == Acceptance((0.8, 0.5), (0.4, 0.3)) and whole.cut(9) == whole
    assert whole.rate == 0.5 and Acceptance((), ()).rate == 0.0
    assert whole.length_shares() == pytest.approx([0.2, 0.3, 0.0, 0.5])


def test_drafts_of_a_batch_are_those_of_a_simulation() -> None:
    one = Acceptance((0.7, 0.7, 0.2), (0.1, 0.0, 0.0))
    shares = draft_count_shares(one, 3)
    counts = [0.0] * len(shares)
    for lengths in itertools.product(enumerate(one.length_shares()), repeat=3):  # every outcome
        probability = 1.0
        for _, share in lengths:
            probability *= share
        counts[sum(length for length, _ in lengths)] += probability
    assert shares == pytest.approx(counts) and sum(shares) == pytest.approx(1.0)


def test_a_step_costs_its_mean_over_the_drafts() -> None:
    """Where costs are linear in rows, only the mean number of drafts counts; a step in the costs
    is met by the share of steps that reach it."""
    some = Acceptance((0.5, 0.5), (0.2, 0.1))
    linear = Affine(draft=0.25)
    assert step_seconds(linear, some, 4, 1) == pytest.approx(10 + 4 * (1 + 1.0) + 2 * 0.25)

    class Cliff(Affine):
        def target_seconds(self, batch: int, num_rows: float, context: int) -> float:
            return 1.0 if num_rows <= 4 else 3.0

    # In a quarter of the steps both of two requests draft two tokens, which makes six rows.
    assert step_seconds(Cliff(), some, 2, 1) == pytest.approx(0.75 * 1.0 + 0.25 * 3.0)


def simulated_speedup(costs: Affine, some: Acceptance, batch: int, context: int) -> float:
    """By steps whose drafts are drawn one by one."""
    noise = random.Random(7)
    seconds = tokens = 0.0
    conditional = [k / p if p else 0 for k, p in zip(some.kept, some.proposed, strict=True)]
    for _ in range(20_000):
        rows = batch
        for _ in range(batch):
            length = noise.choices(range(some.length + 1), some.length_shares())[0]
            rows += length
            coin = noise.random()
            kept = 0
            # Position i of a draft that has it is kept, with all before, with its share.
            while kept < length and coin < conditional[kept]:
                kept += 1
            tokens += 1 + kept
        seconds += costs.target_seconds(batch, rows, context)
        seconds += costs.draft_seconds(batch, some.length, context)
    plain = batch / costs.target_seconds(batch, batch, context)
    return tokens / seconds / plain


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    "some",
    [
        Acceptance.chain(0.7, 4),
        Acceptance((0.6, 0.6, 0.3), (0.3, 0.2, 0.05)),
    ],
)
def test_speedups_are_those_of_a_simulation(some: Acceptance, batch: int) -> None:
    costs = Affine(fixed=10, per_row=0.7, per_token=0.001, draft=0.3)
    assert speedup(costs, some, batch, 100) == pytest.approx(
        simulated_speedup(costs, some, batch, 100), rel=0.01
    )


def test_the_best_length_is_that_of_all_lengths() -> None:
    costs = Affine(fixed=10, per_row=1, draft=0.5)
    for rate, batch in itertools.product(RATES, (1, 4, 32)):
        chain = Acceptance.chain(rate, 6)
        values = [1.0] + [speedup(costs, Acceptance.chain(rate, k), batch, 1) for k in range(1, 7)]
        best = best_length(costs, chain, batch, 1)
        assert best.length == values.index(max(values))
        assert best.speedup == pytest.approx(max(values))
    free = Affine(per_row=0.0)
    assert best_length(free, Acceptance.chain(0.5, 6), 1, 1).length == 6
    assert best_length(free, Acceptance.chain(0.0, 6), 1, 1).length == 0  # nothing is gained


def test_break_even_rates_are_the_closed_forms() -> None:
    # One draft pays where 1 + rate exceeds the ratio of the costs: (10 + 2 + 1) / (10 + 1).
    one = break_even_rate(Affine(draft=1.0), 1, 1, 1)
    assert one == pytest.approx(2 / 11, abs=1e-6)
    # Longer drafts never lower it where a draft always costs the same.
    assert break_even_rate(Affine(draft=1.0), 5, 1, 1) == pytest.approx(one)
    # With a fixed cost of drafting they do.
    assert break_even_rate(Affine(fixed=1, per_row=1.0, draft=5.0), 4, 1, 1) is None
    rate = break_even_rate(Affine(draft=0.2), 4, 8, 1)
    assert rate is not None
    assert best_length(Affine(draft=0.2), Acceptance.chain(rate + 1e-3, 4), 8, 1).length > 0
    assert best_length(Affine(draft=0.2), Acceptance.chain(rate - 1e-3, 4), 8, 1).length == 0


def test_the_break_even_batch_is_where_rows_cost_what_they_bring() -> None:
    # A draft brings 0.5 and costs 1 / (10 + B) of a step of B rows for each request: B < 10.
    costs = Affine()
    assert break_even_batch(costs, Acceptance.chain(0.5, 1), range(1, 40), 1) == 9
    assert break_even_batch(costs, Acceptance.chain(0.5, 1), range(1, 5), 1) == 4
    assert break_even_batch(costs, Acceptance.chain(0.0, 1), range(1, 5), 1) == 0


# -- costs


def test_measured_costs_are_those_of_the_machine_that_was_measured() -> None:
    machine = Affine(fixed=3.0, per_row=0.5, per_token=0.01, draft=0.7)
    grid = Grid([1, 4, 16], [100, 1000, 2000], 6)
    costs = MeasuredCosts(
        [
            CostPoint(
                b, k, c, machine.target_seconds(b, b * (k + 1), c), machine.draft_seconds(b, k, c)
            )
            for c, b in grid.points()
            for k in grid.lengths
        ]
    )
    for batch, rows, context in (
        *((1, 1, 100), (4, 16, 1000), (16, 16, 2000)),  # as measured
        *((2, 7, 100), (9, 31.5, 700), (16, 112, 1500)),  # between
        *((32, 64, 100), (24, 36, 4000)),  # beyond
    ):
        expected = machine.target_seconds(batch, rows, context)
        assert costs.target_seconds(batch, rows, context) == pytest.approx(expected)
    assert costs.draft_seconds(3, 5, 1200) == pytest.approx(3.5)
    assert costs.draft_seconds(3, 0, 1200) == 0.0


def test_a_grid_stays_affordable() -> None:
    grid = Grid([8, 1, 2], [4096, 16, 16384], 5)
    assert grid.lengths == [0, 1, 2, 3, 4, 5]
    assert grid.points() == [(16, 1), (16, 2), (16, 8), (4096, 2), (16384, 1)]


def test_more_rows_never_cost_less() -> None:
    seconds = [1.0, 3.0, 2.0, 2.5, 6.0]
    costs = MeasuredCosts([CostPoint(2, k, 16, s) for k, s in enumerate(seconds)])
    found = [costs.target_seconds(2, 2 * (1 + k), 16) for k in range(5)]
    assert found == pytest.approx([1.0, 2.5, 2.5, 2.5, 6.0])


def test_missing_points_are_named() -> None:
    with pytest.raises(ValueError, match="points must not be empty"):
        MeasuredCosts([])
    points = [CostPoint(1, 0, 16, 1.0), CostPoint(2, 0, 64, 1.0)]
    with pytest.raises(ValueError, match="batch 2, length 0 was measured at context 64"):
        MeasuredCosts(points)


# -- facts and rooflines

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def test_a_known_model_has_its_size() -> None:
    shape = facts_of(LLAMA_8B)
    # 8.03e9 parameters; the embedding's 128256 * 4096 are looked up, not multiplied.
    assert shape.pass_bytes(1, 1, 0) == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=1e-3)
    assert shape.pass_flops(1, 0) == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=1e-3)
    # 128 KiB of keys and values a token.
    more = shape.pass_bytes(3, 3, 1000) - shape.pass_bytes(3, 3, 0)
    assert more == 3 * 1000 * 128 * 1024
    assert shape.pass_flops(2, 10) - shape.pass_flops(2, 0) == 2 * 4 * 32 * 4096 * 10
    assert shape.pass_flops(2, 10) - shape.pass_flops(2, 10, 1) == 2 * 4096 * 128256


def test_a_roof_has_a_ridge() -> None:
    machine = Machine(bandwidth=100.0, flops=1000.0)
    assert machine.ridge == 10.0
    assert machine.seconds(200, 100) == 2.0 and machine.seconds(200, 5000) == 5.0
    for bandwidth, flops in ((0, 1), (1, 0), (-1, 1), (1, float("nan"))):
        with pytest.raises(ValueError, match="must be greater than 0"):
            Machine(bandwidth, flops)


def test_points_lie_under_the_roof_that_they_show() -> None:
    shape = facts_of(LLAMA_8B)
    points = [
        decoding_point(shape, 1, 1, 100, 0.2),
        decoding_point(shape, 8, 40, 100, 0.5),
        prompt_point(shape, 512, 4.0),
    ]
    assert [p.name for p in points] == ["decode", "verify", "prompt"]
    roof = observed_machine(points)
    for point in points:
        roof_there = min(roof.flops, point.intensity * roof.bandwidth)
        assert point.flops <= roof_there * (1 + 1e-9)
    assert points[0].intensity == pytest.approx(1.0, rel=0.05)  # 2 operations, 2 bytes a weight


def test_computed_costs_are_memory_then_operations() -> None:
    shape = facts_of(LLAMA_8B)
    costs = RankCosts(Machine(1e12, 1e14), Link(0.0, math.inf), shape)
    weights = shape.pass_bytes(0, 0, 0)
    assert costs.target_seconds(1, 1, 0) == pytest.approx(weights / 1e12, rel=1e-3)
    assert costs.target_seconds(1, 5, 0) == pytest.approx(costs.target_seconds(1, 1, 0), rel=1e-3)
    assert costs.target_seconds(1, 4096, 0) == pytest.approx(shape.pass_flops(4096, 0) / 1e14)
    assert costs.draft_seconds(1, 5, 0) == 0.0
    levels = dataclasses.replace(costs, drafter=shape)
    assert levels.draft_seconds(1, 5, 0) == pytest.approx(5 * weights / 1e12, rel=1e-3)
    rows = dataclasses.replace(costs, drafter=shape, passes="rows")
    assert rows.draft_seconds(1, 5, 0) == pytest.approx(weights / 1e12, rel=1e-3)
    one = dataclasses.replace(costs, drafter=shape, passes="one")
    assert rows.draft_seconds(1024, 8, 0) == pytest.approx(8 * one.draft_seconds(1024, 8, 0))
    # A free drafter on a machine that waits for memory brings what it gets accepted.
    chain = Acceptance.chain(0.5, 4)
    assert speedup(costs, chain, 1, 0) == pytest.approx(chain.tokens_per_step, rel=1e-2)


# -- plans


def plan_for(costs: Affine, acceptance: Acceptance | None, **fields: Any) -> Plan:
    batches, contexts, longest = [1, 4, 16], [100], 4
    defaults: dict[str, Any] = {
        "model": "MODEL",
        "speculation": {"method": "ngram"},
        "machine": Machine(1, 1),
        "is_measured": True,
        "facts": {},
        "points": [decoding_point(facts_of(LLAMA_8B), 1, 1, 100, 1.0)],
    }
    return Plan(
        batches=batches,
        contexts=contexts,
        longest=longest,
        acceptance=acceptance,
        **(defaults | fields),
        **predict(costs, batches, contexts, longest, acceptance),
    )


def test_a_plan_holds_what_formulas_say() -> None:
    costs = Affine()
    known = Acceptance.chain(0.55, 4)
    plan = plan_for(costs, known)
    for prediction in plan.predictions:
        chain = known if prediction.rate is None else Acceptance.chain(prediction.rate, 4)
        best = best_length(costs, chain, prediction.batch, 100)
        assert (prediction.length, prediction.speedup) == (best.length, best.speedup)
    assert len(plan.predictions) == 3 * (len(RATES) + 1)
    last = next(b for b in plan.last_batches if b.rate is None)
    assert best_length(costs, known, last.batch, 100).speedup > WORTH_IT
    assert best_length(costs, known, last.batch + 1, 100).speedup <= WORTH_IT
    written = json.loads(json.dumps(plan.to_json()))
    assert written["schema"] == 1 and written["points"][0]["intensity"] > 0
    assert written["costs"][0] == {
        **{"batch": 1, "length": 0, "context": 100, "target_seconds": 11.0, "draft_seconds": 0.0}
    }


def test_the_sentence_says_what_to_switch_on() -> None:
    assert sentence(plan_for(Affine(), Acceptance.chain(0.5, 4))).startswith(
        "Switch on --spec-method ngram --spec-tokens 2 up to 7 requests at a time, and leave it "
        "off above: with 1.75 tokens a step it is expected to decode 1.48 times as fast at batch 1."
    )
    everywhere = sentence(plan_for(Affine(per_row=0.01), Acceptance.chain(0.5, 4)))
    assert "at every batch size" in everywhere and "1.93 times as fast at batch" in everywhere
    off = sentence(plan_for(Affine(), Acceptance.chain(0.01, 4)))
    assert off.startswith("Leave speculation by ngram off") and "1.00x" in off
    unknown = sentence(plan_for(Affine(draft=1.0), None))
    assert "where more than 18% of its drafts are kept at batch 1, at batch 16 above" in unknown
    never = sentence(plan_for(Affine(draft=100.0), None))
    assert "no draft pays even if all are kept" in never


def test_what_to_switch_on_is_an_option_of_the_command_line() -> None:
    plan = plan_for(Affine(), None, speculation={"model": "HEAD"})
    assert switch(plan, 3) == "--spec-model HEAD --spec-tokens 3"
    plan.speculation = {"method": "ngram", "prompt_lookup_min": 2}
    option = switch(plan, 5)
    assert option.startswith("--speculative-config '")
    assert json.loads(option.split("'")[1]) == {**plan.speculation, "num_speculative_tokens": 5}
