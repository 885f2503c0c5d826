"""vLLM's engine that is stepped by hand."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec_native.engine import Engine
from specdec_native.requests.inputs import PromptType
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.vllm_compat.arguments import engine_options
from specdec_native.vllm_compat.config import ModelConfig, VllmConfig
from specdec_native.vllm_compat.engine_args import arguments_of
from specdec_native.vllm_compat.metrics import Metric, metrics_of

if TYPE_CHECKING:
    from typing_extensions import Self


class MadeOfEngineArgs:
    """What vLLM's engines have in common.

    Attributes:
        engine: the Engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def from_engine_args(cls, engine_args: Any, **_: Any) -> Self:
        """An engine of the arguments; further ones say how vLLM's processes are arranged."""
        arguments = arguments_of(engine_args)
        model = arguments.pop("model")
        return cls(Engine(model, **engine_options(arguments)))

    @property
    def vllm_config(self) -> VllmConfig:
        """What was resolved from the arguments and the checkpoint."""
        return self.engine.vllm_config

    @property
    def model_config(self) -> ModelConfig:
        """The model's part of vllm_config."""
        return self.engine.vllm_config.model_config


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
        tokenization_kwargs: Any = None,
        trace_headers: Any = None,
        priority: int = 0,
    ) -> str:
        """Queues a request whose outputs step() returns; gives back its id.

        The engine notes itself when it arrives.
        """
        del arrival_time, trace_headers
        refuse_request_options(lora_request=lora_request, tokenization_kwargs=tokenization_kwargs)
        if not isinstance(request_id, str):
            raise TypeError(
                f"request_id must be a string, got {request_id!r:.80}; the order is request_id, "
                "prompt, params"
            )
        return self.engine.add_request(prompt, params, request_id, priority)

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the requests that progressed or finished."""
        return self.engine.step()

    def abort_request(self, request_ids: str | Sequence[str]) -> None:
        """Ends requests; ids that are unknown or finished are left alone."""
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
        """Forgets the cached beginnings of prompts that no running request uses."""
        del reset_connector  # there is none
        if reset_running_requests:
            raise ValueError("reset_running_requests=True is not supported; abort them first")
        self.engine.reset_prefix_cache()
        return True

    def __getattr__(self, name: str) -> Any:
        if name == "engine":  # not yet made
            raise AttributeError(name)
        return getattr(self.engine, name)

    def __repr__(self) -> str:
        return f"LLMEngine({self.engine!r})"


def refuse_request_options(**options: Any) -> None:
    """Raises ValueError for an option of a request that would change its answer."""
    advice = {
        "lora_request": "merge the adapter into the checkpoint",
        "tokenization_kwargs": "tokenize with get_tokenizer() and give token ids",
        "mm_processor_kwargs": "only text is supported",
        "guided_options_request": "give SamplingParams(structured_outputs=...)",
        "prompt_adapter_request": "give text or token ids",
    }
    for name, value in options.items():
        if name not in advice:
            raise TypeError(f"unexpected argument {name!r}")
        entries = value if isinstance(value, (list, tuple)) else [value]
        if any(entry is not None and entry != {} for entry in entries):
            raise ValueError(f"{name} is not supported: {advice[name]}")


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Frees engines nothing refers to any more. There are no other processes to end."""
    del shutdown_ray
    gc.collect()
