"""Quantised checkpoints of other tools: what they stand for, and that their codes are kept.

The packers are NumPy's (tests/python/testing). They were compared by hand with compressed-tensors
0.20 (0.11 for groups in the order of activations), bitsandbytes 0.50, AutoAWQ 0.2.9 and
GPTQModel 7.7: no value differs.
"""

from pathlib import Path

import numpy as np
import pytest

from logprobs import engine_logprobs, random_tokens, reference_logprobs
from quantised_checkpoints import FORMATS, Maker
from specdec_native import Engine, SamplingParams
from test_quantization import ACTIVATION_ERROR, relative_error

NUM_TOKENS = 40
NUM_STEPS = 64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("quantised"))


def greedy_tokens(model: Path, prompt: list[int]) -> list[int]:
    """The prompt with the answer behind it."""
    engine = Engine(model, dtype="float32", quantization="none", max_model_len=256)
    params = SamplingParams(temperature=0, max_tokens=NUM_STEPS, ignore_eos=True)
    return prompt + list(engine.generate([prompt], params)[0].outputs[0].token_ids)


@pytest.mark.parametrize("name", FORMATS)
def test_without_quantization_they_are_what_they_stand_for(made: Maker, name: str) -> None:
    model = made(name)
    tokens = greedy_tokens(model.quantised, random_tokens(NUM_TOKENS, seed=5))
    expected = reference_logprobs(model.dense, tokens, token_by_token=False)[:-1]
    found = engine_logprobs(model.quantised, tokens, dtype="float32", quantization="none")
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()
    assert list(expected[NUM_TOKENS - 1 :].argmax(axis=1)) == tokens[NUM_TOKENS:]


@pytest.mark.parametrize("name", FORMATS)
def test_their_codes_are_kept(made: Maker, name: str) -> None:
    """Inputs are rounded to 8 bits then, as with codes of the engine's own layout."""
    model = made(name)
    tokens = random_tokens(NUM_TOKENS, seed=6)
    found = engine_logprobs(model.quantised, tokens, dtype="float32")
    if model.native is not None:
        assert (found == engine_logprobs(model.native, tokens, dtype="float32")).all()
        return
    expected = reference_logprobs(model.dense, tokens, token_by_token=False)[:-1]
    assert relative_error(found, expected) < ACTIVATION_ERROR
