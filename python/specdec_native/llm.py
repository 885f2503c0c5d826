"""vLLM's offline class: an ordinary script runs with only its import changed."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_native import speculative_arguments
from specdec_native.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from specdec_native.chat_template import Message
from specdec_native.engine import Engine
from specdec_native.inputs import PromptType
from specdec_native.outputs import EngineStats, RequestOutput
from specdec_native.sampling_params import SamplingParams
from specdec_native.tokenizer import Tokenizer

_logger = logging.getLogger("specdec_native")

# vLLM arguments that are the engine's, by its name for them.
_ENGINE_ARGUMENTS = {
    "block_size": "block_size",
    "chat_template": "chat_template",
    "cpu_isa": "cpu_isa",
    "deterministic": "deterministic",
    "device": "device",
    "enable_prefix_caching": "enable_prefix_caching",
    "enforce_eager": "enforce_eager",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_dtype": "kv_cache_dtype",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "logprobs_mode": "logprobs_mode",
    "max_logprobs": "max_logprobs",
    "max_model_len": "max_model_len",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "num_gpu_blocks_override": "num_kv_blocks",
    "num_kv_blocks": "num_kv_blocks",
    "num_threads": "num_threads",
    "quantization": "quantization",
    "revision": "revision",
    "skip_tokenizer_init": "skip_tokenizer_init",
    "speculative_config": "speculative_config",
    "trust_remote_code": "trust_remote_code",
}

# Arguments that only tune other engines' GPU code, a cluster, downloads or logs: they change no
# answer.
_IGNORED_ARGUMENTS = frozenset(
    {
        "aggregate_engine_logging",
        "allowed_local_media_path",
        "allowed_media_domains",
        "async_scheduling",
        "attention_backend",
        "attention_config",
        "code_revision",
        "collect_detailed_traces",
        "compilation_config",
        "cpu_offload_gb",
        "cpu_offload_params",
        "cudagraph_capture_sizes",
        "cudagraph_metrics",
        "custom_histogram_buckets",
        "disable_async_output_proc",
        "disable_cascade_attn",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        "disable_log_requests",
        "disable_log_stats",
        "distributed_executor_backend",
        "download_dir",
        "enable_chunked_prefill",
        "enable_sleep_mode",
        "hf_token",
        "ignore_patterns",
        "kv_cache_metrics",
        "load_format",
        "log_level",
        "logging_config",
        "long_prefill_token_threshold",
        "max_cudagraph_capture_size",
        "max_long_partial_prefills",
        "max_num_partial_prefills",
        "max_parallel_loading_workers",
        "max_seq_len_to_capture",
        "model_impl",
        "moe_backend",
        "num_lookahead_slots",
        "offload_backend",
        "offload_group_size",
        "offload_num_in_group",
        "offload_params",
        "offload_prefetch_step",
        "optimization_level",
        "otlp_traces_endpoint",
        "performance_mode",
        "preemption_mode",
        "prefix_caching_hash_algo",
        "profiler_config",
        "ray_workers_use_nsight",
        "renderer_num_workers",
        "safetensors_load_strategy",
        "served_model_name",
        "show_hidden_metrics_for_version",
        "stream_interval",
        "swap_space",
        "use_tqdm_on_load",
    }
)

# Arguments of which one value is what happens here anyway, and what to do about another.
_FIXED_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "config_format": (("auto", "hf"), "use a Hugging Face checkpoint"),
    "convert": (("auto", "none"), "only text generation is supported"),
    "data_parallel_size": ((1,), "start one process for each replica"),
    "decode_context_parallel_size": ((1,), "one device is supported"),
    "enable_expert_parallel": ((False,), "one device is supported"),
    "enable_lora": ((False,), "merge the adapter into the checkpoint"),
    "enable_prompt_embeds": ((False,), "give text or token ids"),
    "enable_return_routed_experts": ((False,), "routed experts are not reported"),
    "hf_config_path": ((None,), "put config.json beside the weights"),
    "hf_overrides": ((None, {}), "edit the checkpoint's config.json instead"),
    "kv_transfer_config": ((None,), "the cache stays in this process"),
    "limit_mm_per_prompt": ((None, {}), "only text is supported"),
    "logits_processors": (
        (None, []),
        "give functions of one row as SamplingParams(logits_processors=[...])",
    ),
    "mm_processor_kwargs": ((None, {}), "only text is supported"),
    "override_generation_config": ((None, {}), "set the values in SamplingParams"),
    "override_pooler_config": ((None,), "only text generation is supported"),
    "pipeline_parallel_size": ((1,), "one device is supported"),
    "pooler_config": ((None,), "only text generation is supported"),
    "quantization_config": ((None, {}), 'give quantization="int8" or "int4", or a GGUF file'),
    "reasoning_parser": (("", None), "split the text after generation"),
    "return_sampling_mask": ((False,), "sampling masks are not reported"),
    "runner": (("auto", "generate"), "only text generation is supported"),
    "scheduling_policy": (("fcfs",), "requests run in the order they come"),
    "structured_outputs_config": ((None, {}), "structured outputs are not supported"),
    "task": (("auto", "generate"), "only text generation is supported"),
    "tensor_parallel_size": ((1,), "one device is supported"),
    "tokenizer_mode": (("auto", "hf"), "tokenizers are read from tokenizer.json"),
    "tokenizer_revision": ((None,), "give tokenizer the directory of that revision"),
}


class LLM:
    """Generates texts with one model.

    Takes vLLM's arguments. Those that only tune what is not here, such as a cluster, are accepted
    and ignored; those that would change answers in a way this engine cannot are refused.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: Any = None,
        dtype: Any = "auto",
        seed: int | None = 0,
        generation_config: str = "auto",
        **kwargs: Any,
    ) -> None:
        """Loads a model.

        Args:
            model: a directory, a .gguf file or a model name.
            tokenizer: another directory or name, or a tokenizer object.
            dtype: "auto", "bfloat16", "float16" or "float32", or the torch.dtype.
            seed: seeds requests that bring no seed.
            generation_config: "auto" takes default sampling parameters from the checkpoint,
                "vllm" takes SamplingParams() as they are.
            **kwargs: further arguments of vLLM's LLM and of Engine, among them speculative_config.
                The older arguments for speculation, such as speculative_model, still work and
                warn with the speculative_config that replaces them.

        Raises TypeError for an argument neither knows, ValueError for one that is not supported.
        """
        if generation_config not in ("auto", "vllm"):
            raise ValueError(
                f'generation_config must be "auto" or "vllm", got {generation_config!r}'
            )
        self._neutral_defaults = generation_config == "vllm"
        options = _engine_options(speculative_arguments.resolve_arguments(kwargs))
        self.llm_engine = Engine(model, tokenizer=tokenizer, dtype=dtype, seed=seed or 0, **options)

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: Any = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Any = None,
        priority: Any = None,
        **kwargs: Any,
    ) -> list[RequestOutput]:
        """Runs prompts to their end and returns their outputs in order. See Engine.generate."""
        _refuse(lora_request=lora_request, priority=priority, **kwargs)
        if prompts is None:
            prompts = prompt_token_ids
        elif prompt_token_ids is not None:
            raise ValueError("give prompts or prompt_token_ids, not both")
        if prompts is None:
            raise ValueError("prompts is missing")
        return self.llm_engine.generate(
            prompts, self._or_default(sampling_params), use_tqdm=use_tqdm
        )

    def chat(  # noqa: PLR0917 - the order is vLLM's
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Any = None,
        priority: Any = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[RequestOutput]:
        """Answers a conversation or each of several. See Engine.chat."""
        _refuse(lora_request=lora_request, priority=priority, **kwargs)
        if chat_template_content_format not in ("auto", "string"):
            raise ValueError(
                'chat_template_content_format must be "auto" or "string", got '
                f"{chat_template_content_format!r}"
            )
        return self.llm_engine.chat(
            messages,
            self._or_default(sampling_params),
            use_tqdm=use_tqdm,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )

    def beam_search(  # noqa: PLR0917 - the order is vLLM's
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: Any = None,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
        priority: Any = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of each prompt. See beam_search.beam_search.

        `use_tqdm` is accepted; no bar is shown.
        """
        _refuse(lora_request=lora_request, priority=priority)
        return beam_search(self.llm_engine, prompts, params, concurrency_limit)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate() and chat() use without sampling_params."""
        if self._neutral_defaults:
            return SamplingParams()
        return self.llm_engine.get_default_sampling_params()

    def get_metrics(self) -> EngineStats:
        """Counts and times since the model was loaded."""
        return self.llm_engine.stats()

    def reset_prefix_cache(self) -> bool:
        """Forgets the cached beginnings of prompts."""
        self.llm_engine.reset_prefix_cache()
        return True

    def _or_default(
        self, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> SamplingParams | Sequence[SamplingParams]:
        return self.get_default_sampling_params() if params is None else params

    def __repr__(self) -> str:
        return f"LLM({self.llm_engine!r})"


def _engine_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    ignored = []
    for name, value in kwargs.items():
        if name in _ENGINE_ARGUMENTS:
            if value is not None:  # vLLM's "choose for me"
                options[_ENGINE_ARGUMENTS[name]] = value
        elif name in _FIXED_ARGUMENTS:
            allowed, advice = _FIXED_ARGUMENTS[name]
            if value is not None and value not in allowed:
                raise ValueError(f"{name}={value!r} is not supported: {advice}")
        elif name in _IGNORED_ARGUMENTS:
            ignored.append(name)
        else:
            raise TypeError(_unknown_argument(name))
    if ignored:
        _logger.info("ignored, as they have no effect here: %s", ", ".join(sorted(ignored)))
    return options


def _unknown_argument(name: str) -> str:
    known = [
        *_ENGINE_ARGUMENTS,
        *_FIXED_ARGUMENTS,
        *_IGNORED_ARGUMENTS,
        *speculative_arguments.ARGUMENTS,
        *("model", "tokenizer", "dtype", "seed", "generation_config"),
    ]
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"LLM got an unexpected argument {name!r}{hint}"


def _refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if name not in (
            "lora_request",
            "priority",
            "tokenization_kwargs",
            "mm_processor_kwargs",
            "guided_options_request",
            "prompt_adapter_request",
        ):
            raise TypeError(f"unexpected argument {name!r}")
        if value is not None and value != {}:
            raise ValueError(f"{name} is not supported; leave it at None")
