"""Draft heads of the package: packed without the target's rows, completed, found by name."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pack_head
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_text_model
from conftest import HeadMaker
from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import head_registry, hub, hugging_face, model_registry
from specdec_native.checkpoints.errors import CheckpointError, ModelNotFoundError
from specdec_native.checkpoints.head_files import sha256_of
from specdec_native.checkpoints.head_registry import RegistryHead
from specdec_native.checkpoints.model_registry import RegistryModel
from specdec_native.checkpoints.safetensors_file import open_file
from specdec_native.speculation.speculative_config import parse_speculative_config

MODEL = "Tiny-Test-Model"
HEAD = "Tiny-Test-Model-eagle3"
MEDUSA = "Tiny-Test-Model-medusa"


@pytest.fixture
def target(checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of the registry, which an earlier download left on the disk in bfloat16."""
    directory = tiny_text_model.add_text(checkpoint("llama"), tmp_path / "target")
    tensors = load_file(directory / "model.safetensors")
    save_file({k: v.bfloat16() for k, v in tensors.items()}, directory / "model.safetensors")
    known = RegistryModel(MODEL, f"tests/{MODEL}", "", "", (), "", "0" * 64, 1, "F32", (2,))
    monkeypatch.setattr(model_registry, "MODELS", (known,))
    monkeypatch.setattr(hugging_face, "cached_snapshot", lambda *_, **__: directory)
    monkeypatch.setattr(head_registry, "DIRECTORY", tmp_path / "heads")
    monkeypatch.setattr(head_registry, "HEADS", ())
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "home"))
    return directory


def rows_of(target: Path, ids: torch.Tensor) -> torch.Tensor:
    tensors = load_file(target / "model.safetensors")
    return tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])[ids]


@pytest.fixture
def trained(target: Path, head: HeadMaker, tmp_path: Path) -> Path:
    """As the trainer writes one: in bfloat16, with the target's rows as its output head."""
    directory = shutil.copytree(head("eagle3_modelopt"), tmp_path / "trained")
    tensors = load_file(directory / "model.safetensors")
    tensors = {k: v.bfloat16() if v.is_floating_point() else v for k, v in tensors.items()}
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    tensors["lm_head.weight"] = rows_of(target, ids)
    save_file(tensors, directory / "model.safetensors")
    return directory


