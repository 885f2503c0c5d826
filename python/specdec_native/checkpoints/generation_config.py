"""generation_config.json: which keys become sampling parameters, and which change no answer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_SAMPLING = {
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
    "skip_special_tokens": "skip_special_tokens",
}
"""Keys that are read, with the names they have in SamplingParams."""

WITHOUT_EFFECT = {
    "it ends completions, and the core reads it": ("eos_token_id",),
    "prompts come with their first token, and nothing is padded": (
        *("bos_token_id", "pad_token_id", "decoder_start_token_id"),
    ),
    "temperature 0 is greedy, and any other is not, as in vLLM": ("do_sample",),
    "a request says it: max_tokens, n, logprobs": (
        *("max_length", "num_return_sequences", "return_dict_in_generate", "output_attentions"),
        *("output_hidden_states", "output_scores", "output_logits"),
    ),
    "it is of beams, which num_beams asks for": ("early_stopping", "length_penalty"),
    "drafts change no answer, and speculative_config says how to draft": (
        *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind"),
        *("assistant_ensemble_weight", "target_lookbehind", "prompt_lookup_num_tokens"),
        *("max_matching_ngram_size", "speculation_type", "use_mtp"),
    ),
    "it is about the memory and the code of transformers": (
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory"),
        *("prefill_chunk_size", "compile_config", "disable_compile", "continuous_batching_config"),
    ),
    "it says who wrote the file": ("transformers_version", "_from_model_config", "_commit_hash"),
}
"""Keys that change no answer, by the reason."""

_OFF = {
    "min_length": 0,
    "min_new_tokens": 0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "typical_p": 1.0,
    "top_h": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "guidance_scale": 1.0,
    "renormalize_logits": False,
    "remove_invalid_values": False,
    "token_healing": False,
}
"""Features this engine lacks, with the values that turn them off (as transformers' defaults do)."""

GENERATION_KEYS = frozenset(
    (*_SAMPLING, *_OFF, *(key for keys in WITHOUT_EFFECT.values() for key in keys))
)
"""All known keys. Older models have these keys in config.json."""


def sampling_values(config: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """The sampling parameters of a generation_config.json, under the names of SamplingParams.

    `config` is its content. Keys that would change answers and are not applied are logged, once for
    each file.
    """
    given = {key: value for key, value in config.items() if value is not None}
    ignored = [
        key
        for key, value in given.items()
        if (key in _OFF or key not in GENERATION_KEYS) and value not in ([], {}, _OFF.get(key))
    ]
    if ignored:
        _warn(source, tuple(ignored))
    return {name: given[key] for key, name in _SAMPLING.items() if key in given}


@functools.cache
def _warn(source: Path, keys: tuple[str, ...]) -> None:
    logger.warning(
        "%s: %s is not applied: there is no such sampling parameter here", source, ", ".join(keys)
    )
