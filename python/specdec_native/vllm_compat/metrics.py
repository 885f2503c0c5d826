"""EngineStats as vLLM's list of named metrics.

In vLLM a step with drafts always has num_speculative_tokens of them. Here draft_length_policy
"auto" drafts only where it pays and as much as pays, so num_drafts may be few, and accepted tokens
per draft say what was worth drafting rather than how good the drafter is; a draft model is also
int8 unless told otherwise, and agrees with the target a little less often. To compare with vLLM's
figures put "draft_length_policy": "fixed" and "quantization": "none" into speculative_config.
"""

from __future__ import annotations

import dataclasses

from specdec_native.requests.outputs import EngineStats


@dataclasses.dataclass
class Metric:
    """A named value; `labels` tell values of the same name apart."""

    name: str
    labels: dict[str, str]


@dataclasses.dataclass
class Counter(Metric):
    """A count that only rises."""

    value: int


@dataclasses.dataclass
class Gauge(Metric):
    """A number that rises and falls."""

    value: float


@dataclasses.dataclass
class Vector(Metric):
    """Counts by position."""

    values: list[int]


@dataclasses.dataclass
class Histogram(Metric):
    """Observations by size. None of the metrics here is one; scripts ask whether one is."""

    count: int
    sum: float
    buckets: dict[str, int]


def metrics_of(stats: EngineStats, model_name: str) -> list[Metric]:
    """The metrics vLLM has for what `stats` counts; those of drafts where the engine speculates."""
    labels = {"model_name": model_name, "engine": "0"}
    used_blocks = stats.num_kv_blocks - stats.num_free_kv_blocks
    prompt_tokens = stats.num_prompt_tokens + stats.num_cached_tokens
    gauges = {
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
        "kv_cache_usage_perc": used_blocks / stats.num_kv_blocks if stats.num_kv_blocks else 0.0,
    }
    counters = {
        "prefix_cache_queries": prompt_tokens,
        "prefix_cache_hits": stats.num_cached_tokens,
        "num_preemptions": stats.num_preemptions,
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_cached": stats.num_cached_tokens,
        "generation_tokens": stats.num_generation_tokens,
        "request_success": stats.num_finished_requests,
    }
    drafts = stats.speculative_decoding
    if drafts is not None:
        counters["spec_decode_num_drafts"] = drafts.num_spec_steps
        counters["spec_decode_num_draft_tokens"] = drafts.num_draft_tokens
        counters["spec_decode_num_accepted_tokens"] = drafts.num_accepted_draft_tokens
    metrics: list[Metric] = [Gauge(f"vllm:{k}", dict(labels), float(v)) for k, v in gauges.items()]
    metrics += [Counter(f"vllm:{k}", dict(labels), v) for k, v in counters.items()]
    if drafts is not None:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        metrics.append(Vector(name, dict(labels), list(drafts.accepted_per_position)))
    return metrics
