"""Logprobs of every token at every position of a text, by the engine and by transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM

from make_checkpoints import VOCAB_SIZE
from specdec_native import Engine, SamplingParams

Array = npt.NDArray[np.float64]


def random_tokens(count: int, seed: int) -> list[int]:
    """Ordinary tokens of make_checkpoints' vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (count,), generator=generator).tolist()


def load_reference(model: Path) -> Any:
    """The checkpoint in transformers, in float32."""
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return reference.eval()


def reference_logprobs(model: Path, tokens: list[int], *, token_by_token: bool) -> Array:
    """Logprobs of the token after each position, [num_tokens, vocab]."""
    reference = load_reference(model)
    rows = []
    cache = None
    step = 1 if token_by_token else len(tokens)
    with torch.no_grad():
        for start in range(0, len(tokens), step):
            ids = torch.tensor([tokens[start : start + step]])
            output = reference(ids, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            rows.append(output.logits[0].double().log_softmax(-1).numpy())
    return np.concatenate(rows)


def engine_logprobs(model: Path, tokens: list[int], **options: Any) -> Array:
    """Logprobs of the token after each position except the last, [num_tokens - 1, vocab]."""
    return likeliest_logprobs(model, tokens, -1, **options)


def likeliest_logprobs(model: Path, tokens: list[int], count: int, **options: Any) -> Array:
    """As above, and only of the `count` likeliest tokens; the others are NaN."""
    engine = Engine(model, **{"max_model_len": len(tokens) + 1, "max_logprobs": -1, **options})
    params = SamplingParams(max_tokens=1, prompt_logprobs=count, ignore_eos=True)
    positions = engine.generate([tokens], params)[0].prompt_logprobs
    assert positions is not None
    result = np.full((len(tokens) - 1, engine.model_info().vocab_size), np.nan)
    for row, position in zip(result, positions[1:], strict=True):
        assert position is not None
        for token, entry in position.items():
            row[token] = entry.logprob
    return result
