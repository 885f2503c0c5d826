"""No file crashes, hangs or floods the process; every error about one is typed and names it.

Every case is loaded in a child process of limited memory. Beside the cases that once did harm
(CORPUS) there are random mutations of good files, the same in every run; SPECDEC_FUZZ_CASES asks
for more of them.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hostile_files
import make_gguf
import tiny_text_model

pytestmark = pytest.mark.fuzz

HANG_S = 300  # all cases of a kind take seconds


@pytest.fixture(scope="module")
def sources(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good files of every kind, in a folder each."""
    root = tmp_path_factory.mktemp("sources")
    text_model = tiny_text_model.add_text(checkpoint("llama"), root / "engine")
    (root / "tokenizer").mkdir()
    for file in text_model.glob("tokenizer*"):
        shutil.copy(file, root / "tokenizer")
    (root / "gguf").mkdir()
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*map(chr, range(65, 96)), "AB"],
        "tokenizer.ggml.token_type": [1] * 32,
        "tokenizer.ggml.merges": ["A B"],
    }
    make_gguf.write_gguf(
        root / "gguf" / "model.gguf",
        "llama",
        make_gguf.LLAMA_METADATA | vocabulary,
        make_gguf.llama_tensors(),
    )
    (root / "bin").mkdir()
    for name in ("config.json", "generation_config.json"):
        shutil.copy(text_model / name, root / "bin")
    tensors = load_file(text_model / "model.safetensors")
    torch.save(tensors, root / "bin" / "pytorch_model.bin")
    (root / "template").mkdir()
    return root


def run(mode: str, kind: str, sources: Path, scratch: Path) -> dict[str, str]:
    """What came of every case, by name."""
    command = [sys.executable, hostile_files.__file__, mode, kind]
    done = subprocess.run(
        [*command, str(sources / kind), str(scratch / "case")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # panics of tokenizers, tracebacks and all
        timeout=HANG_S,
        check=False,
        text=True,
    )
    results = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, f"rc {done.returncode} in case {list(results)[-1:]}"
    return results


@pytest.mark.parametrize("kind", hostile_files.CORPUS)
def test_known_cases(kind: str, sources: Path, tmp_path: Path) -> None:
    results = run("corpus", kind, sources, tmp_path)
    for name, (_, pattern) in hostile_files.CORPUS[kind].items():
        result = results[name]
        assert not result.startswith("UNTYPED"), (name, result)
        assert re.search(pattern, result) if pattern else result == "", (name, result)


@pytest.mark.parametrize("kind", hostile_files.CASES)
def test_mutations(kind: str, sources: Path, tmp_path: Path) -> None:
    results = run("fuzz", kind, sources, tmp_path)
    wrong = {name: result for name, result in results.items() if result.startswith("UNTYPED")}
    assert not wrong
    assert "" in results.values(), "no mutated file was still good: the mutations are too wild"
    assert any(results.values()), "every mutated file was still good"
