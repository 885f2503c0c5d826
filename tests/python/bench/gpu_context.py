"""Where the steps of bench/gpu run in tests."""

from pathlib import Path

import pytest

from conftest import ROOT
from gpu.steps import Context


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(
        root=ROOT,
        build=tmp_path / "build",
        out=tmp_path / "out",
        scratch=tmp_path / "scratch",
        device="emulated",
        smoke=True,
    )
