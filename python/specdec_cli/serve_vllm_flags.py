"""Flags of `vllm serve` that change nothing here, or whose other values are refused."""

from __future__ import annotations

import json
from typing import Any

from specdec_cli.command_options import Flag
from specdec_cli.serve_flags import GROUPS
from specdec_vllm.arguments import FIXED_ARGUMENTS, REASONS
from specdec_vllm.speculative_arguments import ARGUMENTS as SPECULATIVE_ARGUMENTS


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# vLLM's flags with the only accepted values, and the advice for any other value.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "tool_parser_plugin": (
        ("",),
        "plugins are not run; --tool-call-parser has those that are there",
    ),
    "tool_server": ((None,), "clients run their tools; the server calls none"),
    "reasoning_parser_plugin": (
        ("",),
        "plugins are not run; --reasoning-parser has those that are there",
    ),
    "lora_modules": ((None,), "merge the adapter into the checkpoint"),
    "grpc_port": ((None,), "only HTTP is served"),
    "enable_ssl_refresh": ((False,), "restart the server when its certificate has changed"),
    "api_server_count": ((1,), "one process serves; start one server for each replica"),
    "headless": ((False,), "one process serves"),
    "return_tokens_as_token_ids": ((False,), "requests may ask for it, by the same name"),
    "enable_scale_out": ((False,), "only one process serves"),
}

# vLLM's flags that change nothing here, beside engine arguments.
WITHOUT_EFFECT = (
    *("chat_template_content_format", "trust_request_mm_kwargs", "enable_log_outputs"),
    *("tool_strict_level", "enable_log_deltas"),
    *("cohere_is_reasoning_model", "cohere_format", "anthropic_disabled_thinking_effort"),
    *("log_error_stack", "data_parallel_supervisor_port", "dp_supervisor_probe_interval_s"),
    *("dp_supervisor_probe_timeout_s", "dp_supervisor_probe_failure_threshold"),
    *("enable_offline_docs", "enable_flash_late_interaction"),
    "disable_frontend_multiprocessing",
)

# Syntax of vLLM's flags without a meaning here: no value, or several; one value otherwise.
_SWITCH_PREFIXES = ("enable_", "disable_", "use_", "trust_")
_SWITCHES = _names("""
    aggregate_engine_logging allow_deprecated_quantization async_scheduling calculate_kv_scales
    cohere_is_reasoning_model cudagraph_metrics data_parallel_external_lb data_parallel_hybrid_lb
    data_parallel_multi_port_external_lb dcp_q_replicate
    fail_on_environ_validation fully_sharded_loras headless interleave_mm_strings
    jit_monitor_verbose kv_cache_metrics kv_sharing_fast_prefill language_model_only
    log_error_stack long_prefill_token_threshold_adaptive mm_device_do_normalize mm_encoder_only
    numa_bind ray_workers_use_nsight return_sampling_mask return_tokens_as_token_ids
    scheduler_reserve_full_isl skip_mm_profiling sleep_mode_offload_cudagraph
    specialize_active_lora swa_bounded_replay tokens_only
""")
_LISTS = _names("""
    allowed_media_domains collect_detailed_traces cpu_offload_params cuda_graph_sizes
    cudagraph_capture_sizes ignore_patterns kv_cache_dtype_skip_layers lora_modules
    lora_target_modules numa_bind_cpus numa_bind_nodes offload_params
    sleep_preserve_parameter_names
""")


def text_or_json(text: str) -> Any:
    """JSON if the text is valid JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def other_flags() -> list[Flag]:
    """vLLM's flags that change nothing or accept only some values."""
    names = {*REFUSED, *WITHOUT_EFFECT, *REASONS, *FIXED_ARGUMENTS, *SPECULATIVE_ARGUMENTS}
    names -= {flag.name for flags in GROUPS.values() for flag in flags}
    switches = {name for name in names if name.startswith(_SWITCH_PREFIXES) or name in _SWITCHES}
    return [
        Flag(name, "", bool if name in switches else text_or_json, many=name in _LISTS)
        for name in sorted(names)
        if not name.startswith("_")
    ]
