"""The engine: continuous batching over one model, text in and text out."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from specdec_native import _core
from specdec_native.checkpoints.hf_config import check_hf_overrides
from specdec_native.common.checks import check_integer
from specdec_native.common.log import route_core_log
from specdec_native.common.progress import BAR_SECONDS, make_progress_bar
from specdec_native.engine_checkpoint import load_checkpoint
from specdec_native.errors import RequestError
from specdec_native.options.engine_arguments import EngineArguments, EngineSignature
from specdec_native.options.engine_options import check_quantization, make_config, parse_taps
from specdec_native.options.vllm_config import make_vllm_config
from specdec_native.ranks import join_ranks
from specdec_native.requests.batch_logits_processors import BatchOfOne, processor_classes
from specdec_native.requests.builder_methods import BuilderMethods
from specdec_native.requests.group import RequestGroup
from specdec_native.requests.inputs import (
    Prompt,
    PromptType,
    is_list_of_conversations,
    parse_prompt,
    parse_prompts,
)
from specdec_native.requests.outputs import EngineLoad, EngineStats, RequestOutput
from specdec_native.requests.request import Request
from specdec_native.requests.request_builder import GenerationConfig, RequestBuilder
from specdec_native.requests.request_runner import RequestRunner
from specdec_native.requests.sampling_params import RequestOutputKind, SamplingParams
from specdec_native.requests.stream import RequestStream
from specdec_native.requests.structured_outputs import check_structured_outputs_config
from specdec_native.speculation.custom_drafter import CustomDrafter
from specdec_native.text.chat_template import Message

route_core_log()


class Engine(BuilderMethods, EngineSignature):
    """Generates text with one model, on one device or on several that share it.

    The tokens and logprobs of a request depend on its prompt, parameters and seed alone, whatever
    runs beside it. All methods may be called from several threads. Requests of generate(), chat()
    and stream() run in the background; those of add_request() advance with them and in step().
    Coroutines read what stream() returns by `async for`.

    Attributes:
        vllm_config: what was resolved from options and checkpoint, by vLLM's names.
    """

    _is_sleeping = False

    def _load(self, model: str | os.PathLike[str], arguments: EngineArguments) -> None:
        self._model, self._arguments = model, arguments
        max_logprobs = check_integer("max_logprobs", arguments.max_logprobs, minimum=-1)
        check_quantization(arguments.quantization)
        check_hf_overrides(arguments.hf_overrides)
        structured_outputs = check_structured_outputs_config(arguments.structured_outputs_config)
        processors = processor_classes(arguments.logits_processors)
        generation = GenerationConfig(
            arguments.generation_config, arguments.override_generation_config
        )
        config = make_config(vars(arguments))
        checkpoint = load_checkpoint(config, model, arguments)
        self._directory = checkpoint.directory
        if arguments.taps is not None:
            config.tapped_layers, config.tap_final_hidden = parse_taps(arguments.taps)
        ranks = join_ranks(config)
        try:
            core = _core.EngineLoop(config)
        except BaseException:
            ranks.end()
            raise
        self._model_info = core.model_info()
        self.vllm_config = make_vllm_config(
            config, self._model_info, self._directory, checkpoint.speculative_config
        )
        self._builder = RequestBuilder(
            self._directory,
            checkpoint.text,
            self._model_info,
            generation=generation,
            max_logprobs=max_logprobs,
            structured_outputs_config=structured_outputs,
            logits_processors=[BatchOfOne(each, self.vllm_config) for each in processors],
        )
        self._runner = RequestRunner(core, ranks.end)
        self._end = weakref.finalize(self, self._runner.part)
        for drafter in config.speculative.drafters:
            if isinstance(drafter.custom, CustomDrafter):
                drafter.custom.start(self.vllm_config, self._runner.interrupt)

    # -- what was loaded

    def model_info(self) -> _core.ModelInfo:
        """What was resolved from the options and the checkpoint."""
        return self._model_info

    @property
    def model_directory(self) -> Path:
        """The checkpoint's directory on this machine."""
        return self._directory

    # -- whole batches

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Runs prompts to their end and returns their outputs in order.

        A prompt is text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}; give
        one or a list. `sampling_params` is one for all or one for each; None takes the checkpoint's
        defaults. `use_tqdm` shows a progress bar on a terminal. `priority` is one for all or each,
        lower first, for an engine with scheduling_policy="priority".
        Raises ValueError, with nothing run, if any prompt or parameter is bad; RequestError, which
        has all outputs, once the others are finished, if a request failed as it ran.
        """
        return self._run(parse_prompts(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers a conversation, a list of {"role", "content"}, or each of several.

        The checkpoint's chat template makes the prompt; `chat_template` replaces it, `tools` and
        `chat_template_kwargs` are handed to it. Otherwise like generate().
        """
        prompts = self._chat_prompts(
            messages,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template_kwargs=chat_template_kwargs,
        )
        return self._run(prompts, sampling_params, use_tqdm, priority)

    # -- streamed

    def stream(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_id: str | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> RequestStream:
        """Starts requests and returns an iterator over their outputs as they grow.

        The arguments are those of generate(); `request_id` names the request of a single prompt.
        Read by `for` or, in asyncio programs, by `async for`. Outputs of several prompts alternate
        as they come: RequestStream.request_ids has the ids in the order of the prompts.

        Outputs hold all text so far, or what is new with `output_kind=RequestOutputKind.DELTA`; one
        comes for every step, or for several where the reader is slower. Text that may yet turn out
        to be a stop string is held back. Dropping the iterator, or its close(), aborts what runs.
        Raises ValueError at once, with nothing started, if a prompt or a parameter is bad.
        """
        return self._start_stream(parse_prompts(prompts), sampling_params, request_id, priority)

    def stream_chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_id: str | None = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RequestStream:
        """stream() of the answer to a conversation, or to each of several. See chat()."""
        prompts = self._chat_prompts(
            messages,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template_kwargs=chat_template_kwargs,
        )
        return self._start_stream(prompts, sampling_params, request_id, priority)

    # -- several requests for one coroutine

    def prepare(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        request_ids: Sequence[str] | None = None,
        kind: RequestOutputKind | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[Request]:
        """Tokenizes and checks prompts and parameters, for start().

        Raises ValueError naming the first that is bad.
        """
        ids = request_ids or [self._runner.new_id() for _ in prompts]
        return self._builder.build(prompts, sampling_params, ids, kind=kind, priority=priority)

    def start(self, requests: Sequence[Request], *, interval: int = 1) -> RequestGroup:
        """Starts requests of prepare(), whose outputs a coroutine reads from the group.

        `interval` is the number of tokens that an output comes for, at least.
        """
        return RequestGroup(self, self._runner, requests, interval)

    # -- step by step

    def add_request(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
    ) -> str:
        """Queues a request whose outputs step() returns; gives back its id."""
        ids, prompts = [self._id_of(request_id)], [parse_prompt(prompt)]
        requests = self._builder.build(prompts, sampling_params, ids, priority=priority)
        self._runner.add_for_steps(requests[0])
        return requests[0].request_id

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the requests of add_request() that progressed or finished.

        Raises the error of a request that failed, once; the others go on. After an exception out of
        a signal handler, another call returns what this one would have.
        """
        return self._runner.step()

    def abort(self, request_id: str) -> bool:
        """Ends a request; returns False when the id is unknown or finished.

        Its stream or generate() call gets what there is, with finish_reason "abort"; step() reports
        nothing more of it.
        """
        return self._runner.abort(request_id)

    def has_unfinished_requests(self) -> bool:
        """Whether step() has anything to do or to report."""
        return self._runner.has_unfinished()

    # -- the engine as a whole

    def stats(self) -> EngineStats:
        """Counts and times since the engine was made, and what runs now."""
        stats = EngineStats.from_core(
            self._model_info.num_speculative_tokens, **self._runner.core.stats()
        )
        _, _, num_completions = self._runner.waiting()
        return dataclasses.replace(stats, num_waiting=stats.num_waiting + num_completions)

    def load(self) -> EngineLoad:
        """How busy the engine is, as of its last step; unlike stats() never waits for a step."""
        load = EngineLoad(**self._runner.core.load())
        num_requests, num_tokens, _ = self._runner.waiting()
        return dataclasses.replace(
            load,
            num_waiting=load.num_waiting + num_requests,
            num_waiting_tokens=load.num_waiting_tokens + num_tokens,
        )

    def check_health(self) -> None:
        """Raises what has ended the engine, EngineFailed or RankFailure; never waits for a step.

        A rank that is gone is noticed within a second, also where no request runs.
        """
        self._runner.core.check_health()

    def reset_prefix_cache(self) -> int:
        """Drops all cached beginnings of prompts; returns how many blocks that were.

        Running requests keep their blocks, which no other request finds from then on.
        """
        return self._runner.core.reset_prefix_cache()

    def sleep(self) -> None:
        """Aborts what runs and frees the model. Calls that need it raise RuntimeError until
        wake_up()."""
        self._runner.close()
        self._is_sleeping = True

    def wake_up(self) -> None:
        """Loads the model again, as it now is on disk, if the engine sleeps.

        The tokenizer is kept. Counts begin again, as do the seeds of requests that bring none.
        """
        if not self._is_sleeping:
            return
        arguments = self._arguments
        if self.has_tokenizer:
            arguments = dataclasses.replace(arguments, tokenizer=self.tokenizer)
        self._end.detach()
        self._load(self._model, arguments)
        self._is_sleeping = False

    def is_sleeping(self) -> bool:
        """Whether wake_up() is needed before anything runs."""
        return self._is_sleeping

    def close(self) -> None:
        """Aborts what runs and frees the model. Further calls raise RuntimeError."""
        self._runner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        info = self._model_info
        return (
            f"Engine(model={str(self._directory)!r}, architecture={info.architecture!r}, "
            f"dtype={info.dtype!r}, weight_format={info.weight_format!r}, device={info.device!r}, "
            f"max_model_len={info.max_model_len})"
        )

    # -- running requests

    def _run(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        show_progress: bool | Callable[..., Any],
        priority: int | Sequence[int] | None,
    ) -> list[RequestOutput]:
        ids = [self._runner.new_id() for _ in prompts]
        kind = RequestOutputKind.FINAL_ONLY
        requests = self._builder.build(prompts, sampling_params, ids, kind=kind, priority=priority)
        bar = make_progress_bar(show_progress, len(requests))
        handles: list[_core.RequestHandle] = []
        try:
            handles = self._runner.add(requests)
            for request in requests:
                while not self._runner.wait_for(request.is_finished, BAR_SECONDS):
                    bar.update(requests)
            bar.update(requests)
        finally:
            for handle in handles:
                handle.abort()
            bar.close()
        outputs = [request.peek()[0] for request in requests]
        errors = {i: r.error for i, r in enumerate(requests) if r.error is not None}
        if errors:
            raise RequestError(outputs, errors)
        return outputs

    def _start_stream(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        request_id: str | None,
        priority: int | Sequence[int] | None,
    ) -> RequestStream:
        if request_id is not None and len(prompts) != 1:
            raise ValueError(f"request_id names one request, and there are {len(prompts)} prompts")
        ids = [self._id_of(request_id) for _ in prompts]
        requests = self._builder.build(prompts, sampling_params, ids, priority=priority)
        return RequestStream(self, self._runner, requests, self._runner.add(requests))

    def _chat_prompts(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], **template_options: Any
    ) -> list[Prompt]:
        conversations = messages if is_list_of_conversations(messages) else [messages]
        return [
            self._builder.chat_prompt(each, **template_options)  # type: ignore[arg-type]
            for each in conversations
        ]

    def _id_of(self, request_id: str | None) -> str:
        if request_id is not None and not isinstance(request_id, str):
            raise ValueError(f"request_id must be a string, got {request_id!r}")
        return request_id or self._runner.new_id()
