"""vLLM's engine for asyncio programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from specdec_native.async_engine import AsyncEngine
from specdec_native.requests.inputs import PromptType
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.tokenizer import Tokenizer
from specdec_native.vllm_compat.config import ModelConfig
from specdec_native.vllm_compat.engine_args import EngineArgs
from specdec_native.vllm_compat.llm_engine import MadeOfEngineArgs, refuse_request_options

AsyncEngineArgs = EngineArgs  # with what vLLM's server adds


class AsyncLLM(AsyncEngine, MadeOfEngineArgs):
    """An AsyncEngine with the methods of vLLM's AsyncLLM, which is also its AsyncLLMEngine."""

    def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of a request as they grow; see AsyncEngine.generate.

        `trace_headers` change nothing.
        """
        options.pop("trace_headers", None)
        refuse_request_options(**options)
        return super().generate(prompt, sampling_params, request_id, priority=priority)

    async def abort(self, request_id: str | Iterable[str]) -> bool:
        """Ends requests; False when none of them was unfinished."""
        aborted = False
        for each in [request_id] if isinstance(request_id, str) else request_id:
            aborted |= await super().abort(each)
        return aborted

    async def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.get_tokenizer()

    async def get_model_config(self) -> ModelConfig:
        """The model's part of vllm_config."""
        return self.model_config

    async def reset_prefix_cache(self) -> bool:
        """Forgets the cached beginnings of prompts that no running request uses."""
        await asyncio.to_thread(self.engine.reset_prefix_cache)
        return True

    def shutdown(self) -> None:
        """Aborts what runs and frees the model."""
        self.close()


AsyncLLMEngine = AsyncLLM
