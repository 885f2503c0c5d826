"""`specdec-native eval-head`: figures by closed formulas, and against an engine's own counts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiny_text_model
from command_line import run
from specdec_lab.evaluation import head_chart
from specdec_lab.evaluation.decoding_methods import HEAD_METHODS, methods_of_head
from specdec_lab.evaluation.method_report import (
    HeadReport,
    Sample,
    Workload,
    make_rows,
)
from specdec_lab.evaluation.prompts import Prompt, PromptsError, read_prompts, select
from specdec_lab.evaluation.runner import make_tasks, rotated, with_small_cache
from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub
from specdec_native.checkpoints.errors import MissingDependencyError
from specdec_native.requests.outputs import SpeculativeDecodingMetrics

TURNS = [
    {"category": "maths", "turns": ["abcabc", "never asked"]},
    {"category": "maths", "turns": ["xyz"]},
    {"category": "prose", "messages": [{"role": "system"}, {"role": "user", "content": "hello"}]},
]
CHAT = Workload("chat")


@pytest.fixture(scope="module")
def target(toy_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_text_model.add_text(toy_target, tmp_path_factory.mktemp("eval") / "toy")


@pytest.fixture(scope="module")
def head(trained_head: Callable[[str], Path]) -> Path:
    return trained_head("eagle3")


@pytest.fixture
def turns(tmp_path: Path) -> Path:
    file = tmp_path / "turns.jsonl"
    file.write_text("\n".join(map(json.dumps, TURNS)) + "\n\n")
    return file


# -- figures


def output(
    tokens: Sequence[int], *, proposed: Sequence[int] = (), accepted: Sequence[int] = ()
) -> Any:
    """A RequestOutput as far as rows read it; each proposed first token is a step."""
    counts = None
    if proposed:
        counts = SpeculativeDecodingMetrics(
            mean_acceptance_length=0.0,
            draft_acceptance_rate=0.0,
            acceptance_histogram=[],
            num_spec_steps=proposed[0],
            num_accepted_draft_tokens=sum(accepted),
            num_draft_tokens=sum(proposed),
            num_spec_tokens=len(proposed),
            num_emitted_tokens=proposed[0] + sum(accepted),
            proposed_per_position=list(proposed),
            accepted_per_position=list(accepted),
        )
    metrics = SimpleNamespace(first_token_latency=0.25, speculative_decoding=counts)
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=list(tokens))], metrics=metrics)


def test_rows_sum_up_calls() -> None:
    ten, five = list(range(10)), list(range(5))
    samples = [
        Sample("plain", CHAT, 0, 2.0, [output(ten)]),
        Sample("plain", CHAT, 1, 1.0, [output(five)]),
        # Ten tokens: one with the prompt, 6 from two steps with drafts, 3 from single steps.
        Sample("head", CHAT, 0, 1.0, [output(ten, proposed=[2, 2, 1, 0], accepted=[2, 1, 1, 0])]),
        Sample("head", CHAT, 1, 2.0, [output(five, proposed=[4, 4, 0, 0], accepted=[0, 0, 0, 0])]),
    ]
    plain, head = make_rows(samples)
    assert (plain.speedup, plain.lowest_speedup, plain.tokens_per_step) == (1.0, 1.0, 1.0)
    assert plain.acceptance_length is None and plain.acceptance_per_position is None
    assert (head.num_tokens, head.num_prompts, head.seconds) == (15, 2, 3.0)
    assert head.tokens_per_s == 5.0 and head.speedup == 1.0 and head.lowest_speedup == 0.5
    assert head.first_token_ms == 250.0 and head.same_answers
    assert head.acceptance_length == pytest.approx(1 + 4 / 6)
    assert head.acceptance_rate == pytest.approx(4 / 13)
    assert head.proposed_per_position == [6, 6, 1]
    assert head.acceptance_per_position == pytest.approx([2 / 6, 1 / 6, 1.0])
    assert head.tokens_per_step == pytest.approx((9 + 4) / (2 + 3 + 4))


def test_other_answers_are_seen_and_repeats_are_medians() -> None:
    samples = [Sample("plain", CHAT, 0, s, [output([1, 2])]) for s in (1.0, 9.0, 2.0)]
    samples += [Sample("head", CHAT, 0, s, [output([1, 2])]) for s in (1.0, 0.5, 8.0)]
    plain, head = make_rows(samples)
    assert (plain.seconds, head.seconds, head.speedup) == (2.0, 1.0, 2.0)
    assert plain.num_tokens == head.num_tokens == 2 and head.same_answers
    samples[-1].outputs = [output([1, 3])]
    assert [row.same_answers for row in make_rows(samples)] == [True, False]


def test_totals_are_over_the_categories_of_a_situation() -> None:
    samples = [
        Sample(method, Workload(name, batch), 0, seconds, [output([7] * tokens)] * batch)
        for method, speed in (("plain", 1.0), ("head", 2.0))
        for name, tokens, seconds in (("a", 10, 4.0 / speed), ("b", 20, 2.0))
        for batch in (1, 2)
    ]
    rows = {(r.method, r.workload, r.batch): r for r in make_rows(samples, with_totals=True)}
    assert len(rows) == 12
    total = rows["head", "all", 2]
    assert (total.num_tokens, total.seconds) == (60, 4.0)
    assert total.speedup == pytest.approx((60 / 4) / (60 / 6))
    assert make_rows([s for s in samples if s.workload.name == "a"], with_totals=True)[-1].speedup


def test_an_interrupted_turn_has_no_row() -> None:
    """Methods take turns, so a head may have met prompts that plain decoding has not yet."""
    other = Workload("code")
    samples = [
        Sample("plain", CHAT, 0, 2.0, [output([1, 2])]),
        Sample("head", CHAT, 0, 1.0, [output([1, 2])]),
        Sample("head", other, 0, 1.0, [output([1, 2])]),
    ]
    rows = make_rows(samples, with_totals=True)
    assert [(row.method, row.workload) for row in rows] == [
        *(("plain", "chat"), ("head", "chat"), ("head", "all")),
    ]
    assert all(row.speedup > 0 for row in rows)


# -- prompts and methods


def test_prompts_are_read_by_category(turns: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('"one"\n{"prompt": "two"}\n')
    found = select(read_prompts([turns, tmp_path / "mine.jsonl"]))
    assert {name: [p.text for p in prompts] for name, prompts in found.items()} == {
        "maths": ["abcabc", "xyz"],
        "prose": ["hello"],
        "mine": ["one", "two"],
    }
    assert select(read_prompts([turns]), ["maths"], 1) == {"maths": [Prompt("maths", "abcabc")]}
    with pytest.raises(PromptsError, match="'poetry'; there are maths, prose"):
        select(read_prompts([turns]), ["poetry"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"\n \n", "holds no prompts"),
        (b'"a"\n{"turns": [}\n', "line 2: is not valid JSON"),
        (b'{"turns": []}', "line 1: holds no text"),
        (b'{"prompt": 3}', "holds no text"),
        (b'" "', "holds no text"),
        (b"[1]", "holds no text"),
        (b'{"messages": [{"role": "assistant", "content": "x"}, 5]}', "holds no text"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_bad_prompts_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(PromptsError, match=message) as caught:
        read_prompts([file])
    assert str(file) in str(caught.value)


def test_calls_are_full() -> None:
    prompts = {"a": [Prompt("a", str(i)) for i in range(3)], "b": [Prompt("b", "x")]}
    tasks = make_tasks(prompts, [1, 2], [0.0, 1.0])
    assert len(tasks) == 8
    calls = {t.workload: [[p.text for p in call] for call in t.calls] for t in tasks}
    assert calls[Workload("a", 1, 1.0)] == [["0"], ["1"], ["2"]]
    assert calls[Workload("a", 2, 0.0)] == [["0", "1"], ["2", "0"]]
    assert calls[Workload("b", 2, 0.0)] == [["x", "x"]]
    assert rotated([1, 2, 3], 4) == [2, 3, 1] and rotated([], 4) == []


def test_methods_of_a_head(head: Path) -> None:
    config = {"model": str(head), "quantization": "none"}
    methods = {m.name: m.speculative_config for m in methods_of_head(config, hub.find_config)}
    assert tuple(methods) == HEAD_METHODS and methods["plain"] is None
    assert methods["head"] == config
    fixed = methods["tree-fixed"]
    assert fixed is not None and fixed["num_speculative_tokens"] == 3 and fixed["tree_width"] == 3
    graft = methods["suffix+head"]
    assert graft is not None and graft["merge_drafters"] and graft["drafters"][1] == config
    few = methods_of_head(
        {**config, "num_speculative_tokens": 5}, hub.find_config, names=["head-fixed"]
    )
    assert [m.name for m in few] == ["plain", "head-fixed"]
    assert few[1].speculative_config == {
        **config,
        "num_speculative_tokens": 5,
        "draft_length_policy": "fixed",
    }


def test_a_small_cache_leaves_the_users_alone(target: Path) -> None:
    assert with_small_cache(target, 4, {"max_model_len": 64})["num_kv_blocks"] == 4 * 5 + 1
    given = {"num_kv_blocks": 7}
    assert with_small_cache(target, 4, given) == {"max_num_seqs": 4, **given}


# -- the command


def test_it_counts_what_an_engine_counts(
    target: Path, head: Path, turns: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "chart.png"
    result = run(
        *("eval-head", target, "--spec-model", head, "--prompts", turns, "--dtype", "float32"),
        *("--speculative-config", '{"quantization": "none"}', "--max-tokens", 16, "--batch", 1),
        *("--batch", 2, "--json", "--chart", picture),
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    rows = report.pop("rows")
    assert report["schema"] == 1 and report["loaded"] == "together"
    assert report["head"]["model"] == str(head)
    assert report["configs"]["head-fixed"]["draft_length_policy"] == "fixed"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    situations = {(r["workload"], r["batch"], r["temperature"]) for r in rows}
    assert situations == {
        (name, b, t) for name in ("maths", "prose", "all") for b in (1, 2) for t in (0.0, 1.0)
    }
    assert len(rows) == len(situations) * len(HEAD_METHODS)
    assert all(row["same_answers"] and row["speedup"] > 0 for row in rows)

    expected = report["configs"]["head-fixed"]
    with Engine(target, dtype="float32", speculative_config=expected) as engine:
        params = [SamplingParams(temperature=0, max_tokens=16) for _ in TURNS]
        texts = ("abcabc", "xyz", "hello")
        outputs = engine.chat([[{"role": "user", "content": t}] for t in texts], params)
        counted = engine.stats().speculative_decoding
    assert counted is not None and counted.num_accepted_draft_tokens > 0
    row = next(
        r
        for r in rows
        if (r["method"], r["workload"], r["batch"], r["temperature"]) == ("head-fixed", "all", 1, 0)
    )
    assert row["num_tokens"] == sum(len(o.outputs[0].token_ids) for o in outputs)
    assert row["accepted_per_position"] == counted.accepted_per_position
    assert row["proposed_per_position"] == counted.proposed_per_position
    assert row["acceptance_length"] == pytest.approx(counted.mean_acceptance_length)
    assert 1 < row["tokens_per_step"] <= row["acceptance_length"] + 1e-9


def test_it_prints_a_table(target: Path, head: Path, turns: Path) -> None:
    options = ("--prompts", turns, "--max-tokens", 4, "--temperature", 0, "--limit", 1)
    methods = ("--method", "head-fixed", "--method", "tree-fixed", "--in-turns")
    result = run("eval-head", target, "--spec-model", head, *options, *methods)
    assert result.returncode == 0, result.stderr
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert sum(line.startswith("tree-fixed") for line in lines) == 3  # maths, prose, all
    assert sum(line.endswith(" yes") for line in lines) == 9
    assert not any(line.startswith("ngram") for line in lines) and "\x1b" not in result.stdout
    assert "loading an engine: tree-fixed" in result.stderr
    assert "calls 6 of 6: prose, tree-fixed" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "haed"), "there is no method 'haed'; did you mean 'head'"),
        (("--category", "poetry"), "no prompt has the category 'poetry'"),
        (("--temperature", -1), "--temperature must be in [0, 100]"),
        (("--chart", "chart.txt"), "--chart must end in .png"),
        (("--chart", "no/such/place.png"), "there is no directory"),
        (("--spec-tokens", 0), "num_speculative_tokens must be at least 1"),
        (("-sc", '{"tree_width": 2}'), "tree_width in the speculative config"),
        (("-sc", '{"drafters": []}'), "drafters"),
    ],
)
def test_bad_options_are_one_line(
    target: Path, head: Path, turns: Path, options: tuple[Any, ...], message: str
) -> None:
    result = run("eval-head", target, "--spec-model", head, "--prompts", turns, *options)
    assert result.returncode == 1 and message in result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_a_head_is_needed_and_must_fit(target: Path, head: Path, turns: Path) -> None:
    without = run("eval-head", target, "--prompts", turns)
    assert without.returncode == 1 and "a head is missing" in without.stderr
    other = shutil.copytree(head, turns.parent / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "draft_vocab_size": 5000}))
    wrong = run("eval-head", target, "--spec-model", other, "--prompts", turns)
    assert wrong.returncode == 1 and "the head was trained for another model" in wrong.stderr


def test_a_chart_needs_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"specdec-native\[chart\]"):
        report = HeadReport("m", "a", 1, "f", "f", "cpu", "avx2", 1, 0.0)
        head_chart.draw(report, tmp_path / "c.png")
