"""The arguments of Engine. Written by scripts/write_options.py; do not edit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from specdec_native.checkpoints.hf_config import HfOverrides


@dataclasses.dataclass(frozen=True)
class EngineArguments:
    """Engine's options, which EngineSignature describes."""

    tokenizer: Any
    dtype: str
    load_format: str
    quantization: str
    device: str
    cpu_isa: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    scheduling_policy: str
    kv_cache_dtype: str
    kv_cache_memory_bytes: int | None
    num_kv_blocks: int | None
    gpu_memory_utilization: float
    block_size: int
    enable_prefix_caching: bool
    enforce_eager: bool
    deterministic: bool
    num_threads: int | None
    seed: int
    logprobs_mode: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    distributed_executor_backend: str
    distributed_timeout_seconds: float
    hf_overrides: HfOverrides | None
    max_logprobs: int
    skip_tokenizer_init: bool
    trust_remote_code: bool
    revision: str | None
    chat_template: str | os.PathLike[str] | None
    generation_config: str | os.PathLike[str]
    override_generation_config: Mapping[str, Any] | None
    speculative_config: Mapping[str, Any] | None
    structured_outputs_config: Mapping[str, bool] | None
    logits_processors: Sequence[type[Any] | str] | None
    taps: Sequence[int | Literal["final"]] | None


