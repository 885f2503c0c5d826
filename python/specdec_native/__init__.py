"""Generates text from Hugging Face checkpoints with a native engine.

    from specdec_native import LLM, SamplingParams

    llm = LLM("HuggingFaceTB/SmolLM2-135M-Instruct")
    for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
        print(output.outputs[0].text)

Names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec_native import errors
    from specdec_native._core import __version__
    from specdec_native.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from specdec_native.engine import Engine
    from specdec_native.errors import EngineFailed, RequestError
    from specdec_native.requests.inputs import PromptType, TextPrompt, TokensPrompt
    from specdec_native.requests.logprobs import FlatLogprobs, Logprob
    from specdec_native.requests.outputs import (
        CompletionOutput,
        DraftedToken,
        DrafterStats,
        DraftPolicyStats,
        DraftTree,
        EngineLoad,
        EngineStats,
        RequestMetrics,
        RequestOutput,
        SpeculativeDecodingMetrics,
        StepTokens,
    )
    from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
    from specdec_native.requests.stream import RequestStream
    from specdec_native.requests.structured_outputs import (
        GuidedDecodingParams,
        StructuredOutputsParams,
    )
    from specdec_native.text.infill import InfillPrompt
    from specdec_vllm.async_llm import AsyncEngineArgs, AsyncLLM, AsyncLLMEngine
    from specdec_vllm.engine_args import EngineArgs, FlexibleArgumentParser
    from specdec_vllm.llm import LLM
    from specdec_vllm.llm_engine import LLMEngine, cleanup_dist_env_and_memory
    from specdec_vllm.metrics import Counter, Gauge, Histogram, Metric, Vector

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Counter",
    "DraftPolicyStats",
    "DraftTree",
    "DraftedToken",
    "DrafterStats",
    "Engine",
    "EngineArgs",
    "EngineFailed",
    "EngineLoad",
    "EngineStats",
    "FlatLogprobs",
    "FlexibleArgumentParser",
    "Gauge",
    "GuidedDecodingParams",
    "Histogram",
    "InfillPrompt",
    "LLMEngine",
    "Logprob",
    "Metric",
    "PromptType",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStream",
    "SamplingParams",
    "SpeculativeDecodingMetrics",
    "StepTokens",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "Vector",
    "__version__",
    "cleanup_dist_env_and_memory",
    "errors",
]

_MODULES = {
    "beam_search": "BeamSearchOutput BeamSearchParams BeamSearchSequence",
    "engine": "Engine",
    "errors": "EngineFailed RequestError",
    "requests.inputs": "PromptType TextPrompt TokensPrompt",
    "requests.logprobs": "FlatLogprobs Logprob",
    "requests.outputs": """
        CompletionOutput DraftPolicyStats DraftTree DraftedToken DrafterStats EngineLoad EngineStats
        RequestMetrics RequestOutput SpeculativeDecodingMetrics StepTokens""",
    "requests.sampling_params": "RequestOutputKind SamplingParams",
    "requests.stream": "RequestStream",
    "requests.structured_outputs": "GuidedDecodingParams StructuredOutputsParams",
    "text.infill": "InfillPrompt",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("specdec_native.errors")
    if name == "__version__":
        return importlib.import_module("specdec_native._core").__version__
    if name in _HOMES:
        value = getattr(importlib.import_module(f"specdec_native.{_HOMES[name]}"), name)
    else:
        value = importlib.import_module("specdec_vllm.names").load(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
