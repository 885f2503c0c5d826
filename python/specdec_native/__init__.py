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
    from specdec_native.errors import EngineFailed
    from specdec_native.inputs import TextPrompt, TokensPrompt
    from specdec_native.llm import LLM
    from specdec_native.logprobs import FlatLogprobs, Logprob
    from specdec_native.outputs import CompletionOutput, RequestOutput
    from specdec_native.sampling_params import RequestOutputKind, SamplingParams
    from specdec_native.stream import RequestStream

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Engine",
    "EngineFailed",
    "FlatLogprobs",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStream",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "errors",
]

_HOMES = {
    "LLM": "llm",
    "BeamSearchOutput": "beam_search",
    "BeamSearchParams": "beam_search",
    "BeamSearchSequence": "beam_search",
    "CompletionOutput": "outputs",
    "Engine": "engine",
    "EngineFailed": "errors",
    "FlatLogprobs": "logprobs",
    "Logprob": "logprobs",
    "RequestOutput": "outputs",
    "RequestOutputKind": "sampling_params",
    "RequestStream": "stream",
    "SamplingParams": "sampling_params",
    "TextPrompt": "inputs",
    "TokensPrompt": "inputs",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("specdec_native.errors")
    if name == "__version__":
        return importlib.import_module("specdec_native._core").__version__
    if name not in _HOMES:
        raise AttributeError(f"module 'specdec_native' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"specdec_native.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
