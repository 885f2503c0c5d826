"""The arrows of ARCHITECTURE.md between the Python folders, read off the import statements."""

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "specdec_native"

# Modules at the top of the package that every folder may import.
BASE = {"_core", "checks", "engine_options", "file_limit", "log", "option_text", "progress"}
FOLDERS = {"text", "checkpoints", "requests", "speculation", "vllm_names"}
LAYERS: dict[str, set[str]] = {
    **{module: BASE for module in BASE},
    "checkpoints": BASE,
    "text": {"checkpoints", *BASE},
    "vllm_names": {"checkpoints", *BASE},
    "requests": {"text", "checkpoints", "vllm_names", *BASE},
    "speculation": {"text", "checkpoints", "vllm_names", *BASE},
    "errors": {"requests", "checkpoints", *BASE},
    "ray_ranks": {"checkpoints", *BASE},
    "ranks": {"ray_ranks", *BASE},
    "engine": {"errors", "ranks", *FOLDERS, *BASE},
    "async_engine": {"engine", *FOLDERS, *BASE},
    "beam_search": {"engine", *FOLDERS, *BASE},
    "vllm_compat": {"engine", "async_engine", *FOLDERS, *BASE},
    "llm": {"vllm_compat", "engine", "beam_search", *FOLDERS, *BASE},
    "evaluation": {"engine", *FOLDERS, *BASE},
    "planning": {"engine", "evaluation", *FOLDERS, *BASE},
    "training": {"engine", *FOLDERS, *BASE},
    "benchmark": {"engine", "async_engine", "evaluation", *FOLDERS, *BASE},
    "server": {"engine", "errors", "vllm_compat", *FOLDERS, *BASE},
    "serve": {"server", "engine", "errors", "ray_ranks", *FOLDERS, *BASE},
    "cli": {
        *("engine", "async_engine", "evaluation", "planning", "training", "benchmark", "server"),
        *("vllm_compat", *FOLDERS, *BASE),
    },
    "__main__": {"cli"},
}
# Modules of vllm_compat that need no engine: vLLM's names and what an engine is in its words.
VLLM_NAMES = {
    *("config", "logits_processors", "missing", "proposer"),
    *("sampling_arguments", "speculative_arguments", "speculative_keys"),
}
# __init__ loads names when they are first used, and so may name every module.
LAZY = "__init__"


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name within the package to file."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def layer_of(module: str) -> str:
    folder, _, rest = module.partition(".")
    return "vllm_names" if folder == "vllm_compat" and rest in VLLM_NAMES else folder


def imported(source: str) -> Iterator[str]:
    """Modules of this package that a source imports, those for type checkers included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "specdec_native":
                yield _module_of(name.removeprefix("specdec_native."))


def _module_of(name: str) -> str:
    """`requests.outputs.RequestOutput` is a name of the module `requests.outputs`."""
    known = {*modules(), "_core"}
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name


def violations(module: str, source: str) -> list[str]:
    layer = layer_of(module)
    allowed = LAYERS[layer] | {layer}
    return [
        f"{module} must not import {name}"
        for name in imported(source)
        if layer_of(name) not in allowed
    ]


def test_every_module_has_a_layer() -> None:
    assert {layer_of(module) for module in modules()} == set(LAYERS) - {"_core"} | {LAZY}


def test_imports_follow_the_arrows() -> None:
    eager = {module: path for module, path in modules().items() if module != LAZY}
    texts = {module: path.read_text() for module, path in eager.items()}
    assert [line for module in texts for line in violations(module, texts[module])] == []


def test_no_imports_go_in_a_circle() -> None:
    graph = {
        module: set(imported(path.read_text())) - {module}
        for module, path in modules().items()
        if module != LAZY
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("requests.stream", "from specdec_native.engine import Engine"),
        ("text.tokenizer", "from specdec_native.requests.request import Request"),
        ("checks", "from specdec_native.text import tokenizer"),
        ("engine", "import specdec_native.llm"),
        ("engine", "from specdec_native.vllm_compat.llm_engine import LLMEngine"),
        ("speculation.drafter_options", "from specdec_native import llm"),
    ],
)
def test_a_wrong_import_is_seen(module: str, line: str) -> None:
    assert violations(module, line)
