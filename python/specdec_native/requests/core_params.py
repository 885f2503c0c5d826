"""From SamplingParams to the core's, which know token ids only."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_native import _core
from specdec_native.checks import INT32_MAX
from specdec_native.requests.logits_processor import LogitsProcessor
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.tokenizer import Tokenizer

_SEED_MASK = 2**64 - 1


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
