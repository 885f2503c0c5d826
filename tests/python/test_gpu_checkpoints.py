"""bench/gpu/checkpoints.py: checkpoints of random weights have what their configs say."""

import json
import time
from pathlib import Path

import pytest

from gpu import checkpoints


def test_checkpoint_that_is_late_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        checkpoints.write("tiny", tmp_path, time.monotonic() - 1)
    assert not (tmp_path / "tiny/config.json").exists()


def test_checkpoint_is_what_its_config_says(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = checkpoints.write("tiny", tmp_path)
    weights = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    shapes = {}
    for file in set(weights.values()):
        with safe_open(path / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                tensor = opened.get_tensor(name).float()
                shapes[name] = tuple(tensor.shape)
                assert 0 < tensor.std() < 0.5
    assert shapes == dict(checkpoints.tensors(checkpoints.SHAPES["tiny"]))
    written = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert 0 <= written - checkpoints.weight_bytes(checkpoints.SHAPES["tiny"]) < 10_000


def test_shapes_are_those_of_the_models() -> None:
    def weights(name: str) -> float:
        return checkpoints.weight_bytes(checkpoints.SHAPES[name]) / 2

    assert weights("llama-3.2-1b") == 1_235_814_400
    assert weights("llama-3.1-8b") == 8_030_261_248


def test_checkpoint_in_several_files_has_every_tensor_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specdec_native import Engine

    monkeypatch.setattr(checkpoints, "_SHARD_BYTES", 200_000)
    path = checkpoints.write("tiny", tmp_path)
    assert len(list(path.glob("*.safetensors"))) > 1
    engine = Engine(path, device="cpu", skip_tokenizer_init=True, max_model_len=64)
    count = checkpoints.weight_bytes(checkpoints.SHAPES["tiny"]) // 2
    assert engine.model_info().num_parameters == count
