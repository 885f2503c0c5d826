"""vLLM's engine that is stepped by hand."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_native.requests.inputs import PromptType
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.tokenizer import Tokenizer
from specdec_vllm.engine_view import EngineView
from specdec_vllm.metrics import Metric, metrics_of
from specdec_vllm.request_options import refuse_request_options, tokenized

_logger = logging.getLogger("specdec_native")


class LLMEngine(EngineView):
    """An Engine with the methods of vLLM's LLMEngine, for scripts that call step().

    Attributes:
        engine: the Engine, which has what vLLM's has not, such as stream() and stats().
    """

    def add_request(  # noqa: PLR0917 - the order is vLLM's
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Any = None,
        priority: int = 0,
        **options: Any,
    ) -> str:
        """Queues a request whose outputs step() returns; gives back its id.

        The engine notes itself when it arrives.
        """
        del arrival_time, trace_headers
        refuse_request_options(lora_request=lora_request, **options)
        if not isinstance(request_id, str):
            raise TypeError(
                f"request_id must be a string, got {request_id!r:.80}; the order is request_id, "
                "prompt, params"
            )
        prompt = tokenized(self.engine, prompt, tokenization_kwargs)
        return self.engine.add_request(prompt, params, request_id, self.known_priority(priority))

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the requests that progressed or finished."""
        return self.engine.step()

    def abort_request(self, request_ids: str | Sequence[str], internal: bool = False) -> None:
        """Ends requests; ids that are unknown or finished are left alone."""
        del internal  # ids are the caller's
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self.engine.abort(request_id)

    def has_unfinished_requests(self) -> bool:
        """Whether step() has anything to do or to report."""
        return self.engine.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        """Completions that run or wait; a request has n of them."""
        stats = self.engine.stats()
        return stats.num_running + stats.num_waiting

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ValueError if there is none."""
        return self.engine.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ValueError if there is none."""
        return self.engine.tokenizer

    def get_metrics(self) -> list[Metric]:
        """Counts since the model was loaded, by vLLM's names; engine.stats() has more."""
        return metrics_of(self.engine.stats(), self.model_config.model)

    def check_health(self) -> None:
        """Raises what has ended the engine; see Engine.check_health."""
        self.engine.check_health()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Drops all cached beginnings of prompts.

        Running requests go on, also with `reset_running_requests`: the model is the same. Nobody
        finds their blocks from then on.
        """
        del reset_running_requests, reset_connector
        self.engine.reset_prefix_cache()
        return True

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Aborts what runs and frees the model's memory until wake_up(). Level 0 does nothing."""
        del mode
        if level > 0:
            self.engine.sleep()

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads the model again, all of it, as it now is on disk."""
        del tags
        self.engine.wake_up()

    def is_sleeping(self) -> bool:
        """Whether wake_up() is needed before anything runs."""
        return self.engine.is_sleeping()

    def start_profile(self, *_: Any, **__: Any) -> None:
        """Says that there is no profiler: engine.stats() has the seconds of each phase."""
        _logger.warning("there is no profiler here; engine.stats() has seconds by phase")

    def stop_profile(self) -> None:
        """Does nothing; see start_profile()."""


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Frees engines nothing refers to any more, and ends torch.distributed, where it runs."""
    del shutdown_ray
    destroy_distributed_environment()
    gc.collect()


def destroy_distributed_environment() -> None:
    """Ends torch.distributed, where it runs. The ranks of an engine end with it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def destroy_model_parallel() -> None:
    """Does nothing: the ranks of an engine end with it."""
