"""The reader of safetensors files against the format's own package."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError, safe_open

from specdec_native import Engine
from specdec_native.errors import CheckpointError

Header = dict[str, Any]
NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def copy(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))


def split(file: Path) -> tuple[Header, bytes]:
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join(file: Path, header: Header, data: bytes) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def package_refuses(file: Path) -> bool:
    try:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                opened.get_tensor(name)
    except (SafetensorError, OSError):
        return True
    return False


def load(model: Path) -> None:
    Engine(model, dtype="float32", max_model_len=32)


def change(**fields: Any) -> Callable[[Header], None]:
    return lambda header: header[NAME].update(fields)


def move(by: int) -> Callable[[Header], None]:
    def edit(header: Header) -> None:
        header[NAME]["data_offsets"] = [offset + by for offset in header[NAME]["data_offsets"]]

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change(dtype="F33"), "F33"),
        (change(dtype="F64"), "expected 49152"),
        (change(shape=[96, 65]), r"expected 24960 .* \[96,65\]"),
        (change(shape=[-96, 64]), "non-negative"),
        (change(data_offsets=[0, 10**12]), "truncated"),
        (change(data_offsets=[100, 0]), "lies after"),
        (move(4), "overlaps|belong to no tensor|truncated"),
        (move(-4), "overlaps"),
        (lambda header: header[NAME].pop("shape"), "missing shape"),
    ],
)
def test_a_damaged_entry_is_refused_as_by_the_package(
    copy: Path, edit: Callable[[Header], None], message: str
) -> None:
    file = copy / "model.safetensors"
    header, data = split(file)
    edit(header)
    join(file, header, data)
    assert package_refuses(file)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(copy)
    assert "model.safetensors" in str(caught.value)


def test_what_the_package_refuses_is_refused(copy: Path) -> None:
    """Random damage to the header, its length and the file's size."""
    file = copy / "model.safetensors"
    good = file.read_bytes()
    header_end = 8 + int.from_bytes(good[:8], "little")
    chance = random.Random(5)
    num_refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(chance.choice([0, 1, 1, 2])):
            damaged[chance.randrange(header_end)] = chance.choice(b'{}[]",:0123456789 \x00\xffaF')
        cut = chance.choice([None, None, chance.randrange(len(good))])
        file.write_bytes(damaged[:cut])
        refused = package_refuses(file)
        num_refused += refused
        try:
            load(copy)
        except CheckpointError as error:
            assert "model.safetensors" in str(error)
        else:
            assert not refused
    assert 100 < num_refused < 300