def pack(source: Path, name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> RegistryHead:
    """Packs a head and takes the printed row into the registry."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert pack_head.main([str(source), name, *options]) == 0
    (row,) = eval(f"({printed.getvalue()})", {"RegistryHead": RegistryHead})
    assert isinstance(row, RegistryHead)
    monkeypatch.setattr(head_registry, "HEADS", (*head_registry.HEADS, row))
    return row


def drafts_of(target: Path, model: str | Path) -> Any:
    config = {"model": str(model), "draft_length_policy": "fixed", "num_speculative_tokens": 3}
    with Engine(target, speculative_config=config, dtype="float32") as engine:
        params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        tokens = engine.generate("abcd", params)[0].outputs[0].token_ids
        return tokens, engine.stats().speculative_decoding


def test_a_head_is_packed_and_completed(
    target: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = pack(trained, HEAD, monkeypatch)
    assert (row.method, row.target, row.borrowed) == ("eagle3", MODEL, ("lm_head.weight",))
    shipped = load_file(row.directory / "model.safetensors")
    whole = load_file(trained / "model.safetensors")
    assert shipped.keys() == whole.keys() - {"lm_head.weight"}

    directory = hub.resolve_model(HEAD.lower())
    completed = load_file(directory / "model.safetensors")
    assert completed.keys() == whole.keys()
    for name, tensor in whole.items():
        assert completed[name].dtype == tensor.dtype and torch.equal(completed[name], tensor)
    assert hub.fetch(HEAD) == directory == hub.resolve_model(HEAD)
    provenance = json.loads((directory / "specdec_provenance.json").read_text())
    assert provenance["trained_with_these_rows"] and provenance["target"] == MODEL
    # Before that nothing but config.json is needed.
    assert hub.find_config(HEAD) == row.directory
    assert hub.resolve_model(HEAD, weights=False) == row.directory

    assert drafts_of(target, HEAD) == drafts_of(target, trained)
    # The engine also takes what is shipped, and cuts the target's head itself.
    assert drafts_of(target, row.directory) == drafts_of(target, trained)


def test_a_medusa_head_brings_its_tokens(
    target: Path, head: HeadMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shutil.copytree(head("medusa_version_2"), tmp_path / "medusa")
    (source / "token_map.json").write_text("[3, 4, 5, 60, 61]")
    row = pack(source, MEDUSA, monkeypatch)
    assert row.method == "medusa" and row.borrowed == ()
    config = {"model": MEDUSA, "draft_length_policy": "fixed"}
    stated = {**config, "speculative_token_map": [3, 4, 5, 60, 61]}
    (drafter,) = parse_speculative_config(config, hub.find_config).drafters
    assert drafter.token_map == row.directory / "token_map.json"
    results = []
    for given in (config, stated):
        with Engine(target, speculative_config=given, dtype="float32") as engine:
            params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
            outputs = engine.generate(["abcd", "xyz"], params)
            results.append([(o.outputs[0].token_ids, engine.stats().drafters) for o in outputs])
    assert results[0] == results[1]


# -- what is refused


def test_other_output_heads_are_not_packed(
    target: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = load_file(trained / "model.safetensors")
    tensors["lm_head.weight"][7, 5] += 1
    save_file(tensors, trained / "model.safetensors")
    with pytest.raises(SystemExit, match=r"lm_head.weight .* not the rows"):
        pack_head.main([str(trained), HEAD])
    row = pack(trained, HEAD, monkeypatch, "--with-output")
    assert row.borrowed == ()
    completed = load_file(hub.resolve_model(HEAD) / "model.safetensors")
    assert torch.equal(completed["lm_head.weight"], tensors["lm_head.weight"])
    with pytest.raises(SystemExit, match="must be a known model"):
        pack_head.main([str(trained), "Unknown-eagle3"])
    with pytest.raises(SystemExit, match="not that of a draft head"):
        pack_head.main([str(target), HEAD])


def test_a_damaged_file_is_refused(
    target: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = pack(trained, HEAD, monkeypatch)
    file = row.directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for _ in range(2):  # and leaves nothing behind
        with pytest.raises(CheckpointError, match="missing or damaged.*install the package again"):
            hub.resolve_model(HEAD)
    file.unlink()
    with pytest.raises(CheckpointError, match="missing or damaged"):
        hub.resolve_model(HEAD)


def test_another_target_is_refused(
    target: Path,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pack(trained, HEAD, monkeypatch)
    weights = load_file(target / "model.safetensors")
    # The same model after rounding: it works, and the log says what to expect.
    name = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
    save_file({**weights, name: weights[name] * 1.25}, target / "model.safetensors")
    with caplog.at_level("WARNING"):
        directory = hub.resolve_model(HEAD)
    assert "not those that Tiny-Test-Model-eagle3 was trained with" in caplog.text
    assert not json.loads((directory / "specdec_provenance.json").read_text())[
        "trained_with_these_rows"
    ]
    # Another vocabulary.
    save_file({**weights, name: weights[name][:90].clone()}, target / "model.safetensors")
    with pytest.raises(CheckpointError, match="was trained for Tiny-Test-Model, where it is"):
        hub.resolve_model(HEAD)
    # No head at all.
    kept = {k: v for k, v in weights.items() if "layers" in k}
    save_file(kept, target / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds no lm_head\.weight"):
        hub.resolve_model(HEAD)


def test_unknown_names_list_the_heads(
    target: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(trained, HEAD, monkeypatch)
    with pytest.raises(ModelNotFoundError, match=f"known: {MODEL}, {HEAD}"):
        hub.fetch("nothing")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header is longer"),
        (b"\xff" * 20, "header is longer"),
        (struct.pack("<Q", 2) + b"[]", "no whole safetensors file"),
        (struct.pack("<Q", 6) + b'{"a":1', "no whole safetensors file"),
        (struct.pack("<Q", 7) + b'{"a":1}', "no whole safetensors file"),
    ],
)
def test_damaged_files_name_themselves(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_file(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8]},
    ],
)
def test_tensors_outside_of_a_file_are_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    header = json.dumps({"a": entry}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    with pytest.raises(CheckpointError, match="no whole safetensors file"):
        open_file(file)


def test_every_dtype_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    values = torch.tensor([[1.5, 2.25, 3e-5], [0.0, 65000.0, 7.0]])
    dtypes = (torch.float64, torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(dtype): values.to(dtype) for dtype in dtypes}
    tensors |= {"bits": values.bfloat16(), "empty": torch.zeros(0, 3)}
    save_file(tensors, tmp_path / "model.safetensors")
    read = open_file(tmp_path / "model.safetensors")
    for name, tensor in tensors.items():
        if name != "bits":
            assert torch.equal(torch.from_numpy(read[name].values().copy()), tensor)
    for name in ("bits", "torch.float64", "torch.float32", "torch.float16"):
        bits = torch.from_numpy(read[name].as_bfloat16().view("int16").copy())
        assert torch.equal(bits.view(torch.bfloat16), tensors[name].bfloat16())
    with pytest.raises(CheckpointError, match="not floating point"):
        read["torch.bool"].as_bfloat16()


# -- what is shipped


def test_the_shipped_heads_are_those_that_were_published() -> None:
    total = 0
    for head in head_registry.HEADS:
        assert sha256_of(head.directory / "model.safetensors") == head.sha256
        assert hub.find_config(head.name) == head.directory
        assert model_registry.find_model(head.target) is not None
        assert not set(head.borrowed) & open_file(head.directory / "model.safetensors").keys()
        total += sum(f.stat().st_size for f in head.directory.iterdir())
    assert total <= pack_head.MAX_BYTES
