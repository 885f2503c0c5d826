"""Text models inside models of text and images, against transformers without an image."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logprobs import engine_logprobs, random_tokens
from make_wrappers import PREFIXES, WRAPPERS, edit, make_wrapper, reference_logprobs, rename
from packed_integers import CompressedIntegers
from quantised_checkpoints import Format, make_quantised

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NUM_TOKENS = 100  # past the windows
TOKENS = [9 + token % 150 for token in random_tokens(NUM_TOKENS, seed=8)]  # none is of an image


@pytest.fixture(scope="module", params=WRAPPERS)
def wrapper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wrapper(request.param, tmp_path_factory.mktemp(request.param) / "model")


def assert_is_transformers(model: Path, reference: Path) -> None:
    expected = reference_logprobs(reference, TOKENS)[:-1]
    found = engine_logprobs(model, TOKENS, dtype="float32", num_threads=1, quantization="none")
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


def test_logprobs_agree_wherever_the_tensors_are(
    wrapper: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "specdec_native"):
        assert_is_transformers(wrapper, wrapper)
        expected = engine_logprobs(wrapper, TOKENS, dtype="float32", num_threads=1)
        for prefixes in PREFIXES:
            model = Path(shutil.copytree(wrapper, tmp_path / prefixes))
            rename(model, prefixes)
            found = engine_logprobs(model, TOKENS, dtype="float32", num_threads=1)
            assert (found == expected).all(), prefixes
    assert "not used" not in caplog.text  # tensors of images are left out without a word


def test_keys_of_either_level_count(wrapper: Path, tmp_path: Path) -> None:
    """Those of text_config before those of the whole."""
    model = Path(shutil.copytree(wrapper, tmp_path / "model"))
    text = json.loads((model / "config.json").read_text())["text_config"]
    edit(
        model,
        {"eos_token_id": None, "torch_dtype": "float32"},
        eos_token_id=text["eos_token_id"],
        torch_dtype="bfloat16",
        dtype=None,
        vocab_size=9,
    )
    assert_is_transformers(model, wrapper)


def test_gemma_3_has_defaults_of_its_own(tmp_path: Path) -> None:
    """As on the hub: text_config has few keys, and the rope in the spelling of transformers 4."""
    kept = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "vocab_size": 160}
    defaults = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 48,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    }
    model = make_wrapper("gemma3", tmp_path / "model", **defaults, **kept)
    text = json.loads((model / "config.json").read_text())["text_config"]
    few: dict[str, Any] = {key: None for key in text} | kept
    few |= {
        "model_type": "gemma3_text",
        "sliding_window": 48,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    edit(model, few)
    assert_is_transformers(model, model)


@pytest.mark.parametrize("is_nested", [False, True], ids=["outside", "inside"])
def test_they_may_be_quantised(wrapper: Path, tmp_path: Path, is_nested: bool) -> None:
    """quantization_config may stand in text_config; what it ignores has the prefixes, too."""
    packer = CompressedIntegers(group=32)
    config = packer.config(ignore=["re:.*vision.*", "re:.*visual.*", "language_model.lm_head"])
    form = Format(config, packer, skipped=("vision", "visual", "multi_modal"))
    model = make_quantised(wrapper, form, tmp_path)
    if is_nested:
        edit(model.quantised, {"quantization_config": config}, quantization_config=None)
    assert_is_transformers(model.quantised, model.dense)
