"""EngineStats as vLLM's list of named metrics.

In vLLM a step with drafts always has num_speculative_tokens of them. Here draft_length_policy
"auto" drafts only where it pays and as much as pays, so num_drafts may be few, and accepted tokens
per draft say what was worth drafting rather than how good the drafter is; a draft model is also
int8 unless told otherwise, and agrees with the target a little less often. To compare with vLLM's
figures put "draft_length_policy": "fixed" and "quantization": "none" into speculative_config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_native.requests.outputs import EngineStats, SpeculativeDecodingMetrics, StepTokens


@dataclasses.dataclass
class Metric:
    """A named value; `labels` tell values of the same name apart."""

    name: str
    labels: dict[str, str]


@dataclasses.dataclass
class Counter(Metric):
    """A count that only rises."""

    value: float


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
    """Observations by size: `buckets` has those up to each bound, "+Inf" for all of them."""

    count: int
    sum: float
    buckets: dict[str, int]

    @classmethod
    def of_counts(
        cls,
        name: str,
        labels: dict[str, str],
        bounds: Sequence[float],
        counts: Sequence[int],
        total: float,
    ) -> Histogram:
        """`counts` are those above the bound before and up to each bound, then those above all."""
        buckets, count = {}, 0
        for bound, number in zip([*map(str, bounds), "+Inf"], counts, strict=True):
            count += number
            buckets[bound] = count
        return cls(name, labels, count, total, buckets)


@dataclasses.dataclass(frozen=True)
class EngineMetric:
    """A metric that is read off EngineStats.

    Attributes:
        name: the full name; Prometheus puts _total behind a Counter's.
        kind: Counter, Gauge, Vector or Histogram.
        help: what it says.
        read: its value; with `label` the values by what the label says; a list for a Vector,
            StepTokens for a Histogram. None where the engine does not have it.
    """

    name: str
    kind: type[Any]
    help: str
    read: Callable[[EngineStats], Any]
    label: str | None = None

    def of(self, stats: EngineStats, labels: Mapping[str, str]) -> list[Metric]:
        """Its values, with these labels and perhaps one more."""
        value = self.read(stats)
        if value is None:
            return []
        if isinstance(value, StepTokens):
            bounds = [float(bound) for bound in value.bounds]
            return [
                Histogram.of_counts(self.name, dict(labels), bounds, value.counts, float(value.sum))
            ]
        if self.label is None:
            return [self.kind(self.name, dict(labels), value)]
        return [self.kind(self.name, {**labels, self.label: k}, v) for k, v in value.items()]


def _num_prompt_tokens(stats: EngineStats) -> int:
    return stats.num_prompt_tokens + stats.num_cached_tokens


def _kv_cache_usage(stats: EngineStats) -> float:
    used = stats.num_kv_blocks - stats.num_free_kv_blocks
    return used / stats.num_kv_blocks if stats.num_kv_blocks else 0.0


def _of_drafts(
    read: Callable[[SpeculativeDecodingMetrics], Any],
) -> Callable[[EngineStats], Any]:
    def read_or_none(stats: EngineStats) -> Any:
        drafts = stats.speculative_decoding
        return None if drafts is None else read(drafts)

    return read_or_none


REQUEST_SUCCESS = EngineMetric(
    "vllm:request_success",
    Counter,
    "Completions that have ended.",
    lambda s: s.num_finished_requests,
)
ENGINE_METRICS = (
    EngineMetric(
        "vllm:num_requests_running",
        Gauge,
        "Completions that run.",
        lambda s: float(s.num_running),
    ),
    EngineMetric(
        "vllm:num_requests_waiting",
        Gauge,
        "Completions that wait for their first step, or to go on.",
        lambda s: float(s.num_waiting),
    ),
    EngineMetric(
        "vllm:num_requests_waiting_by_reason",
        Gauge,
        "Completions that wait, by what for; nothing but room in a step holds one up here.",
        lambda s: {"capacity": float(s.num_waiting), "deferred": 0.0},
        "reason",
    ),
    EngineMetric(
        "vllm:kv_cache_usage_perc",
        Gauge,
        "Share of the KV blocks that requests hold; 1 is all of them.",
        _kv_cache_usage,
    ),
    EngineMetric(
        "vllm:engine_sleep_state",
        Gauge,
        "Whether the engine is awake; there is no way to put one to sleep.",
        lambda s: {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0},
        "sleep_state",
    ),
    EngineMetric(
        "vllm:prefix_cache_queries",
        Counter,
        "Prompt tokens that were looked up in the prefix cache.",
        _num_prompt_tokens,
    ),
    EngineMetric(
        "vllm:prefix_cache_hits",
        Counter,
        "Prompt tokens that the prefix cache had.",
        lambda s: s.num_cached_tokens,
    ),
    EngineMetric(
        "vllm:num_preemptions",
        Counter,
        "Times a completion was taken out of the batch to free KV blocks.",
        lambda s: s.num_preemptions,
    ),
    EngineMetric(
        "vllm:prompt_tokens", Counter, "Prompt tokens, cached or not.", _num_prompt_tokens
    ),
    EngineMetric(
        "vllm:prompt_tokens_by_source",
        Counter,
        "Prompt tokens, by where their KV came from.",
        lambda s: {
            "local_compute": s.num_prompt_tokens,
            "local_cache_hit": s.num_cached_tokens,
            "external_kv_transfer": 0,
        },
        "source",
    ),
    EngineMetric(
        "vllm:prompt_tokens_cached",
        Counter,
        "Prompt tokens that were not computed.",
        lambda s: s.num_cached_tokens,
    ),
    EngineMetric(
        "vllm:prompt_tokens_cached_by_source",
        Counter,
        "Prompt tokens that were not computed, by the memory that had them.",
        lambda s: {"device": s.num_cached_tokens},
        "source",
    ),
    EngineMetric(
        "vllm:generation_tokens",
        Counter,
        "Tokens that were generated.",
        lambda s: s.num_generation_tokens,
    ),
    EngineMetric(
        "vllm:iteration_tokens_total",
        Histogram,
        "Tokens that a step computed, those of drafts included.",
        lambda s: s.step_tokens if s.step_tokens.bounds else None,
    ),
    EngineMetric(
        "vllm:spec_decode_num_drafts",
        Counter,
        "Drafts that were verified: one completion in one step.",
        _of_drafts(lambda d: d.num_spec_steps),
    ),
    EngineMetric(
        "vllm:spec_decode_num_draft_tokens",
        Counter,
        "Drafted tokens that were verified.",
        _of_drafts(lambda d: d.num_draft_tokens),
    ),
    EngineMetric(
        "vllm:spec_decode_num_accepted_tokens",
        Counter,
        "Drafted tokens that were kept.",
        _of_drafts(lambda d: d.num_accepted_draft_tokens),
    ),
    EngineMetric(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        Vector,
        "Drafted tokens that were kept, by their place in the draft.",
        _of_drafts(lambda d: list(d.accepted_per_position)),
    ),
)


def labels_of(model_name: str) -> dict[str, str]:
    """The labels of every metric."""
    return {"model_name": model_name, "engine": "0"}


def metrics_of(stats: EngineStats, model_name: str) -> list[Metric]:
    """The metrics vLLM has for what `stats` counts; those of drafts where the engine speculates."""
    labels = labels_of(model_name)
    return [m for row in (*ENGINE_METRICS, REQUEST_SUCCESS) for m in row.of(stats, labels)]
