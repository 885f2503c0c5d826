"""Which keys of generation_config.json are applied, which are passed over, which are logged."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from specdec_native.checkpoints.generation_config import GENERATION_KEYS, sampling_values
from specdec_native.requests.request_builder import GenerationConfig

transformers = pytest.importorskip("transformers")

APPLIED = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "max_new_tokens": 3,
}


def written_by_transformers(**values: Any) -> dict[str, Any]:
    config = transformers.GenerationConfig(eos_token_id=2, pad_token_id=0, **values)
    content: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return content


def test_what_transformers_saves_is_read_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformers.GenerationConfig(eos_token_id=2, do_sample=True, **APPLIED).save_pretrained(
        tmp_path
    )
    params = GenerationConfig("auto", None).read(tmp_path).params
    expected = APPLIED | {"max_tokens": APPLIED["max_new_tokens"]}
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens"):
        assert getattr(params, name) == expected[name]
    assert not caplog.records


def test_defaults_of_transformers_are_read_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    defaults = transformers.GenerationConfig._get_default_generation_params()
    config = written_by_transformers() | defaults
    assert sampling_values(config, Path("defaults.json")) == {
        name: defaults[name] for name in ("repetition_penalty", "temperature", "top_k", "top_p")
    }
    assert not caplog.records


def test_every_key_of_transformers_is_known_or_off() -> None:
    unknown = written_by_transformers().keys() - GENERATION_KEYS
    for key in unknown:  # they are logged where they are set
        assert written_by_transformers()[key] is None


def test_what_is_not_applied_is_logged_once_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = {"no_repeat_ngram_size": 3, "num_beams": 4, "my_sampler": 1, "typical_p": 1.0}
    (tmp_path / "generation_config.json").write_text(json.dumps(content | APPLIED))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            GenerationConfig("auto", {"suppress_tokens": []}).read(tmp_path)
    (record,) = caplog.records
    assert "no_repeat_ngram_size, num_beams, my_sampler is not applied" in record.getMessage()
