"""`specdec-native plan` on tiny models: what is measured, what is written, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from specdec_lab.evaluation.method_report import Row
from specdec_lab.evaluation.prompts import Prompt
from specdec_lab.planning.costs import MeasuredCosts
from specdec_lab.planning.make import Question, computed_plan
from specdec_lab.planning.measure import Grid, measure, runs_model
from specdec_lab.planning.measured_acceptance import acceptance_of, measure_acceptance
from specdec_lab.planning.roofline import Machine
from specdec_lab.planning.speedup import Acceptance
from specdec_native import Engine, _core

SMALL = ("--batch-sizes", "1,3", "--contexts", "8,32", "--spec-tokens", 2, "--max-tokens", 8)
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}


# -- what is measured


@pytest.mark.parametrize("speculation", [NGRAM, {"method": "suffix"}, "head"])
def test_every_point_is_measured(
    speculation: Any, checkpoint: Callable[[str], Path], head: Callable[..., Path]
) -> None:
    config = {"model": str(head("eagle3_own_head"))} if speculation == "head" else speculation
    grid = Grid([1, 3], [8, 32], 2)
    told: list[tuple[int, int, str]] = []
    found = measure(
        checkpoint("llama"), config, grid, {"dtype": "float32"}, lambda *what: told.append(what)
    )
    assert [(p.context, p.batch, p.length) for p in found.points] == [
        (c, b, k) for c, b in grid.points() for k in grid.lengths
    ]
    assert all(p.target_seconds > 0 for p in found.points)
    drafting = [p for p in found.points if p.length > 0]
    assert all(p.draft_seconds > 0 for p in drafting)
    passes = 1 if runs_model(config) else 2
    assert [done for done, _, _ in told] == list(range(1, passes * len(grid.points()) + 1))
    costs = MeasuredCosts(found.points)
    assert costs.target_seconds(2, 5, 20) > 0


def test_acceptance_is_what_the_engine_counts(model: Path) -> None:
    prompts = [Prompt("x", "abcabcabc"), Prompt("x", "hello")]
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 96}
    config = {**NGRAM, "num_speculative_tokens": 3}
    some = measure_acceptance(model, config, prompts, 16, options)
    assert some.length <= 3
    with Engine(
        model, **options, speculative_config={**config, "draft_length_policy": "fixed"}
    ) as engine:
        params = engine.get_default_sampling_params()
        params.temperature, params.max_tokens = 0.0, 16
        outputs = engine.chat([[{"role": "user", "content": p.text}] for p in prompts], params)
        counts = engine.stats().speculative_decoding
    decoded = sum(len(o.outputs[0].token_ids) - 1 for o in outputs)
    assert counts is not None and counts.num_accepted_draft_tokens > 0
    steps = decoded - counts.num_accepted_draft_tokens
    assert some.tokens_per_step == pytest.approx(decoded / steps)
    assert some.kept[0] == pytest.approx(counts.accepted_per_position[0] / steps)
    assert some.proposed[0] == pytest.approx(counts.proposed_per_position[0] / steps)


def test_a_row_without_steps_has_no_acceptance() -> None:
    row = Row("drafts", "x", 1, 0.0, 2, 2, 1.0, 2.0, 1.0, 1.0, 1.0, True, 1.0)
    assert acceptance_of(row) == Acceptance((), ())


# -- the command


def test_it_plans_for_this_machine(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"abcabcabc"\n"hello"\n')
    options = ("--dtype", "float32", "--max-model-len", 96, "--json", file)
    ngram = ("--speculative-config", json.dumps(NGRAM), "--prompts", prompts)
    result = run("plan", model, *ngram, *SMALL, *options)
    assert result.returncode == 0, result.stderr
    plan = json.loads(file.read_text())
    assert plan["is_measured"] and plan["facts"]["device"] == "cpu"
    assert (plan["batches"], plan["contexts"], plan["longest"]) == ([1, 3], [8, 32], 2)
    assert {(c["batch"], c["length"], c["context"]) for c in plan["costs"]} == {
        (b, k, c) for b in (1, 3) for k in (0, 1, 2) for c in (8, 32)
    }
    assert plan["acceptance"]["proposed"] and plan["machine"]["bandwidth"] > 0
    assert {p["name"] for p in plan["points"]} >= {"decode", "verify"}
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith(("Switch on --speculative-config", "Leave speculation by ngram off"))
    assert "expected" in result.stdout and "\x1b" not in result.stdout
    stages = ("measuring acceptance: 2 prompts, 8 tokens each", "loading an engine: drafts")
    for stage in (*stages, "measuring passes: 4 batch sizes and contexts", "batch 1, context 8"):
        assert stage in result.stderr


def test_it_plans_for_a_head(model: Path, head: Callable[..., Path]) -> None:
    config = ("--draft", head("eagle3_own_head"), "--speculative-config", '{"quantization":"none"}')
    result = run(
        "plan", model, *config, *SMALL, "--dtype", "float32", "--max-model-len", 96,
        "--acceptance", 0.99,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "expected" in result.stdout


def test_it_plans_for_a_machine_that_is_not_here(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Neither weights nor a tokenizer are there, and figures are those of the bytes."""
    (tmp_path / "config.json").write_text((checkpoint("llama") / "config.json").read_text())
    file = tmp_path / "plan.json"
    machine = ("--bandwidth", 2, "--flops", 1e6, "--json", file, "--dtype", "bfloat16")
    result = run("plan", tmp_path, *SMALL, *machine)
    assert result.returncode == 0, result.stderr
    plan = json.loads(file.read_text())
    assert not plan["is_measured"] and plan["acceptance"] is None
    facts = _core.model_facts(str(tmp_path), dtype="bfloat16")[0]
    for cost in plan["costs"]:
        rows = cost["batch"] * (1 + cost["length"])
        read = facts.pass_bytes(rows, cost["batch"], cost["context"])
        assert cost["target_seconds"] == pytest.approx(read / 2e9) and cost["draft_seconds"] == 0
    assert "memory" in result.stdout and "where more than" in result.stdout
    stated = run("plan", tmp_path, *SMALL, *machine[:4], "--acceptance", 0.5)
    assert stated.stdout.strip().splitlines()[-1].startswith("Switch on --speculative-config")


