"""Converts SamplingParams to the core's, which know token ids only."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_native import _core
from specdec_native.common.checks import INT32_MAX
from specdec_native.requests.logits_processor import LogitsProcessor
from specdec_native.requests.sampling_params import SamplingParams

_SEED_MASK = 2**64 - 1


def to_core_params(params: SamplingParams, *, eos_token_ids: Sequence[int]) -> _core.SamplingParams:
    """The sampling parameters that the core applies."""
    core = _core.SamplingParams(max_tokens=0)  # 0 is no limit, as None is in Python
    for option in _core.SamplingParams.options:
        value = getattr(params, option.name, None)
        if value is not None and "list" not in option.type and option.name != "seed":
            is_integer = option.type.startswith("int")  # values over 32 bits mean no limit
            setattr(core, option.name, min(value, INT32_MAX) if is_integer else value)
    core.seed = None if params.seed is None else params.seed & _SEED_MASK
    core.logit_bias = sorted((params.logit_bias or {}).items())
    core.allowed_token_ids = params.allowed_token_ids or []
    core.logits_processors = [LogitsProcessor(f) for f in params.logits_processors or ()]
    core.stop_token_ids = params.stop_token_ids or []
    core.eos_token_ids = list(eos_token_ids)
    return core
