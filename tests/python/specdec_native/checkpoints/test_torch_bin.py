"""`pytorch_model.bin` checkpoints become safetensors ones."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specdec_native.checkpoints.errors import CheckpointError, MissingDependencyError
from specdec_native.checkpoints.layout import torch_files
from specdec_native.checkpoints.progress import ProgressMeter
from specdec_native.checkpoints.torch_convert import convert_torch


def make_source(directory: Path, state: dict[str, Any], config: dict[str, Any]) -> Path:
    directory.mkdir()
    torch.save(state, directory / "pytorch_model.bin")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def convert(source: Path) -> Path:
    target = source.parent / "converted"
    target.mkdir()
    convert_torch(source, target)
    return target


def test_tensors_keep_their_values_and_types(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {
        "a.weight": torch.randn(5, 3),
        "b.weight": torch.randn(4, 6).bfloat16(),
        "c.weight": torch.randn(7).half(),
        "d.ids": torch.arange(9),
        "e.mask": torch.tensor([True, False]),
        "f.transposed": torch.randn(3, 5).t(),
        "g.scalar": torch.tensor(2.5),
    }
    source = make_source(tmp_path / "source", state, {"model_type": "llama"})
    (source / "tokenizer.json").write_text("{}")
    target = convert(source)
    converted = load_file(target / "model.safetensors")
    assert sorted(converted) == sorted(state)
    for name, tensor in state.items():
        assert converted[name].dtype == tensor.dtype
        assert torch.equal(converted[name], tensor), name
    assert (target / "tokenizer.json").read_text() == "{}"


def test_shared_head_is_kept_once_and_declared_tied(tmp_path: Path) -> None:
    embedding = torch.randn(8, 4)
    state = {"lm_head.weight": embedding, "model.embed_tokens.weight": embedding}
    target = convert(make_source(tmp_path / "source", state, {"model_type": "llama"}))
    assert list(load_file(target / "model.safetensors")) == ["model.embed_tokens.weight"]
    assert json.loads((target / "config.json").read_text())["tie_word_embeddings"] is True


def test_layers_that_share_a_matrix_both_have_it(tmp_path: Path) -> None:
    shared = torch.randn(4, 4)
    state = {"layers.0.weight": shared, "layers.1.weight": shared, "lm_head.weight": shared}
    target = convert(make_source(tmp_path / "source", state, {"model_type": "llama"}))
    converted = load_file(target / "model.safetensors")
    assert sorted(converted) == sorted(state)  # a head is tied to an embedding alone
    assert all(torch.equal(tensor, shared) for tensor in converted.values())
    assert "tie_word_embeddings" not in json.loads((target / "config.json").read_text())


def test_what_is_written_is_bounded_by_what_is_stored(tmp_path: Path) -> None:
    repeated = torch.ones(1000).expand(4, 1000)  # each is smaller than the file, all are not
    state = {f"layers.{i}.weight": repeated for i in range(2000)}
    with pytest.raises(CheckpointError, match="pytorch_model.bin.*written out"):
        convert(make_source(tmp_path / "source", state, {}))


def test_equal_values_in_separate_memory_are_not_tied(tmp_path: Path) -> None:
    state = {"lm_head.weight": torch.ones(8, 4), "model.embed_tokens.weight": torch.ones(8, 4)}
    target = convert(make_source(tmp_path / "source", state, {"model_type": "llama"}))
    assert len(load_file(target / "model.safetensors")) == 2
    assert "tie_word_embeddings" not in json.loads((target / "config.json").read_text())


def sharded_source(directory: Path) -> dict[str, torch.Tensor]:
    """Two shards and their index; one in the format of torch before 1.6, which cannot be mapped."""
    directory.mkdir()
    state = {"a": torch.randn(3, 3), "b": torch.randn(2), "c": torch.randn(4, 2)}
    parts = {
        "pytorch_model-00001-of-00002.bin": ["a"],
        "pytorch_model-00002-of-00002.bin": ["b", "c"],
    }
    for number, (file, names) in enumerate(parts.items()):
        content = {name: state[name] for name in names}
        torch.save(content, directory / file, _use_new_zipfile_serialization=number == 0)
    weight_map = {name: file for file, names in parts.items() for name in names}
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text("{}")
    return state


def test_shards_stay_shards_with_an_index(tmp_path: Path) -> None:
    state = sharded_source(tmp_path / "source")
    target = convert(tmp_path / "source")
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert sorted(index["weight_map"]) == sorted(state)
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(target / file)[name], state[name])
    assert not (target / "pytorch_model.bin.index.json").exists()


def test_missing_shard_is_named(tmp_path: Path) -> None:
    sharded_source(tmp_path / "source")
    (tmp_path / "source" / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(CheckpointError, match="00002-of-00002.bin.*missing"):
        torch_files(tmp_path / "source")


class Payload:
    """Unpickling one would create the file `witness`."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.witness,))


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    source = make_source(tmp_path / "source", {"a": Payload(witness)}, {})
    with pytest.raises(CheckpointError, match="pytorch_model.bin: torch cannot read it"):
        convert(source)
    assert not witness.exists()


def test_truncated_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", {"a": torch.randn(100, 100)}, {})
    file = source / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="pytorch_model.bin"):
        convert(source)


def test_a_file_that_is_truncated_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"a": torch.randn(500, 1000), "b": torch.randn(500, 1000)}
    source = make_source(tmp_path / "source", state, {})

    def truncate(*_: Any) -> None:
        os.truncate(source / "pytorch_model.bin", 5000)

    monkeypatch.setattr(ProgressMeter, "add", truncate)  # it hears of the first tensor
    with pytest.raises(CheckpointError, match="pytorch_model.bin: the file has changed"):
        convert(source)


def test_nested_state_is_refused(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", {"model": {"a": torch.ones(2)}}, {})
    with pytest.raises(CheckpointError, match="not a dictionary from names to tensors"):
        convert(source)


def test_without_torch_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path / "source", {"a": torch.ones(2)}, {})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"specdec-native\[torch\]"):
        convert(source)
