"""No source outside of the CPU's kernels needs an instruction set of its own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Headers and names of one processor's instructions, x86's and ARM's.
INTRINSICS = re.compile(
    r"#\s*include\s*<(\w*intrin|cpuid|arm_\w+|x86gprintrin)\.h>|\b_mm\d*_\w+|\bv\w+q?_[su]\d+\("
)
SOURCES = sorted(
    path
    for folder in ("cuda", "python/bindings", "cpp/include")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".h", ".cc", ".cu", ".cuh"}
)


def test_the_folders_have_sources() -> None:
    assert len(SOURCES) > 100


def test_no_intrinsics() -> None:
    matches = {path: INTRINSICS.search(path.read_text()) for path in SOURCES}
    used = {str(path.relative_to(ROOT)): found.group() for path, found in matches.items() if found}
    assert used == {}


@pytest.mark.parametrize(
    "line",
    [
        "#include <immintrin.h>",
        "# include <arm_neon.h>",
        "x = _mm256_add_ps(a, b);",
        "_mm_pause();",
    ],
)
def test_intrinsics_are_recognised(line: str) -> None:
    assert INTRINSICS.search(line)