class EngineSignature:
    """The constructor of Engine."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: Any = None,
        dtype: str = "auto",
        load_format: str = "auto",
        quantization: str = "auto",
        device: str = "auto",
        cpu_isa: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        scheduling_policy: str = "fcfs",
        kv_cache_dtype: str = "auto",
        kv_cache_memory_bytes: int | None = None,
        num_kv_blocks: int | None = None,
        gpu_memory_utilization: float = 0.9,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        enforce_eager: bool = False,
        deterministic: bool = True,
        num_threads: int | None = None,
        seed: int = 0,
        logprobs_mode: str = "raw_logprobs",
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        distributed_executor_backend: str = "threads",
        distributed_timeout_seconds: float = 60.0,
        hf_overrides: HfOverrides | None = None,
        max_logprobs: int = 20,
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        revision: str | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        generation_config: str | os.PathLike[str] = "auto",
        override_generation_config: Mapping[str, Any] | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        structured_outputs_config: Mapping[str, bool] | None = None,
        logits_processors: Sequence[type[Any] | str] | None = None,
        taps: Sequence[int | Literal["final"]] | None = None,
    ) -> None:
        """Loads a checkpoint.

        Args:
            model: a directory, a .gguf file or a model name. A draft head that names its target
                (speculators' format) stands for that, and drafts for it.
            tokenizer: another checkpoint's directory or name, or a tokenizer object.
            dtype: "auto" (the checkpoint's), "bfloat16", "float32" (on a CPU) or "float16" (on a
                CPU bfloat16, with a warning). "half" is float16. "auto" is bfloat16 where the
                device does not have the checkpoint's.
            load_format: "auto", or "dummy": random weights of the right shapes, always the same.
                Only config.json and the tokenizer are read, of a draft model, too. For measuring.
            quantization: how weights are held: "auto" (as stored), "none" (at dtype), "int8",
                "int4", or "fp8" on a GPU. "auto" keeps the codes of a quantised checkpoint (GGUF,
                GPTQ, AWQ, compressed-tensors and the others of docs/quantization.md);
                `specdec-native info MODEL` says what each kind of matrix becomes. "int8": a scale
                for each output. "int4": a scale for every 32 inputs of an output; embedding and
                head in 8 bits, grouped likewise. "fp8": 8-bit floats, a scale for each output;
                embedding and head stay at dtype. Integers stored in as few bits stay as they are.
                On a CPU products with integers round their inputs to 8 bits, a scale for every 32
                of a row (of 16 where the weights' groups are of 16).
            device: "cpu", "cuda" (the first GPU), "cuda:N", or "auto": the first GPU this build has
                kernels for, else the CPU. model_info().device is what was chosen.
            cpu_isa: "auto", or a narrower instruction set of `specdec-native info`.
            max_model_len: tokens of prompt and output together; None for the checkpoint's.
            max_num_seqs: sequences that run in one step; None for 64, on a GPU 256. A step reads
                the same weights for one row and for hundreds, so more of them share it on a GPU.
            max_num_batched_tokens: tokens computed in one step; longer prompts are cut into chunks;
                None for 512, on a GPU 8192.
            scheduling_policy: which requests run first: "fcfs", those that came first, or
                "priority", those of the lowest priority value, then those that came first. The same
                order in reverse says who is preempted where memory is short. With "fcfs" a request
                has no priority but 0.
            kv_cache_dtype: keys and values: "auto" (dtype), or "int8" with a scale for each token
                and head. "int8" takes about half the memory of bfloat16.
            kv_cache_memory_bytes: size of the KV cache; None for what num_kv_blocks or the device
                gives.
            num_kv_blocks: the same in blocks; exclusive with kv_cache_memory_bytes; None for what
                kv_cache_memory_bytes or the device gives.
            gpu_memory_utilization: share of a GPU's memory to use; in (0, 1]. What weights,
                workspaces and other processes leave of it is the KV cache, a draft model's part
                included; num_kv_blocks or kv_cache_memory_bytes set its size themselves.
            block_size: tokens of one KV block, a multiple of 16; in [16, 256].
            enable_prefix_caching: whether equal beginnings of prompts are computed once.
            enforce_eager: on a GPU, launch kernels one by one, without captured graphs.
            deterministic: on a GPU, False allows faster kernels that round differently beside other
                requests and drafts. Answers may then depend on both. Products of many rows run on
                the fastest of this build's kernels, CUTLASS and cuBLASLt, each timed at the first
                product of its shape.
            num_threads: threads on the CPU, of each rank; None for one per physical core that this
                process may run on, shared by its ranks.
            seed: seeds requests that bring no seed.
            logprobs_mode: what logprobs and prompt_logprobs hold: "raw_logprobs",
                "processed_logprobs" (after all processors), "raw_logits" or "processed_logits".
                Logits come instead of their log-softmax.
            tensor_parallel_size: devices that share every layer; in [1, 8]. Each holds a part of
                the attention heads, of the MLPs and of the vocabulary. Answers do not depend on
                their number. The CPU counts as several devices, of num_threads threads each; GPUs
                are those from device on.
            pipeline_parallel_size: groups of tensor_parallel_size devices that hold some of the
                layers each; in [1, 64].
            distributed_executor_backend: where the ranks of several devices run: "threads" of this
                process, "mp" (processes that it starts), "ray" (actors of Ray) or
                "external_launcher" (of torchrun).
            distributed_timeout_seconds: how long a rank waits for the others before the engine
                fails with RankFailure; in [0.1, 86400].
            hf_overrides: put over config.json: a dict, whose keys replace those there, or a
                function that is given the configuration and returns it changed.
            max_logprobs: the most a request may ask for; -1 for no limit.
            skip_tokenizer_init: work with token ids only.
            trust_remote_code: run tokenizer code of the checkpoint (other formats only).
            revision: branch, tag or commit of a model name.
            chat_template: file, Jinja source or name of one to use in place of the default.
            generation_config: where sampling parameters come from if a request brings none. "auto":
                the checkpoint's generation_config.json; a folder: the one in it, whose
                end-of-sequence tokens count, too; "vllm": none, SamplingParams() as it is.
            override_generation_config: replaces keys of it, such as {"temperature": 0.5}.
            speculative_config: drafts tokens ahead and verifies several at once, such as {"method":
                "ngram"}. The keys are described in specdec_native.speculation.speculative_config.
            structured_outputs_config: what holds for all requests as if each said it:
                {"disable_any_whitespace": True, "disable_additional_properties": True} or one of
                them; see StructuredOutputsParams.
            logits_processors: classes of vLLM's form, or "module:Class", that change the logits of
                every request; see specdec_native.requests.batch_logits_processors. Needs torch.
            taps: states of the model that finished completions return (tapped_states): the residual
                stream as each of these layers reads it, counted from 0, then "final": what the
                output head reads. Draft heads are trained on them.

        Raises ValueError for a bad option or checkpoint, MemoryError where it does not fit,
        RuntimeError where the device is not available.
        """
        arguments = EngineArguments(
            tokenizer, dtype, load_format, quantization, device, cpu_isa, max_model_len,
            max_num_seqs, max_num_batched_tokens, scheduling_policy, kv_cache_dtype,
            kv_cache_memory_bytes, num_kv_blocks, gpu_memory_utilization, block_size,
            enable_prefix_caching, enforce_eager, deterministic, num_threads, seed, logprobs_mode,
            tensor_parallel_size, pipeline_parallel_size, distributed_executor_backend,
            distributed_timeout_seconds, hf_overrides, max_logprobs, skip_tokenizer_init,
            trust_remote_code, revision, chat_template, generation_config,
            override_generation_config, speculative_config, structured_outputs_config,
            logits_processors, taps,
        )  # fmt: skip
        self._load(model, arguments)

    def _load(self, model: str | os.PathLike[str], arguments: EngineArguments) -> None:
        raise NotImplementedError


EngineSignature.__init__.__qualname__ = "Engine.__init__"  # as errors call it
