"""The arrows of ARCHITECTURE.md, read from its tables and compared with includes and imports."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
# A folder, what it holds, and the folders it uses: "    cpp/src/kv    BlockPool  -> core".
ROW = re.compile(r"^    (?P<folder>(?:cpp|cuda|python|examples)\S*) .*?-> ?(?P<arrows>.*)$")
# The one place that may name the backends, and what the emulated target adds to every kernel.
REGISTRY = "cpp/src/backend/registry.cc"
EMULATED_TARGET = {
    "cuda/common/target.cuh": "cuda/emulation/cuda_language.h",
    "cuda/common/ptx.cuh": "cuda/emulation/ptx.h",
}
# They name the packages over the engine, which are loaded when a name of theirs is first used.
FRONT_DOORS = {"python/specdec_native/__init__.py", "python/specdec_native/__main__.py"}


def folder_named(name: str, folder: str) -> str:
    """An arrow to `kv` is one to cpp/src/kv; from a Python package, one to a folder of Python's."""
    is_package = folder.startswith("python/specdec")
    parents = ("python", "python/specdec_native") if is_package else ("", "cpp/src")
    return next(str(Path(p, name)) for p in parents if (ROOT / p / name).is_dir())


def read_layers(document: str) -> dict[str, set[str]]:
    layers = {}
    for row in filter(None, map(ROW.match, document.splitlines())):
        folder = row["folder"]
        layers[folder] = {
            folder_named(name, folder) for name in re.findall(r"[\w/]+", row["arrows"])
        }
        if folder.startswith(("cpp/src", "cuda")):
            layers[folder] |= {"cpp/src/core", "cpp/include"} - {folder}
        if folder.startswith("python/specdec_native"):
            layers[folder] |= {"python/specdec_native/common"} - {folder}
    return layers


LAYERS = read_layers((ROOT / "ARCHITECTURE.md").read_text())


def layer_of(path: str) -> str:
    """The longest folder of the table that holds the file."""
    return max((layer for layer in LAYERS if path.startswith(f"{layer}/")), key=len)


def may_use(layer: str, other: str) -> bool:
    """Whether there is an arrow to a folder, or to one that holds it."""
    return other == layer or any(f"{other}/".startswith(f"{arrow}/") for arrow in LAYERS[layer])


def sources() -> list[str]:
    suffixes = {".h", ".cc", ".cu", ".cuh", ".py"}
    return [
        str(path.relative_to(ROOT))
        for folder in ("cpp", "cuda", "python", "examples/cpp")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes
    ]


def included(source: str, text: str) -> Iterator[tuple[str, str]]:
    """What include lines say, and the project's file that each names."""
    roots = ("", "cpp/src", "cpp/include", str(Path(source).parent))
    for include in INCLUDE.findall(text):
        paths = (Path(root, include) for root in roots)
        path = next((str(path) for path in paths if (ROOT / path).is_file()), None)
        if path is not None and EMULATED_TARGET.get(source) != path:
            yield include, path


@functools.cache
def modules() -> dict[str, str]:
    """Dotted name to file."""
    return {
        str(Path(path).relative_to("python").with_suffix(""))
        .replace("/", ".")
        .removesuffix(".__init__"): path
        for path in sources()
        if path.endswith(".py")
    }


def imported(text: str) -> Iterator[tuple[str, str]]:
    """What import statements name, those for type checkers included, and the file of each."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            module = name
            while module not in modules() and "." in module:
                module = module.rpartition(".")[0]  # requests.outputs has the name RequestOutput
            if module in modules() and not name.startswith("specdec_native._core"):
                yield name, modules()[module]


def violations(source: str, text: str) -> list[str]:
    layer = layer_of(source)
    used = imported(text) if source.endswith(".py") else included(source, text)
    found = [
        f"{source}: {layer} must not use {name}"
        for name, path in used
        if not may_use(layer, layer_of(path))
        and source not in FRONT_DOORS
        and not (source == REGISTRY and layer_of(path) in {"cpp/src/cpu", "cuda"})
    ]
    if not layer.startswith("cuda"):
        found += [f"{source}: {i}" for i in INCLUDE.findall(text) if i.startswith("cuda_")]
    return found


def test_the_tables_name_every_folder() -> None:
    assert set(LAYERS) == {layer_of(source) for source in sources()}
    assert {arrow for arrows in LAYERS.values() for arrow in arrows} <= set(LAYERS)
    folders = {str(p.relative_to(ROOT)) for p in (ROOT / "cpp/src").iterdir()}
    packages = {str(p.parent.relative_to(ROOT)) for p in (ROOT / "python").glob("*/__init__.py")}
    assert folders | packages <= set(LAYERS)


def test_the_arrows_make_no_circle() -> None:
    graphlib.TopologicalSorter(LAYERS).prepare()  # raises CycleError, which names the circle


def test_sources_follow_the_arrows() -> None:
    texts = {source: (ROOT / source).read_text() for source in sources()}
    assert [line for source in texts for line in violations(source, texts[source])] == []


def test_no_imports_go_in_a_circle() -> None:
    graph = {
        path: {file for _, file in imported((ROOT / path).read_text())} - {path}
        for path in modules().values()
        if path not in FRONT_DOORS
    }
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("cpp/src/sched/scheduler.cc", '#include "backend/backend.h"'),
        ("cpp/src/sched/scheduler.cc", '#include "speculation/draft_tree.h"'),
        ("cpp/src/speculation/drafter.h", '#include "backend/op_args.h"'),
        ("cpp/src/kv/block_pool.cc", '#include "runtime/kv_cache.h"'),
        ("cpp/src/engine/engine.cc", '#include "cpu/cpu_backend.h"'),
        ("cpp/src/core/log.cc", '#include "kv/block_pool.h"'),
        ("cpp/src/model/decoder.cc", "#include <cuda_runtime.h>"),
        ("cuda/kernels/step.cu", '#include "cuda/backend/cuda_backend.h"'),
        ("cuda/gpu/device.h", '#include "cuda/kernels/step.h"'),
        ("python/bindings/module.cc", '#include "engine/request.h"'),
        ("python/specdec_native/requests/stream.py", "from specdec_native.engine import Engine"),
        ("python/specdec_native/text/tokenizer.py", "import specdec_native.requests.request"),
        ("python/specdec_native/common/log.py", "from specdec_native.text import tokenizer"),
        ("python/specdec_native/engine.py", "from specdec_vllm.llm import LLM"),
        ("python/specdec_vllm/llm.py", "import specdec_serve.http.service"),
        ("python/specdec_lab/planning/plan.py", "import specdec_lab.training.store"),
        ("python/specdec_serve/http/service.py", "from specdec_lab.evaluation import prompts"),
        ("python/specdec_serve/http/service.py", "import specdec_serve.replicas.routing"),
    ],
)
def test_a_wrong_line_is_seen(source: str, line: str) -> None:
    assert violations(source, line)
