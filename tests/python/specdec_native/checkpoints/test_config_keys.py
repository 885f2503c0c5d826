"""Every key of config.json that transformers has is read, changes nothing, or is refused."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from huggingface_hub.errors import StrictDataclassFieldValidationError

from logprobs import engine_logprobs, random_tokens, reference_logprobs
from make_checkpoints import VARIANTS
from specdec_native import Engine
from specdec_native.checkpoints.generation_config import GENERATION_KEYS
from specdec_native.errors import CheckpointError

FAMILIES = list({variant.family: name for name, variant in reversed(VARIANTS.items())}.values())
TOKENS = random_tokens(40, seed=4)
# Keys of families that use them, read by code that transformers' families share.
OF_OTHERS: dict[str, Any] = {
    "attention_bias": True,
    "attention_chunk_size": 8,
    "attention_multiplier": 0.7,
    "attn_logit_softcapping": 2.0,
    "embedding_multiplier": 3.0,
    "final_logit_softcapping": 2.0,
    "head_dim": 8,
    "is_causal": False,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "logits_scaling": 2.0,
    "mlp_bias": True,
    "norm_topk_prob": True,
    "num_experts": 4,
    "partial_rotary_factor": 0.5,
    "query_pre_attn_scalar": 9,
    "residual_multiplier": 0.5,
    "rope_theta": 50.0,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
    "use_bidirectional_attention": True,
    "use_parallel_residual": True,
    "use_sliding_window": True,
}


def others(key: str, value: Any) -> Iterator[Any]:
    """Values that are not the default."""
    if value is None:
        yield from (2, 2.0, True)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, 2 * value)
    elif isinstance(value, float):
        yield 2.5 * value + 0.25
    elif isinstance(value, str):
        yield "relu" if "act" in key else "other"
    elif isinstance(value, list) and value:
        yield value[::-1]


def changes(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        # These choose the class and its output type; a file without an LM head is not complete.
        if key not in ("architectures", "model_type", "return_dict", "tie_word_embeddings"):
            yield from ((key, other) for other in others(key, value))
    yield from OF_OTHERS.items()


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


@pytest.mark.parametrize("variant", FAMILIES)
def test_a_key_off_its_default_computes_what_transformers_does_or_is_refused(
    checkpoint: Callable[[str], Path], write: Callable[..., Path], variant: str
) -> None:
    config = saved_config(checkpoint(variant))
    num_refused = 0
    wrong = []
    for key, value in changes(config):
        directory = write(variant, config | {key: value})
        try:
            found = engine_logprobs(directory, TOKENS, dtype="float32")
        except (CheckpointError, ValueError):
            num_refused += 1
            continue
        try:
            expected = reference_logprobs(directory, TOKENS, token_by_token=False)[:-1]
        except StrictDataclassFieldValidationError:  # a value of another type
            continue
        if np.abs(found - expected).max() > 2e-5 * np.abs(expected).max():
            wrong.append((key, value))
    assert not wrong
    assert num_refused > 5


@pytest.mark.parametrize("variant", FAMILIES)
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
    assert not caplog.records


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