def test_drafters_of_a_machine_that_is_not_here_cost_their_bytes(
    checkpoint: Callable[[str], Path], head: Callable[..., Path]
) -> None:
    machine = Machine(1e9, 1e15)
    target = checkpoint("llama")

    def drafting(**drafter: Any) -> list[float]:
        config = {**drafter, "num_speculative_tokens": 3, "quantization": "none"}
        question = Question("x", target, config, [1], [16], {})
        plan = computed_plan(question, machine, None)
        return [cost.draft_seconds for cost in plan.costs]

    facts = _core.model_facts(str(target), quantization="none")[0]
    level = facts.pass_bytes(1, 1, 16) / 1e9
    first = facts.pass_bytes(2, 1, 16) / 1e9
    by_model = drafting(method="draft_model", model=str(target))
    assert by_model == pytest.approx([0.0, first, first + level, first + 2 * level])
    eagle = drafting(model=str(head("eagle3_own_head")))
    assert eagle[3] - eagle[2] == pytest.approx(eagle[2] - eagle[1]) and 0 < eagle[3] < by_model[3]
    medusa = drafting(model=str(head("medusa")))
    assert medusa[1] == medusa[3] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch-sizes", "1,x"), "--batch-sizes must be numbers such as 1,8,32"),
        (("--batch-sizes", "0,1"), "--batch-sizes must be in [1, 1024]"),
        (("--contexts", ""), "--contexts must be numbers"),
        (("--contexts", "86"), "a context of 86 tokens leaves 10"),
        (("--acceptance", 1.5), "--acceptance must be in [0, 1]"),
        (("--bandwidth", 100), "--flops is missing"),
        (("--flops", 100), "--bandwidth is missing"),
        (("--flops", 100, "--bandwidth", 0), "--bandwidth must be greater than 0"),
        (("--json", "no/such/place.json"), "--json: there is no directory"),
        (("-sc", '{"method": "ngram", "tree_width": 2}'), "tree_width in the speculative config"),
        (("--method", "ngarm"), "did you mean 'ngram'"),
        (("--spec-tokens", 0), "num_speculative_tokens must be at least 1"),
        (("--prompts", "none.jsonl"), "none.jsonl: cannot be read"),
    ],
)
def test_bad_options_are_one_line(model: Path, options: tuple[Any, ...], message: str) -> None:
    small = () if options[0] == "--spec-tokens" else ("--spec-tokens", 2)
    given = ("--acceptance", 0.5) if options[0] != "--acceptance" else ()
    method = () if options[0] in ("--method", "-sc") else ("--method", "ngram")
    result = run("plan", model, "--max-model-len", 96, *method, *small, *given, *options)
    assert result.returncode == 1 and message in result.stderr
    *stages, error = result.stderr.splitlines()
    assert error.startswith("error: ") and all("measuring" in line for line in stages)
