"""From Python values to the compiled core's; routes its log to `logging`."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec_native import _core
from specdec_native.checks import INT32_MAX, check_number
from specdec_native.logits_processor import LogitsProcessor
from specdec_native.sampling_params import SamplingParams

if TYPE_CHECKING:
    from specdec_native.tokenizer import Tokenizer

_logger = logging.getLogger("specdec_native")
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_SEED_MASK = 2**64 - 1


def _log(level: str, message: str) -> None:
    _logger.log(_LEVELS.get(level, logging.INFO), "%s", message)


_core.set_log_sink(_log)


def make_config(**options: Any) -> _core.EngineConfig:
    """An EngineConfig from the options that are not None. Raises ValueError naming a wrong one."""
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _INTEGER_OPTIONS:
            value = _integer(name, value)  # noqa: PLW2901
            if value == 0 and name in _POSITIVE_OPTIONS:
                raise ValueError(f"{name} must be at least 1, or None for the default")
        elif name in _SWITCHES:
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be True or False, got {value!r}")
        elif name == "gpu_memory_utilization":
            value = check_number(name, value)  # noqa: PLW2901
        elif not isinstance(value, str):
            raise ValueError(f"{name} must be a string, got {value!r}")
        fields[name] = value
    if "seed" in fields:
        fields["seed"] &= _SEED_MASK
    return _core.EngineConfig(**fields)


def dtype_name(dtype: Any) -> str:
    """The core's name for a dtype of any of vLLM's spellings, or a torch.dtype."""
    if dtype is None:
        return "auto"
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)


def check_quantization(value: Any) -> None:
    """Raises ValueError unless `value` is None or names a quantization."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ValueError(f"quantization must be a string, got {value!r}")
    _core.check_quantization(value)


_INTEGER_OPTIONS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "num_kv_blocks",
    "block_size",
    "num_threads",
    "seed",
)
_POSITIVE_OPTIONS = ("max_num_seqs", "max_num_batched_tokens")  # where 0 means the core's default
_SWITCHES = ("enable_prefix_caching", "enforce_eager", "deterministic")
_DTYPES = {"float": "float32", "half": "float16"}


def _integer(name: str, value: Any) -> int:
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)  # sizes are often written 4e9
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    limit = 2**63 if name in ("kv_cache_memory_bytes", "seed") else 2**31
    if name != "seed" and not -limit <= number < limit:
        raise ValueError(f"{name} must be below {limit}, got {number}")
    return number


def to_core_params(
    params: SamplingParams, *, eos_token_ids: Sequence[int], tokenizer: Tokenizer | None
) -> _core.SamplingParams:
    """The half of the sampling parameters that the core applies."""
    return _core.SamplingParams(
        n=params.n,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=min(params.top_k, INT32_MAX),
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=sorted((params.logit_bias or {}).items()),
        allowed_token_ids=params.allowed_token_ids or [],
        bad_words=bad_word_token_ids(params.bad_words or [], tokenizer),
        logits_processors=[LogitsProcessor(f) for f in params.logits_processors or ()],
        # More than any context has: no limit.
        max_tokens=min(params.max_tokens or 0, INT32_MAX),
        min_tokens=min(params.min_tokens, INT32_MAX),
        stop_token_ids=params.stop_token_ids or [],
        eos_token_ids=list(eos_token_ids),
        ignore_eos=bool(params.ignore_eos),
        seed=None if params.seed is None else params.seed & _SEED_MASK,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        num_speculative_tokens=params.num_speculative_tokens,
    )


def bad_word_token_ids(words: Sequence[str], tokenizer: Tokenizer | None) -> list[list[int]]:
    """Token sequences of words at the beginning of a text and, after a space, inside one."""
    if words and tokenizer is None:
        raise ValueError("bad_words needs a tokenizer, and this engine has none")
    sequences: list[list[int]] = []
    for word in words:
        assert tokenizer is not None
        bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        if not bare:
            raise ValueError(f"bad_words: {word!r} has no tokens")
        sequences.append(bare)
        spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        # As in vLLM: only where the space merges into the word's first token.
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            sequences.append(spaced)
    return sequences
