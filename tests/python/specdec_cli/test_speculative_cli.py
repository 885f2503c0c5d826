"""Speculation on the command line: same answers, options, the demo."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny_text_model
from command_line import run
from conftest import HeadMaker
from specdec_cli import demo
from speculative_configs import NGRAM


@pytest.fixture(scope="module")
def long_model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that holds the prompts of the demo."""
    return tiny_text_model.add_text(
        checkpoint("llama_linear"), tmp_path_factory.mktemp("demo") / "llama"
    )


def test_generate_and_chat_speculate(model: Path) -> None:
    options = ("-m", model, "--max-tokens", 24, "--dtype", "float32")
    config = json.dumps({**NGRAM, "num_speculative_tokens": 3})
    for arguments, stdin in ((("generate", "abab"), ""), (("chat",), "hi\n")):
        plain = run(*arguments, *options, stdin=stdin)
        for extra in (
            ("--speculative-config", config),
            ("-sc", config),
            ("--spec-method", "suffix", "--spec-tokens", 3),
            ("--spec-model", model, "--spec-tokens", 3),
            ("-sc", json.dumps(NGRAM), "--spec-tokens", 3),
        ):
            result = run(*arguments, *options, *extra, stdin=stdin)
            assert result.returncode == 0, result.stderr
            assert result.stdout == plain.stdout
    result = run("generate", "abab", *options, "-sc", config, "--json")
    metrics = json.loads(result.stdout)["outputs"][0]["metrics"]["speculative_decoding"]
    assert len(metrics["acceptance_histogram"]) == 4


def test_answers_are_recorded_and_replayed(model: Path, tmp_path: Path) -> None:
    """The keys of the method replay on the command line."""
    tokens = {"num_speculative_tokens": 3, "draft_length_policy": "fixed"}
    answers, accepted = [], []
    for key in ("record", "replay"):
        config = json.dumps({**tokens, key: str(tmp_path / "answers")})
        options = ("-m", model, "--max-tokens", 24, "--dtype", "float32", "-sc", config, "--json")
        result = run("generate", "abcd", *options)
        assert result.returncode == 0, result.stderr
        output = json.loads(result.stdout)["outputs"][0]
        answers.append(output["outputs"][0]["token_ids"])
        histogram = output["metrics"]["speculative_decoding"]["acceptance_histogram"]
        accepted.append(sum(i * count for i, count in enumerate(histogram)))
    assert answers[0] == answers[1]
    assert accepted[0] == 0 and accepted[1] >= 12


def test_heads_draft_on_the_command_line(model: Path, head: HeadMaker, tmp_path: Path) -> None:
    options = ("--max-tokens", 24, "--dtype", "float32", "--json")
    speculator = tmp_path / "speculator"
    shutil.copytree(head("speculators"), speculator)
    config = json.loads((speculator / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = str(model)
    (speculator / "config.json").write_text(json.dumps(config))
    plain = json.loads(run("generate", "abab", "-m", model, *options).stdout)["outputs"][0]
    fixed = json.dumps({"draft_length_policy": "fixed", "num_speculative_tokens": 2})
    for extra in (
        ("-m", model, "-sc", fixed, "--spec-model", head("eagle3")),
        ("-m", model, "-sc", fixed, "--spec-model", head("eagle"), "--spec-method", "eagle"),
        ("-m", speculator, "-sc", fixed),
    ):
        result = run("generate", "abab", *options, *extra)
        assert result.returncode == 0, result.stderr
        output = json.loads(result.stdout)["outputs"][0]
        assert output["outputs"][0]["token_ids"] == plain["outputs"][0]["token_ids"]
        assert output["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    wrong = run("generate", "abab", "-m", head("eagle3"), *options)
    assert wrong.returncode == 1 and "needs the model it was trained for" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-sc", "{"), "--speculative-config is not valid JSON"),
        (("-sc", "3"), "must be a JSON object"),
        (("-sc", '{"method": "ngram"}', "--spec-method", "suffix"), "--spec-method"),
        (
            ("-sc", '{"draft_length_policy": "fixed"}', "--spec-method", "ngram"),
            "num_speculative_tokens is missing",
        ),
        (("--spec-tokens", 3), '"method"'),
    ],
)
def test_wrong_options_are_one_line(model: Path, arguments: tuple[Any, ...], message: str) -> None:
    for command in (("generate", "x"), ("chat",), ("demo",)):
        result = run(*command, "-m", model, *arguments)
        assert result.returncode == 1 and message in result.stderr
        assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_the_demo_compares_every_method(long_model: Path) -> None:
    result = run("demo", "-m", long_model, "--max-tokens", 12, "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    methods = [method.name for method in demo.methods_for(str(long_model))]
    assert methods == ["plain", "ngram", "suffix", "ngram+suffix"]
    workloads = ("chat", "code", "edit", "mixed")
    assert [(r["method"], r["workload"]) for r in rows] == [
        (method, workload) for method in methods for workload in workloads
    ]
    for row in rows:
        assert row["same_answers"] and row["speedup"] > 0
        assert (row["acceptance_length"] is None) == (row["method"] == "plain")


def test_the_demo_measures_one_config(long_model: Path) -> None:
    options = ("--spec-model", long_model, "--spec-tokens", 3)
    text = run("demo", "-m", long_model, "--max-tokens", 8, *options).stdout
    assert "draft model" in text and text.count(" yes") == 8
    assert "suffix" not in text


def test_known_draft_models_are_used() -> None:
    names = [method.name for method in demo.methods_for("Qwen/Qwen2.5-Coder-1.5B-Instruct")]
    assert "draft model" in names and "suffix+draft" in names
    assert demo.draft_model_for("SmolLM2-135M-Instruct") is None
