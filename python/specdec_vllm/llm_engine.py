"""vLLM's engine that is stepped by hand."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_native.engine import Engine
from specdec_native.options.vllm_config import ModelConfig, VllmConfig
from specdec_native.requests.inputs import PromptType
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.text.tokenizer import Tokenizer
from specdec_vllm.arguments import engine_options
from specdec_vllm.engine_args import LoadedConfig, arguments_of, engine_maker
from specdec_vllm.metrics import Metric, metrics_of
from specdec_vllm.missing import (
    MISSING_METHODS,
    REFUSED_NAMES,
    missing_attribute,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger("specdec_native")


class MadeOfEngineArgs:
    """What vLLM's engines have in common.

    Attributes:
        engine: the Engine.
    """

    _make: Callable[..., Engine] | None = None
    _is_sleeping = False
    _has_warned = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def made_by(cls, make: Callable[..., Engine]) -> Self:
        """An engine that can be made again after it slept; `make` takes a tokenizer, perhaps."""
        made = cls(make())
        made._make = make
        return made

    @classmethod
    def from_engine_args(
        cls, engine_args: Any, *_: Any, stat_loggers: Any = None, **__: Any
    ) -> Self:
        """An engine of the arguments; further ones say how vLLM's processes are arranged.

        `stat_loggers` are ignored with a warning.
        """
        if stat_loggers:
            _logger.warning("stat_loggers are ignored: %s", REFUSED_NAMES["StatLoggerBase"])
        arguments = arguments_of(engine_args)
        return cls.made_by(engine_maker(arguments.pop("model"), engine_options(arguments)))

    @classmethod
    def from_vllm_config(cls, vllm_config: LoadedConfig, *_: Any, **__: Any) -> Self:
        """The engine of EngineArgs.create_engine_config()."""
        if not isinstance(vllm_config, LoadedConfig):
            raise TypeError(
                f"vllm_config must be what EngineArgs.create_engine_config() returns, got "
                f"{vllm_config!r:.80}"
            )
        made = cls(vllm_config.engine)
        made._make = vllm_config.make
        return made

    @property
    def vllm_config(self) -> VllmConfig:
        """What was resolved from the arguments and the checkpoint."""
        return self.engine.vllm_config

    @property
    def model_config(self) -> ModelConfig:
        """The model's part of vllm_config."""
        return self.engine.vllm_config.model_config

    @property
    def engine_core(self) -> Self:
        """The engine itself, under the names that scripts shut down or delete parts of vLLM's by.

        Deleting one does nothing: the model is freed with the last reference to the engine.
        """
        return self

    @engine_core.deleter
    def engine_core(self) -> None:
        pass

    model_executor = driver_worker = engine_core

    def shutdown(self, timeout: float | None = None) -> None:
        """Aborts what runs and frees the model."""
        del timeout
        self.engine.close()

    def known_priority(self, priority: Any) -> Any:
        """`priority` where the scheduler minds it. Elsewhere 0 for each, as in vLLM, and the first
        that asks for more is logged."""
        given = priority if isinstance(priority, (list, tuple)) else [priority]
        if self.vllm_config.scheduler_config.policy == "priority" or not any(given):
            return priority
        if not all(isinstance(each, int) for each in given):
            return priority  # which is refused with what is wrong
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                'priority is ignored: make the engine with scheduling_policy="priority"'
            )
        return [0] * len(given) if given is priority else 0

    def _fall_asleep(self, level: int) -> None:
        if level > 0 and not self._is_sleeping:
            if self._make is None:
                raise ValueError("sleep needs an engine that was made of arguments")
            self._is_sleeping = True
            self.engine.close()

    def _wake(self) -> None:
        if self._is_sleeping and self._make is not None:
            kept = {"tokenizer": self.engine.tokenizer} if self.engine.has_tokenizer else {}
            self.engine = self._make(**kept)
            self._is_sleeping = False


class LLMEngine(MadeOfEngineArgs):
    """An Engine with vLLM's methods; those that vLLM does not have, such as stream(), are Engine's.

    Attributes:
        engine: the Engine.
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

    def get_metrics(self) -> list[Metric]:
        """Counts since the model was loaded, by vLLM's names; stats() has more."""
        return metrics_of(self.engine.stats(), self.model_config.model)

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forgets the cached beginnings of prompts that no running request uses.

        Running requests go on, also with `reset_running_requests`: the model is the same.
        """
        del reset_running_requests, reset_connector
        self.engine.reset_prefix_cache()
        return True

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Aborts what runs and frees the model's memory until wake_up(). Level 0 does nothing."""
        del mode
        self._fall_asleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads the model again, all of it, as it now is on disk."""
        del tags
        self._wake()

    def is_sleeping(self) -> bool:
        """Whether wake_up() is needed before anything runs."""
        return self._is_sleeping

    def __getattr__(self, name: str) -> Any:
        if name == "engine" or name in MISSING_METHODS:  # not yet made, or not here
            raise missing_attribute("LLMEngine", name)
        return getattr(self.engine, name)

    def __repr__(self) -> str:
        return f"LLMEngine({self.engine!r})"


# What to do in place of the options of a request that would change its answer.
_REFUSED_OPTIONS = {
    "lora_request": "merge the adapter into the checkpoint",
    "tokenization_kwargs": "tokenize with get_tokenizer() and give token ids to generate()",
    "mm_processor_kwargs": "only text is supported",
    "guided_options_request": "give SamplingParams(structured_outputs=...)",
    "prompt_adapter_request": "give text or token ids",
    "reasoning_ended": "grammars hold from the first token on",
    "reasoning_parser_kwargs": "split the text after generation",
}
_IGNORED_OPTIONS = ("arrival_time", "prompt_text", "session_id", "trace_headers")


def refuse_request_options(**options: Any) -> None:
    """Raises ValueError for an option of a request that would change its answer."""
    for name, value in options.items():
        if name in _IGNORED_OPTIONS or (name == "data_parallel_rank" and not value):
            continue
        if name not in _REFUSED_OPTIONS:
            raise TypeError(f"unexpected argument {name!r}")
        entries = value if isinstance(value, (list, tuple)) else [value]
        if any(entry is not None and entry != {} for entry in entries):
            raise ValueError(f"{name} is not supported: {_REFUSED_OPTIONS[name]}")


def tokenized(engine: Engine, prompt: Any, options: Mapping[str, Any] | None) -> Any:
    """A prompt with the token ids that `options` of a tokenizer's call give its text.

    vLLM's own `truncate_prompt_tokens` keeps so many last tokens, -1 as many as may be a prompt.
    """
    if not options or (not isinstance(prompt, (str, Mapping)) or "prompt_token_ids" in prompt):
        return prompt
    given = dict(options)
    most = given.pop("truncate_prompt_tokens", None)
    if most is not None:
        limit = engine.vllm_config.model_config.max_model_len - 1
        most = limit if most == -1 else most
        given = {"truncation": True, "truncation_side": "left", "max_length": most, **given}
    parts = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
    tokenizer: Tokenizer = engine.get_tokenizer()
    return {**parts, "prompt_token_ids": tokenizer(parts["prompt"], **given).input_ids}


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
