"""The arrows of ARCHITECTURE.md, read off the include lines."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)

# What each folder may include besides itself. "api" is cpp/include/specdec.
LAYERS = {
    "api": set(),
    "core": {"api"},
    "backend": {"core", "api"},
    "cpu": {"backend", "core", "api"},
    "cuda": {"backend", "core", "api"},
    "kv": {"backend", "core", "api"},
    "model": {"kv", "backend", "core", "api"},
    "speculation": {"model", "kv", "backend", "core", "api"},
    "sched": {"kv", "speculation", "core", "api"},
    "runtime": {"model", "speculation", "kv", "backend", "core", "api"},
    "engine": {"runtime", "sched", "speculation", "kv", "model", "backend", "core", "api"},
    "bindings": {"api"},
    "examples": {"api"},
}
# Files inside a layer that are bookkeeping only, and what they may see.
PURE_FILES = {
    "kv/block_pool": {"core", "api"},
    "kv/block_table": {"kv", "core", "api"},
    "kv/prefix_cache": {"kv", "core", "api"},
    "speculation/acceptance_model": {"speculation", "core", "api"},
    "speculation/draft_policy": {"speculation", "core", "api"},
    "speculation/pass_cost": {"speculation", "core", "api"},
}
# The scheduler may see the pure part of kv only.
SCHED_KV = {"kv/block_pool.h", "kv/block_table.h", "kv/prefix_cache.h"}
# The one place that may name the backends.
REGISTRY = "cpp/src/backend/registry.cc"


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[:2] == ("cpp", "src"):
        return parts[2]
    if parts[:2] == ("cpp", "include"):
        return "api"
    return "bindings" if parts[0] == "python" else parts[0]


def sources() -> list[Path]:
    folders = ["cpp", "cuda", "python/bindings", "examples"]
    return [
        path
        for folder in folders
        for pattern in ("*.h", "*.cc", "*.cu", "*.cuh")
        for path in sorted((ROOT / folder).rglob(pattern))
    ]


def violations(path: Path, text: str) -> list[str]:
    layer = layer_of(path)
    stem = "/".join(path.relative_to(ROOT).with_suffix("").parts[-2:])
    allowed = PURE_FILES.get(stem, LAYERS[layer] | {layer})
    found = []
    for include in INCLUDE.findall(text):
        folder = include.split("/")[0]
        target = "api" if folder == "specdec" else folder
        if include.startswith("cuda_") and layer != "cuda":
            found.append(f"{path}: {include} outside cuda/")
        if "/" not in include or target not in LAYERS or target == layer:
            continue
        if str(path.relative_to(ROOT)) == REGISTRY and target in {"cpu", "cuda"}:
            continue
        if target not in allowed or (
            layer == "sched" and target == "kv" and include not in SCHED_KV
        ):
            found.append(f"{path}: {layer} must not include {include}")
    return found


def test_every_layer_has_sources() -> None:
    assert {layer_of(path) for path in sources()} >= set(LAYERS)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_includes_follow_the_arrows(path: Path) -> None:
    assert violations(path, path.read_text()) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("cpp/src/sched/scheduler.cc", '#include "backend/backend.h"'),
        ("cpp/src/sched/scheduler.cc", '#include "runtime/kv_cache.h"'),
        ("cpp/src/kv/block_pool.cc", '#include "backend/backend.h"'),
        ("cpp/src/engine/engine.cc", '#include "cpu/cpu_backend.h"'),
        ("cpp/src/core/log.cc", '#include "kv/block_pool.h"'),
        ("cpp/src/model/decoder.cc", "#include <cuda_runtime.h>"),
        ("python/bindings/module.cc", '#include "engine/request.h"'),
    ],
)
def test_a_wrong_include_is_seen(file: str, line: str) -> None:
    assert violations(ROOT / file, line)
