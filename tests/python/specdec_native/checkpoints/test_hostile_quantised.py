"""No quantised checkpoint crashes, hangs or floods the process: as test_hostile_files.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hostile_quantised
from quantised_checkpoints import Maker

pytestmark = pytest.mark.fuzz

HANG_S = 300
NAMES = [
    "gptq_order", "awq", "ct_float32", "ct_nvfp4", "ct_mxfp8", "modelopt_fp8_file", "nf4_nested",
    "bnb_8",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("quantised"))


@pytest.mark.parametrize("name", NAMES)
def test_mutations(made: Maker, name: str, tmp_path: Path) -> None:
    source = made(name).quantised
    done = subprocess.run(
        [sys.executable, hostile_quantised.__file__, str(source), str(tmp_path / "case")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=HANG_S,
        check=False,
        text=True,
    )
    results: dict[str, str] = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, f"rc {done.returncode} in case {list(results)[-1:]}"
    wrong = {case: result for case, result in results.items() if result.startswith("UNTYPED")}
    assert not wrong
    assert "" in results.values(), "no mutated file was still good: the mutations are too wild"
    assert any(results.values()), "every mutated file was still good"
