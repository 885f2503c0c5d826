"""Keys of config.json that transformers writes, and keys that nobody knows.

What each key of each class changes, `engine/test_every_family.py` sweeps.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from make_checkpoints import ONE_OF_EACH
from specdec_native import Engine
from specdec_native.checkpoints.generation_config import GENERATION_KEYS
from specdec_native.errors import CheckpointError


@pytest.fixture
def write(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    def write(variant: str, config: dict[str, Any]) -> Path:
        shutil.copytree(checkpoint(variant), tmp_path / variant, dirs_exist_ok=True)
        (tmp_path / variant / "generation_config.json").unlink(missing_ok=True)
        (tmp_path / variant / "config.json").write_text(json.dumps(config))
        return tmp_path / variant

    return write


def saved_config(directory: Path) -> dict[str, Any]:
    """With the defaults, some of which config.json leaves out."""
    return {
        **transformers.AutoConfig.from_pretrained(directory).to_dict(),
        **json.loads((directory / "config.json").read_text()),
    }


@pytest.mark.parametrize("variant", ONE_OF_EACH)
def test_what_transformers_saves_is_read_in_silence(
    checkpoint: Callable[[str], Path],
    write: Callable[..., Path],
    variant: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = saved_config(checkpoint(variant))
    of_generation = dict.fromkeys(GENERATION_KEYS - config.keys(), 3)
    Engine(write(variant, config), max_model_len=32)
    Engine(write(variant, config | of_generation | {"id2label": {"0": "a"}}), max_model_len=32)
    assert not [record for record in caplog.records if record.name.startswith("specdec")]


def test_an_unknown_key_is_named_once_or_dropped(
    checkpoint: Callable[[str], Path],
    write: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = saved_config(checkpoint("llama"))
    model = write("llama", config | {"note": "mine", "attn_gain": 2.0})
    with pytest.raises(CheckpointError, match=r"config\.json: attn_gain: is 2\.0.*hf_overrides"):
        Engine(model, max_model_len=32)
    Engine(model, max_model_len=32, hf_overrides={"attn_gain": None})
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{model}/config.json: note is not known")
