"""The arrows of ARCHITECTURE.md, read from its tables and compared with the include lines."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
# A folder, what it holds, and the folders it includes: "    cpp/src/kv    BlockPool  -> core".
FOLDER = r"(?:cpp|cuda|python/bindings|examples)\S*"
ROW = re.compile(rf"^    (?P<folder>{FOLDER}) .*?-> ?(?P<arrows>.*)$")
# The one place that may name the backends, and what the emulated target adds to every kernel.
REGISTRY = "cpp/src/backend/registry.cc"
EMULATED_TARGET = {
    "cuda/common/target.cuh": "cuda/emulation/cuda_language.h",
    "cuda/common/ptx.cuh": "cuda/emulation/ptx.h",
}


def folder_named(name: str) -> str:
    """`kv` is a folder of cpp/src; other folders are named by their whole paths."""
    return name if "/" in name or not (ROOT / "cpp/src" / name).is_dir() else f"cpp/src/{name}"


def read_layers(document: str) -> dict[str, set[str]]:
    layers = {}
    for row in filter(None, map(ROW.match, document.splitlines())):
        folder = row["folder"]
        layers[folder] = {folder_named(name) for name in re.findall(r"[\w/]+", row["arrows"])}
        if folder.startswith(("cpp/src", "cuda")):
            layers[folder] |= {"cpp/src/core", "cpp/include"} - {folder}
    return layers


LAYERS = read_layers((ROOT / "ARCHITECTURE.md").read_text())


def layer_of(path: str) -> str:
    """The longest folder of the table that holds the file."""
    return max((layer for layer in LAYERS if path.startswith(f"{layer}/")), key=len)


def included_path(source: str, include: str) -> str | None:
    """The project's file that an include line names; None: a header of somebody else's."""
    roots = ("", "cpp/src", "cpp/include", str(Path(source).parent))
    paths = (Path(root, include) for root in roots)
    return next((str(path) for path in paths if (ROOT / path).is_file()), None)


def sources() -> list[str]:
    folders = ["cpp", "cuda", "python/bindings", "examples"]
    return [
        str(path.relative_to(ROOT))
        for folder in folders
        for pattern in ("*.h", "*.cc", "*.cu", "*.cuh")
        for path in sorted((ROOT / folder).rglob(pattern))
    ]


def violations(source: str, text: str) -> list[str]:
    layer = layer_of(source)
    found = []
    for include in INCLUDE.findall(text):
        if include.startswith("cuda_") and not layer.startswith("cuda"):
            found.append(f"{source}: {include} outside cuda/")
        target = included_path(source, include)
        if target is None or EMULATED_TARGET.get(source) == target:
            continue
        if source == REGISTRY and layer_of(target) in {"cpp/src/cpu", "cuda"}:
            continue
        if layer_of(target) not in LAYERS[layer] | {layer}:
            found.append(f"{source}: {layer} must not include {include}")
    return found


def test_the_tables_name_every_folder() -> None:
    assert set(LAYERS) == {layer_of(source) for source in sources()}
    assert {arrow for arrows in LAYERS.values() for arrow in arrows} <= set(LAYERS)
    folders = {str(path.relative_to(ROOT)) for path in (ROOT / "cpp/src").iterdir()}
    assert folders <= set(LAYERS)


def test_the_arrows_make_no_circle() -> None:
    unfinished = dict(LAYERS)
    while leaves := [layer for layer, arrows in unfinished.items() if not arrows & set(unfinished)]:
        for layer in leaves:
            del unfinished[layer]
    assert unfinished == {}


def test_includes_follow_the_arrows() -> None:
    texts = {source: (ROOT / source).read_text() for source in sources()}
    assert [line for source in texts for line in violations(source, texts[source])] == []


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
    ],
)
def test_a_wrong_include_is_seen(source: str, line: str) -> None:
    assert violations(source, line)
