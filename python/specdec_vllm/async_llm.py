"""vLLM's engine for asyncio programs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from specdec_native.options.vllm_config import ModelConfig, VllmConfig
from specdec_native.requests.inputs import PromptType
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.tokenizer import Tokenizer
from specdec_vllm.engine_args import EngineArgs
from specdec_vllm.engine_view import EngineView
from specdec_vllm.request_options import refuse_request_options, tokenized

AsyncEngineArgs = EngineArgs  # with what vLLM's server adds

_logger = logging.getLogger("specdec_native")


class AsyncLLM(EngineView):
    """An Engine with the methods of vLLM's AsyncLLM, which is also its AsyncLLMEngine.

    Attributes:
        engine: the Engine, which has what vLLM's has not, such as stream() and stats().
    """

    log_requests = False

    def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of a request as they grow; see Engine.stream.

        The request starts when the first output is asked for, and is aborted when the generator is
        closed or the task that reads it is cancelled. Further options are vLLM's; those that would
        change the answer are refused.
        """
        refuse_request_options(**options)
        prompt = tokenized(self.engine, prompt, tokenization_kwargs)
        return self._outputs(prompt, sampling_params, request_id, self.known_priority(priority))

    async def _outputs(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None,
        request_id: str | None,
        priority: int,
    ) -> AsyncGenerator[RequestOutput, None]:
        async with self.engine.stream(
            [prompt], sampling_params, request_id=request_id, priority=priority
        ) as stream:
            async for output in stream:
                yield output

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> bool:
        """Ends requests; False when none of them was unfinished."""
        del internal  # ids are the caller's
        aborted = False
        for each in [request_id] if isinstance(request_id, str) else request_id:
            aborted |= await asyncio.to_thread(self.engine.abort, each)
        return aborted

    async def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.get_tokenizer()

    async def get_model_config(self) -> ModelConfig:
        """The model's part of vllm_config."""
        return self.model_config

    async def get_vllm_config(self) -> VllmConfig:
        """What was resolved from the arguments and the checkpoint."""
        return self.vllm_config

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model is for."""
        return ("generate",)

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Drops all cached beginnings of prompts; see LLMEngine.reset_prefix_cache."""
        del reset_running_requests, reset_connector
        await asyncio.to_thread(self.engine.reset_prefix_cache)
        return True

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Aborts what runs and frees the model's memory until wake_up(). Level 0 does nothing."""
        del mode
        if level > 0:
            await asyncio.to_thread(self.engine.sleep)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads the model again, all of it, as it now is on disk."""
        del tags
        await asyncio.to_thread(self.engine.wake_up)

    async def is_sleeping(self) -> bool:
        """Whether wake_up() is needed before anything runs."""
        return self.engine.is_sleeping()

    async def check_health(self) -> None:
        """Raises what has ended the engine; see Engine.check_health."""
        self.engine.check_health()

    @property
    def dead_error(self) -> Exception | None:
        """What has ended the engine; None while it can run requests."""
        try:
            self.engine.check_health()
        except Exception as error:
            return error
        return None

    @property
    def errored(self) -> bool:
        """Whether the engine can run nothing any more."""
        return self.dead_error is not None

    @property
    def is_running(self) -> bool:
        """Whether the engine can run requests."""
        return not self.errored

    is_stopped = errored

    async def is_tracing_enabled(self) -> bool:
        """False."""
        return False

    async def do_log_stats(self) -> None:
        """Logs how many requests run and wait; engine.stats() has more."""
        load = self.engine.load()
        _logger.info("%d requests run, %d wait", load.num_running, load.num_waiting)

    async def start_profile(self, *_: Any, **__: Any) -> None:
        """Says that there is no profiler: engine.stats() has the seconds of each phase."""
        _logger.warning("there is no profiler here; engine.stats() has seconds by phase")

    async def stop_profile(self) -> None:
        """Does nothing; see start_profile()."""


AsyncLLMEngine = AsyncLLM
