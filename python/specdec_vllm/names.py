"""The names that `from specdec_native import ...` finds as `from vllm import ...` does."""

from __future__ import annotations

import importlib
from typing import Any

from specdec_vllm.missing import MISSING_NAMES, stand_in

_MODULES = {
    "specdec_native.options.vllm_config": """
        CacheConfig ModelConfig ParallelConfig SchedulerConfig SpeculativeConfig VllmConfig""",
    "specdec_native.requests.batch_logits_processors": """
        AdapterLogitsProcessor BatchUpdate LogitsProcessor MoveDirectionality
        RequestLogitsProcessor process_dict_updates""",
    "specdec_vllm.async_llm": "AsyncEngineArgs AsyncLLM AsyncLLMEngine",
    "specdec_vllm.engine_args": "EngineArgs FlexibleArgumentParser",
    "specdec_vllm.helpers": """
        AnyTokenizer ChatCompletionMessageParam EngineDeadError TokenizerLike current_platform
        get_ip get_open_port get_tokenizer init_logger random_uuid resolve_chat_template
        resolve_hf_chat_template set_random_seed""",
    "specdec_vllm.llm": "LLM",
    "specdec_vllm.llm_engine": """
        LLMEngine cleanup_dist_env_and_memory destroy_distributed_environment
        destroy_model_parallel""",
    "specdec_vllm.metrics": "Counter Gauge Histogram Metric Vector",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def load(name: str) -> Any:
    """What specdec_native has under one of vLLM's names.

    Raises ImportError for a name that scripts use as soon as they have it and that is not here,
    AttributeError for any other.
    """
    if name in MISSING_NAMES:
        raise ImportError(f"specdec_native has no {name}: {MISSING_NAMES[name]}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    value = stand_in(name)
    if value is None:
        raise AttributeError(f"module 'specdec_native' has no attribute {name!r}")
    return value
