"""Predictions of `specdec-native plan --devices`: against numbers that were computed by hand, and
which sizes there are, against the engine."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from model_facts import facts_of
from specdec_lab.planning.layouts import (
    Devices,
    LayoutPlan,
    layout_costs,
    predict_layouts,
)
from specdec_lab.planning.layouts_report import sentence
from specdec_lab.planning.ranks import Link, RankCosts
from specdec_lab.planning.roofline import Machine
from specdec_lab.planning.speedup import Acceptance

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
LLAMA_1B = SMALL | {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
LLAMA_70B = SMALL | {
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": False,
}
FAST = Machine(1e30, 1e30)
SLOW = Machine(1e9, 1e30)
LINK = Link(10e-6, 1e8)


# -- formulas


def test_a_pass_of_two_ranks() -> None:
    costs = RankCosts(SLOW, LINK, facts_of(SMALL, 2))
    layer = 2 * (2 * 512 * 64 * (4 + 2) + 3 * 512 * 512)
    cached = 101 * 2 * 2 * 64 * 2  # bytes of a layer: 100 tokens and the new one, of two KV heads
    read = 4 * (layer + cached) + 2 * 500 * 512
    # Two sums a layer, the embedding's row, the logits; the calls to run layers and to score.
    waits = 4 * 2 + 1 + 1 + 2
    received = 4 * (8 * 512 + 512 / 2 + 500)
    assert read == 10_156_032 and received == 19_408
    assert costs.step_seconds(1, 0, 100) == pytest.approx(10.156032e-3 + waits * 10e-6 + 194.08e-6)


def test_a_pass_of_two_stages() -> None:
    costs = RankCosts(SLOW, LINK, facts_of(SMALL, 1), num_stages=2)
    layer = 2 * (2 * 512 * 64 * (8 + 4) + 3 * 512 * 1024) + 101 * 2 * 4 * 64 * 2
    stages = [2 * layer / 1e9 + 10e-6, (2 * layer + 2 * 1000 * 512) / 1e9]
    assert costs.stage_seconds(1, 1, 100) == pytest.approx(stages)
    hop = 10e-6 + 4 * 512 / 1e8
    assert costs.step_seconds(1, 0, 100) == pytest.approx(sum(stages) + hop)
    # One request takes turns; of two groups the last stage is always busy.
    assert costs.step_seconds(2, 0, 100) == pytest.approx(2 * stages[1])


@pytest.mark.parametrize(
    ("latency", "rate", "rows", "microseconds"),
    [
        (5, 400, 1, {2: 5, 4: 5, 8: 5}),
        (5, 400, 8, {2: 5, 4: 6, 8: 7}),
        (5, 400, 64, {2: 8, 4: 13}),
        (10, 45, 1, {2: 10, 4: 11, 8: 13}),
        (10, 45, 8, {2: 13, 4: 19}),
        (8, 11, 1, {2: 9, 4: 12, 8: 18}),
        (35, 11, 64, {2: 130}),
    ],
)
def test_sums_of_4096_floats(
    latency: float, rate: float, rows: int, microseconds: dict[int, int]
) -> None:
    """Over NVLink, PCIe 5, and 100 GbE: RDMA, TCP."""
    config = LLAMA_70B | {"hidden_size": 4096, "vocab_size": 8, "num_hidden_layers": 1}
    link = Link(latency * 1e-6, rate * 1e9)
    for size, expected in microseconds.items():
        model = facts_of(config, size)
        assert model.num_exchanges == 3  # two sums, and the logits
        logits = link.seconds(4 * rows * 8 * (size - 1) / size)
        costs = RankCosts(FAST, link, model)
        calls = 2 * link.latency
        sums = costs.target_seconds(rows, rows, 0) - logits - calls
        assert round(sums / 2 * 1e6) == expected


# -- drafts


def test_drafting_on_more_ranks_pays_below_a_latency() -> None:
    machine = Machine(3.65e12, 1e30)

    def drafting(size: int, latency: float) -> RankCosts:
        link = Link(latency, 1e30)
        target = facts_of(LLAMA_70B, 4)
        return RankCosts(
            machine, link, target, drafter=facts_of(LLAMA_1B, size, quantization="none")
        )

    one = drafting(1, 0).draft_seconds(1, 1, 0)
    assert one == pytest.approx(677e-6, rel=2e-3) == drafting(1, 1).draft_seconds(1, 1, 0)
    # 16 layers: their sums, embedding, logits, two calls.
    waits = 2 * 16 + 1 + 1 + 2
    assert drafting(4, 0).draft_waits(1) == waits and drafting(1, 0).draft_waits(3) == 0
    for latency in (5e-6, 20e-6):
        shared_seconds = drafting(4, latency).draft_seconds(1, 1, 0)
        assert shared_seconds == pytest.approx(one / 4 + waits * latency, rel=2e-3)
    break_even = one * 3 / 4 / waits
    assert drafting(4, 0.98 * break_even).draft_seconds(1, 1, 0) < one
    assert drafting(4, 1.02 * break_even).draft_seconds(1, 1, 0) > one


# -- plans


def plan_of(devices: Devices, batches: list[int], rate: float | None = 0.7) -> LayoutPlan:
    targets = [facts_of(LLAMA_70B, size) for size in (1, 2, 4, 8)]
    drafters = [facts_of(LLAMA_1B, size, quantization="int8") for size in (1, 2, 4, 8)]
    acceptance = None if rate is None else Acceptance.chain(rate, 4)
    layouts = layout_costs(devices, targets, drafters if rate is not None else [], "levels")
    return LayoutPlan(
        model="MODEL",
        speculation={} if rate is None else {"model": "DRAFT"},
        devices=devices,
        batches=batches,
        contexts=[1000],
        acceptance=acceptance,
        **predict_layouts(layouts, devices, batches, [1000], acceptance),
    )


EIGHT = Devices(8, Machine(4.8e12, 9.89e14), Link(5e-6, 4e11))


def test_a_plan_has_every_layout() -> None:
    plan = plan_of(EIGHT, [1, 64])
    for batch in plan.batches:
        speeds = plan.at(batch, 1000)
        layouts = {
            (s.layout.tensor_parallel_size, s.layout.pipeline_parallel_size): s.layout.replicas
            for s in speeds
        }
        assert layouts == {
            (t, p): 8 // (t * p) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8) if t * p <= 8
        }
        assert len(speeds) == 4 * 1 + 3 * 2 + 2 * 3 + 1 * 4
        best = plan.best(batch, 1000)
        assert best.tokens_per_second == max(s.tokens_per_second for s in speeds)
        for speed in speeds:
            tokens = Acceptance.chain(0.7, speed.length).tokens_per_step
            rate = batch * tokens / speed.step_seconds
            assert speed.tokens_per_second == pytest.approx(rate)
    assert json.loads(json.dumps(plan.to_json()))["devices"]["count"] == 8


def test_better_devices_are_never_slower() -> None:
    plans = {
        "as it is": EIGHT,
        "latency": dataclasses.replace(EIGHT, link=Link(1e-6, 4e11)),
        "rate": dataclasses.replace(EIGHT, link=Link(5e-6, 8e11)),
        "bandwidth": dataclasses.replace(EIGHT, machine=Machine(9.6e12, 9.89e14)),
        "flops": dataclasses.replace(EIGHT, machine=Machine(4.8e12, 2e15)),
        "count": dataclasses.replace(EIGHT, count=16),
    }
    for batch in (1, 64, 512):
        speeds = {
            name: plan_of(devices, [batch]).best(batch, 1000).tokens_per_second
            for name, devices in plans.items()
        }
        assert min(speeds, key=lambda name: speeds[name]) == "as it is"
    slow = dataclasses.replace(EIGHT, link=Link(1.0, 4e11))
    layout = plan_of(slow, [64]).best(64, 1000).layout
    assert (layout.tensor_parallel_size, layout.pipeline_parallel_size) == (1, 1)
    assert layout.draft_tensor_parallel_size == 1


def test_draft_sizes_say_where_they_break_even() -> None:
    sizes = plan_of(EIGHT, [1]).draft_sizes
    assert [d.size for d in sizes] == [1, 2, 4, 8] and sizes[0].break_even_latency is None
    for draft in sizes[1:]:
        assert draft.break_even_latency is not None
        for factor, is_faster in ((0.98, True), (1.02, False)):
            link = Link(factor * draft.break_even_latency, EIGHT.link.rate)
            there = plan_of(dataclasses.replace(EIGHT, link=link), [1]).draft_sizes
            seconds = {d.size: d.seconds for d in there}
            assert (seconds[draft.size] < seconds[1]) is is_faster


def test_groups_of_requests_keep_stages_busy() -> None:
    """A large batch waits for operations, which the stages share."""
    target = facts_of(LLAMA_70B, 1)
    one = RankCosts(EIGHT.machine, EIGHT.link, target)
    eight = dataclasses.replace(one, num_stages=8)
    ratio = one.step_seconds(8192, 0, 10) / eight.step_seconds(8192, 0, 10)
    assert 6 < ratio < 8


def test_memory_leaves_layouts_out() -> None:
    limited = plan_of(dataclasses.replace(EIGHT, memory=80e9), [1])
    assert limited.too_large == [(1, 1)]
    # 70.6 billion weights of bfloat16.
    assert facts_of(LLAMA_70B, 1).memory_bytes(0) == pytest.approx(141e9, rel=2e-3)
    with pytest.raises(ValueError, match="--memory: no layout over 8 devices"):
        plan_of(dataclasses.replace(EIGHT, memory=10e9), [1])


def test_the_sentence_says_what_to_take() -> None:
    said = sentence(plan_of(EIGHT, [1, 64]))
    assert said.startswith("With 1 request take one engine with --tensor-parallel-size 8 ")
    assert '"draft_tensor_parallel_size": 8' in said
    assert " With 64 requests take 2 replicas with --tensor-parallel-size 4 " in said
    plain = sentence(plan_of(EIGHT, [1, 2], None))
    assert plain.startswith("With 1 to 2 requests take one engine with --tensor-parallel-size 8: ")
    assert "speculative" not in plain
    alone = sentence(plan_of(dataclasses.replace(EIGHT, link=Link(1.0, 1e9)), [8], None))
    assert alone.startswith("With 8 requests take 8 replicas on a device each, without drafts: ")


# -- the command

DEVICES = ("--bandwidth", 4800, "--flops", 989000, "--devices", 4)
OF_LINK = ("--link-latency", 5, "--link-rate", 400)


def test_it_plans_for_devices_that_are_not_here(tmp_path: Path) -> None:
    for name, config in (("target", SMALL | {"num_hidden_layers": 8}), ("draft", SMALL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    file = tmp_path / "plan.json"
    result = run(
        "plan", tmp_path / "target", "--draft", tmp_path / "draft", "--acceptance", 0.8,
        "--batch-sizes", "1,8", "--contexts", 64, "--spec-tokens", 3, *DEVICES, *OF_LINK,
        "--memory", 1, "--json", file,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    plan = json.loads(file.read_text())
    assert plan["devices"]["link"] == {"latency": pytest.approx(5e-6), "rate": 4e11}
    assert [d["size"] for d in plan["draft_sizes"]] == [1, 2, 4]
    pairs = {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}
    layouts = [s["layout"] for s in plan["speeds"]]
    assert {(x["tensor_parallel_size"], x["pipeline_parallel_size"]) for x in layouts} == pairs
    assert "pays below" in result.stdout and "2 x 2" in result.stdout
    assert result.stdout.strip().splitlines()[-1].startswith("With 1 ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DEVICES, "--link-latency is missing"),
        ((*DEVICES, *OF_LINK[:2], "--link-rate", 0), "--link-rate must be greater than 0"),
        ((*DEVICES[4:], *OF_LINK), "--devices needs --bandwidth and --flops"),
        ((*DEVICES[:4], *OF_LINK), "--link-latency is about several devices"),
        ((*DEVICES, *OF_LINK, "--memory", 1e-9), "--memory: no layout over 4 devices"),
        ((*DEVICES, *OF_LINK, "--method", "ngram"), "--acceptance is missing"),
        ((*DEVICES, *OF_LINK, "--acceptance", 0.5), "--acceptance has no drafter"),
        ((*DEVICES[:4], "--tensor-parallel-size", 2), "--tensor-parallel-size is of engines"),
    ],
)
def test_bad_options_are_one_line(
    tmp_path: Path, options: tuple[object, ...], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    result = run("plan", tmp_path, *options)
    assert result.returncode == 1 and message in result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
