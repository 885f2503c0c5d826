"""The member `metrics` of answers: their drafts and times."""

from __future__ import annotations

from typing import Any

from specdec_native.requests.outputs import (
    AcceptanceCounts,
    RequestMetrics,
    RequestOutput,
    SpeculativeDecodingMetrics,
)
from specdec_serve.http.chunks import dumps
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.service import Generation
from specdec_serve.http.usage import UsageCounter

# The members that vLLM has, too; ours has more.
_SUMMARY = (
    *("mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram"),
    *("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens"),
)
_STEPS = ("per_step_accepted", "per_step_drafted")


class AnswerMetrics:
    """The metrics of one answer: of all its prompts and completions together."""

    def __init__(self, generation: Generation, options: ServerOptions) -> None:
        self._options = options
        self._is_wanted = options.acceptance_metrics != "none" or options.request_metrics
        self._by_prompt: dict[int, RequestMetrics] = {}

    def take(self, prompt_index: int, output: RequestOutput) -> None:
        """Adds an output; prompts may come in any order."""
        if self._is_wanted and output.finished and output.metrics is not None:
            self._by_prompt[prompt_index] = output.metrics

    def member(self, usage: UsageCounter) -> str:
        """JSON such as ',"metrics":{}'; empty if there is nothing to report."""
        if not self._by_prompt:
            return ""
        requests = [self._by_prompt[index] for index in sorted(self._by_prompt)]
        said: dict[str, Any] = {}
        if self._options.request_metrics:
            said |= times(requests, usage.num_tokens)
        if self._options.acceptance_metrics != "none":
            said |= self._acceptance(requests)
        return f',"metrics":{dumps(said)}' if said else ""

    def _acceptance(self, requests: list[RequestMetrics]) -> dict[str, Any]:
        counts = [r.acceptance for r in requests if r.acceptance is not None]
        if not counts:
            return {}
        metrics = AcceptanceCounts.merged(counts).metrics
        is_detailed = self._options.acceptance_metrics == "detailed"
        return {"speculative_decoding": as_json(metrics, is_detailed=is_detailed)}


def as_json(metrics: SpeculativeDecodingMetrics, *, is_detailed: bool) -> dict[str, Any]:
    """The members of an answer; the steps of several completions follow one another."""
    names = (*_SUMMARY, *_STEPS) if is_detailed else _SUMMARY
    return {name: getattr(metrics, name) for name in names}


def times(requests: list[RequestMetrics], num_tokens: list[int]) -> dict[str, float | None]:
    """The times of an answer in milliseconds, from the first of its requests to the last.

    `num_tokens`: the tokens of each completion. A time is None where an event that it needs did not
    happen. The mean between two tokens is that of the longest completion and needs two tokens.
    """
    arrival = min(request.arrival_time for request in requests)
    scheduled = min(request.first_scheduled_time for request in requests)
    first = min(request.first_token_time for request in requests)
    last = max(request.finished_time for request in requests)
    generation = _milliseconds(first, last)
    whole = _milliseconds(scheduled, last)
    longest = max(num_tokens, default=0)
    return {
        "time_to_first_token_ms": _milliseconds(scheduled, first),
        "generation_time_ms": generation,
        "queue_time_ms": _milliseconds(arrival, scheduled),
        "mean_itl_ms": generation / (longest - 1) if generation and longest > 1 else None,
        "tokens_per_second": sum(num_tokens) / whole * 1000 if whole else None,
    }


def _milliseconds(begin: float, end: float) -> float | None:
    return max(0.0, end - begin) * 1000 if begin and end else None
