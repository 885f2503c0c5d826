"""vLLM's offline class."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specdec_native.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from specdec_native.options.vllm_config import ModelConfig
from specdec_native.requests.inputs import PromptType
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.requests.stream import RequestStream
from specdec_native.text.chat_template import Message
from specdec_native.text.tokenizer import Tokenizer
from specdec_vllm.arguments import engine_options
from specdec_vllm.engine_args import arguments_of, make_engine
from specdec_vllm.engine_view import AdviceOnNames
from specdec_vllm.llm_engine import LLMEngine
from specdec_vllm.metrics import Metric
from specdec_vllm.request_options import (
    all_tokenized,
    refuse_content_format,
    refuse_request_options,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class LLM(AdviceOnNames):
    """Generates texts with one model.

    Takes vLLM's arguments. Those that only tune what is not here, such as a cluster, are accepted
    and ignored; those that would change answers in a way this engine cannot are refused.

    Attributes:
        engine: the Engine, which has what vLLM's LLM has not, such as stats().
        llm_engine: the same Engine with the methods of vLLM's LLMEngine.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: Any = None,
        dtype: Any = "auto",
        seed: int | None = 0,
        **kwargs: Any,
    ) -> None:
        """Loads a model.

        Args:
            model: a directory, a .gguf file or a model name. A draft head that names its target
                (speculators' format) stands for that, and drafts for it.
            tokenizer: another directory or name, or a tokenizer object.
            dtype: "auto", "bfloat16", "float16" or "float32", or the torch.dtype.
            seed: seeds requests that bring no seed.
            **kwargs: further arguments of vLLM's LLM and of Engine, among them speculative_config.
                The older arguments for speculation, such as speculative_model, still work and
                warn with the speculative_config that replaces them.

        Raises TypeError for an argument neither knows, ValueError for one that is not supported.
        """
        options = engine_options({**kwargs, "tokenizer": tokenizer, "dtype": dtype, "seed": seed})
        self.engine = make_engine(model, options)
        self.llm_engine = LLMEngine(self.engine)

    @classmethod
    def from_engine_args(cls, engine_args: Any) -> Self:
        """An LLM of an EngineArgs."""
        return cls(**arguments_of(engine_args))

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: Any = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: Any = None,
        priority: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[RequestOutput]:
        """Runs prompts to their end and returns their outputs in order. See Engine.generate.

        `tokenization_kwargs` are options of a call of the tokenizer, for prompts of text. Without
        scheduling_policy="priority", `priority` is ignored with a warning.
        """
        refuse_request_options(lora_request=lora_request, **kwargs)
        if prompts is None:
            prompts = prompt_token_ids
        elif prompt_token_ids is not None:
            raise ValueError("give prompts or prompt_token_ids, not both")
        if prompts is None:
            raise ValueError("prompts is missing")
        return self.engine.generate(
            all_tokenized(self.engine, prompts, tokenization_kwargs),
            sampling_params,
            use_tqdm=use_tqdm,
            priority=self.llm_engine.known_priority(priority),
        )

    def stream(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: Any = None,
        priority: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> RequestStream:
        """Starts prompts and returns an iterator over their outputs as they grow.

        The arguments are those of generate(). See Engine.stream, also for several prompts.
        """
        refuse_request_options(lora_request=lora_request, **kwargs)
        return self.engine.stream(
            all_tokenized(self.engine, prompts, tokenization_kwargs),
            sampling_params,
            priority=self.llm_engine.known_priority(priority),
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
        refuse_request_options(lora_request=lora_request, **kwargs)
        refuse_content_format(chat_template_content_format)
        return self.engine.chat(
            messages,
            sampling_params,
            use_tqdm=use_tqdm,
            priority=self.llm_engine.known_priority(priority),
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )

    def stream_chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora_request: Any = None,
        priority: Any = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> RequestStream:
        """stream() of the answer to a conversation, or to each of several.

        The arguments are those of chat().
        """
        refuse_request_options(lora_request=lora_request, **kwargs)
        refuse_content_format(chat_template_content_format)
        return self.engine.stream_chat(
            messages,
            sampling_params,
            priority=self.llm_engine.known_priority(priority),
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )

    @property
    def model_config(self) -> ModelConfig:
        """What was resolved for the model, such as max_model_len."""
        return self.llm_engine.model_config

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

        `use_tqdm` and `priority` are accepted; no bar is shown, and beams run one after the other.
        """
        del use_tqdm, priority
        refuse_request_options(lora_request=lora_request)
        return beam_search(self.engine, prompts, params, concurrency_limit)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.engine.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate() and chat() use without sampling_params."""
        return self.engine.get_default_sampling_params()

    def get_metrics(self) -> list[Metric]:
        """Counts since the model was loaded, by vLLM's names; engine.stats() has more.

        specdec_vllm.metrics says how those of drafts compare with vLLM's.
        """
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Drops all cached beginnings of prompts. See LLMEngine.reset_prefix_cache."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def get_world_size(self, include_dp: bool = True) -> int:
        """The ranks that share the model; a replica is an engine of its own."""
        del include_dp
        return self.llm_engine.vllm_config.parallel_config.world_size

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Frees the model's memory until wake_up(). See LLMEngine.sleep."""
        self.llm_engine.sleep(level, mode)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Loads the model again. See LLMEngine.wake_up."""
        self.llm_engine.wake_up(tags)

    def start_profile(self, *_: Any, **__: Any) -> None:
        """Says that there is no profiler: engine.stats() has the seconds of each phase."""
        self.llm_engine.start_profile()

    def stop_profile(self) -> None:
        """Does nothing; see start_profile()."""

    def __repr__(self) -> str:
        return f"LLM({self.engine!r})"
