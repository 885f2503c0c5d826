"""Arguments of vLLM's SamplingParams that are accepted only where they ask for nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# vLLM's arguments that this engine does not implement; only their defaults are accepted.
UNSUPPORTED = (
    "logprob_token_ids",
    "prompt_logprob_start",
    "prompt_logprob_token_ids",
    "repetition_detection",
    "routed_experts_prompt_start",
    "skip_reading_prefix_cache",
    "trace_decode_token_ids",
    "watermarking",
)


# Older arguments, with the values that ask for nothing.
NEUTRAL = {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False}


@dataclasses.dataclass(repr=False, kw_only=True)
class SamplingArguments:
    """The base of SamplingParams: vLLM's arguments that must keep their defaults.

    `extra_args` is a dict for the engine's logits_processors to read.
    """

    best_of: Any = None
    extra_args: Any = None
    logprob_token_ids: Any = None
    prompt_logprob_start: Any = None
    prompt_logprob_token_ids: Any = None
    repetition_detection: Any = None
    routed_experts_prompt_start: Any = 0
    skip_reading_prefix_cache: Any = None
    trace_decode_token_ids: Any = None
    watermarking: Any = None
    use_beam_search: Any = False
    length_penalty: Any = 1.0
    early_stopping: Any = False

    def refuse_unsupported(self, n: int) -> None:
        """Raises ValueError naming the first argument in use. `n` is SamplingParams.n."""
        if self.extra_args is not None and not isinstance(self.extra_args, Mapping):
            raise ValueError(f"extra_args must be a dict, got {self.extra_args!r:.80}")
        for name in UNSUPPORTED:
            if getattr(self, name):
                raise ValueError(f"{name} is not supported by specdec_native; leave it out")
        for name, neutral in NEUTRAL.items():
            if getattr(self, name) not in (neutral, None):
                raise ValueError(f"{name} belongs to beam search; leave it out")
        if self.best_of not in (None, n):
            raise ValueError(
                f"best_of is not supported unless it is n, got {self.best_of!r}; ask for n "
                "completions and choose"
            )
        self.best_of = None
