"""vLLM's arguments of an engine: which are Engine's, which have no effect, which are refused."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Mapping
from typing import Any

from specdec_native.engine import Engine
from specdec_vllm import speculative_arguments

_logger = logging.getLogger("specdec_native")

# Those that are the engine's, by its name for them.
ENGINE_ARGUMENTS = {
    **{name: name for name in inspect.signature(Engine).parameters if name != "model"},
    "num_gpu_blocks_override": "num_kv_blocks",
}

# Those that change no answer here, by the reason.
IGNORED_ARGUMENTS = {
    "ranks need no such choices": """
        _api_process_count _api_process_rank all2all_backend cp_kv_cache_interleave_size
        cpu_distributed_timeout_seconds data_parallel_address data_parallel_backend
        data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb
        data_parallel_rank data_parallel_rpc_port data_parallel_size_local data_parallel_start_rank
        dbo_decode_token_threshold dbo_prefill_token_threshold dcp_comm_backend
        dcp_kv_cache_interleave_size dcp_q_replicate disable_custom_all_reduce
        disable_nccl_for_dp_synchronization
        dp_sync_interval elastic_ep_max_dp_size
        enable_batch_sharded_sampling enable_dbo enable_elastic_ep enable_ep_weight_filter
        enable_eplb enable_expert_parallel enable_fault_tolerance enable_hc_sp
        enable_nccl_comm_suspend enable_shm_tensor_arena eplb_config eplb_log_balancedness
        eplb_step_interval eplb_window_size expert_placement_strategy fault_tolerance_config
        master_addr master_port max_parallel_loading_workers node_rank num_redundant_experts
        numa_bind numa_bind_cpus numa_bind_nodes ray_workers_use_nsight shutdown_timeout
        ubatch_size watchdog_config""",
    "kernels and captured graphs are chosen here": """
        attention_backend attention_config compilation_config cuda_graph_sizes
        cudagraph_capture_sizes disable_cascade_attn enable_flashinfer_autotune engram_config
        gdn_prefill_backend ir_op_priority kda_decode_backend kda_prefill_backend kernel_config
        linear_backend mamba_backend mamba_config mamba_ssu_algorithm max_cudagraph_capture_size
        max_seq_len_to_capture model_impl moe_backend monokernel optimization_level
        override_attention_dtype performance_mode sparse_indexer_topk_backend use_fp64_gumbel""",
    "the cache is this engine's own": """
        calculate_kv_scales cpu_offload_gb cpu_offload_params disable_hybrid_kv_cache_manager
        ec_manager_config enable_cumem_allocator enable_mamba_cache_stochastic_rounding
        enable_mamba_shared_prefix_checkpoint enable_sleep_mode kv_offloading_backend
        kv_offloading_size kv_sharing_fast_prefill mamba_block_size mamba_cache_dtype
        mamba_cache_mode mamba_cache_philox_rounds mamba_ssm_cache_dtype num_lookahead_slots
        offload_backend offload_group_size offload_num_in_group offload_params
        offload_prefetch_step prefix_cache_retention_interval prefix_caching_hash_algo
        prefix_match_unit replayssm_buffer_len sleep_mode_backend sleep_mode_offload_cudagraph
        sleep_preserve_parameter_names swa_bounded_replay swap_space use_replayssm""",
    "the scheduler is this engine's own": """
        async_scheduling disable_async_output_proc enable_chunked_prefill
        long_prefill_token_threshold long_prefill_token_threshold_adaptive
        max_long_partial_prefills max_num_active_seqs max_num_partial_prefills max_num_queued_reqs
        max_num_queued_tokens max_num_scheduled_tokens preemption_mode prefill_schedule_interval
        scheduler_reserve_full_isl stream_interval watermark""",
    "only text is served": """
        allowed_local_media_path allowed_media_domains disable_chunked_mm_input
        disable_mm_preprocessor_cache enable_mm_embeds enable_mm_processor_stats
        enable_multimodal_encoder_data_parallel interleave_mm_strings language_model_only
        limit_mm_per_prompt media_io_kwargs mm_device_do_normalize mm_encoder_attn_backend
        mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin
        mm_encoder_fp8_scale_save_path mm_encoder_tp_mode mm_hasher_algorithm mm_ipc_gpu_memory_gb
        mm_processor_cache_gb mm_processor_cache_type mm_processor_device mm_processor_kwargs
        mm_shm_cache_max_object_size_mb mm_tensor_ipc renderer_num_workers skip_mm_profiling
        video_pruning_method video_pruning_rate""",
    "only other features have a use for them": """
        additional_config allow_deprecated_quantization enable_mixed_moe_lora_format
        enable_moe_shared_loras enable_tower_connector_lora fully_sharded_loras
        guided_decoding_backend guided_decoding_disable_fallback
        lora_dtype lora_extra_vocab_size lora_target_modules max_cpu_loras max_lora_cls_labels
        max_lora_rank max_loras specialize_active_lora""",
    "checkpoints are found and read in another way": """
        code_revision download_dir hf_token ignore_patterns pt_load_map_location
        safetensors_load_strategy safetensors_prefetch_block_size
        safetensors_prefetch_num_threads served_model_name use_tqdm_on_load""",
    "logs and metrics are this package's": """
        aggregate_engine_logging collect_detailed_traces cudagraph_metrics custom_histogram_buckets
        disable_log_requests disable_log_stats enable_layerwise_nvtx_tracing
        enable_log_requests enable_logging_iteration_details enable_mfu_metrics
        fail_on_environ_validation
        jit_monitor_mode jit_monitor_verbose kv_cache_metrics kv_cache_metrics_sample
        log_config_file log_level logging_config otlp_traces_endpoint
        per_request_spec_decode_metrics profiler_config show_hidden_metrics_for_version""",
}
REASONS = {name: why for why, names in IGNORED_ARGUMENTS.items() for name in names.split()}

_OTHER_RANKS = "devices share a model by tensor_parallel_size and pipeline_parallel_size only"
_ONLY_GENERATION = "only text generation is supported"
# Those of which these values (and None) are what happens here anyway, and what to do about another.
# The first is the default of EngineArgs.
FIXED_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "aux_output_config": ((None, {}), "only tokens and logprobs are reported"),
    "config_format": (("auto", "hf"), "use a Hugging Face checkpoint"),
    "convert": (("auto", "none"), _ONLY_GENERATION),
    "data_parallel_size": ((1,), "start one process for each replica"),
    "decode_context_parallel_size": ((1,), _OTHER_RANKS),
    "default_mm_loras": ((None, {}), "merge the adapter into the checkpoint"),
    "device_ids": ((None,), 'give device="cuda:N"'),
    "diffusion_config": ((None,), _ONLY_GENERATION),
    "disable_sliding_window": (
        (False,),
        "windows are the checkpoint's: lower max_model_len to one, or give hf_overrides",
    ),
    "ec_transfer_config": ((None,), _ONLY_GENERATION),
    "enable_lora": ((False,), "merge the adapter into the checkpoint"),
    "enable_prompt_embeds": ((False,), "give text or token ids"),
    "enable_return_routed_experts": ((False,), "routed experts are not reported"),
    "enable_trace_replay": ((False,), "tokens cannot be forced"),
    "guided_decoding_disable_additional_properties": (
        (False,),
        'give structured_outputs_config={"disable_additional_properties": True}',
    ),
    "guided_decoding_disable_any_whitespace": (
        (False,),
        'give structured_outputs_config={"disable_any_whitespace": True}',
    ),
    "hf_config_path": ((None,), "put config.json beside the weights"),
    "io_processor_plugin": ((None,), "plugins are not run"),
    "kv_cache_dtype_skip_layers": ((None, []), "all layers have the same cache dtype"),
    "kv_events_config": ((None,), "the cache stays in this process"),
    "kv_transfer_config": ((None,), "the cache stays in this process"),
    "logits_processor_pattern": ((None,), "use the parameters of SamplingParams"),
    "mm_encoder_only": ((False,), "only text is supported"),
    "model_class_overrides": ((None, {}), "the families that are supported cannot be replaced"),
    "model_loader_extra_config": ((None, {}), "weights are read from safetensors"),
    "model_weights": ((None, ""), "give the directory of the weights as model"),
    "nnodes": ((1,), 'start the hosts\' processes with torchrun and "external_launcher"'),
    "override_pooler_config": ((None,), _ONLY_GENERATION),
    "pooler_config": ((None,), _ONLY_GENERATION),
    "prefill_context_parallel_size": ((1,), _OTHER_RANKS),
    "quantization_config": ((None, {}), 'give quantization="int8" or "int4", or a GGUF file'),
    "reasoning_config": ((None, {}), "split the text after generation"),
    "reasoning_parser": ((None, ""), "split the text after generation"),
    "reasoning_parser_plugin": ((None, ""), "split the text after generation"),
    "return_sampling_mask": ((False,), "sampling masks are not reported"),
    "runner": (("auto", "generate"), _ONLY_GENERATION),
    "scheduler_cls": ((None,), "the scheduler cannot be replaced"),
    "task": (("auto", "generate"), _ONLY_GENERATION),
    "tokenizer_mode": (("auto", "hf"), "tokenizers are read from tokenizer.json"),
    "tokenizer_revision": ((None,), "give tokenizer the directory of that revision"),
    "tokens_only": ((False,), "give skip_tokenizer_init=True"),
    "watermark_config": ((None,), "text is not watermarked"),
    "weight_transfer_config": ((None,), "make a new engine for other weights"),
    "worker_cls": (("auto", ""), "there are no worker processes"),
    "worker_extension_cls": ((None, ""), "there are no worker processes"),
}
_ONE_COMPILER = "llguidance compiles all grammars"
_FROM_THE_FIRST = "grammars hold from the first token on"
# Keys of structured_outputs_config without effect, and why; Engine has the others.
_STRUCTURED_OUTPUTS = {
    "backend": _ONE_COMPILER,
    "disable_fallback": _ONE_COMPILER,
    "enable_in_reasoning": _FROM_THE_FIRST,
    "reasoning_parser": _FROM_THE_FIRST,
    "reasoning_parser_plugin": _FROM_THE_FIRST,
}
# Ways to read weights, all of which end in the same weights.
_LOAD_FORMATS = (
    *("auto", "fastsafetensors", "gguf", "hf", "instanttensor", "npcache", "pt"),
    *("runai_streamer", "safetensors"),
)


def engine_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Engine's options from vLLM's arguments, model aside.

    Raises TypeError for an argument neither knows, ValueError for one that is not supported.
    """
    options: dict[str, Any] = {}
    ignored: dict[str, list[str]] = {}
    for name, value in speculative_arguments.resolve_arguments(arguments).items():
        if name in ENGINE_ARGUMENTS:
            if value is not None:  # vLLM's "choose for me"
                options[ENGINE_ARGUMENTS[name]] = value
        elif name in FIXED_ARGUMENTS:
            allowed, advice = FIXED_ARGUMENTS[name]
            if value is not None and value not in allowed:
                raise ValueError(f"{name}={value!r} is not supported: {advice}")
        elif name not in REASONS:
            raise TypeError(_unknown_argument(name))
        elif value is not None:
            ignored.setdefault(REASONS[name], []).append(name)
    for reason, names in ignored.items():
        _logger.info("ignored, as %s: %s", reason, ", ".join(sorted(names)))
    if isinstance(config := options.get("structured_outputs_config"), Mapping):
        options["structured_outputs_config"] = _structured_outputs_config(config)
    if options.get("max_model_len") in (-1, "auto"):
        del options["max_model_len"]  # what the cache holds is what Engine does without it
    if options.get("load_format") in _LOAD_FORMATS:
        del options["load_format"]
    return options


def _structured_outputs_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have an effect; warns of each other one that asks for something."""
    for name, reason in _STRUCTURED_OUTPUTS.items():
        if config.get(name) not in (None, False, "", "auto", "guidance"):
            _logger.warning("structured_outputs_config: %s is ignored: %s", name, reason)
    return {name: value for name, value in config.items() if name not in _STRUCTURED_OUTPUTS}


def _unknown_argument(name: str) -> str:
    known = ["model", *ENGINE_ARGUMENTS, *FIXED_ARGUMENTS, *REASONS]
    close = difflib.get_close_matches(name, [*known, *speculative_arguments.ARGUMENTS], n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"LLM got an unexpected argument {name!r}{hint}"
