"""Counts requests as they run and end."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Iterator

from specdec_native.requests.outputs import RequestMetrics, RequestOutput
from specdec_serve.http.metrics import buckets
from specdec_serve.http.metrics.buckets import Buckets
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.service import Generation, Observer
from specdec_vllm.metrics import (
    REQUEST_SUCCESS,
    Counter,
    Gauge,
    Histogram,
    Metric,
    labels_of,
)

_logger = logging.getLogger("specdec_native.server")

# vLLM's reasons; they are shown even while their count is 0.
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
ADMISSION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")
_SLO_REASONS = ("stop", "length", "error")  # other ends say nothing about the server's quality


class _Watch:
    """The state of a generation's choices; prompt i has choices i * n and following.

    Times are those of time.monotonic().
    """

    __slots__ = (
        *("arrival", "ended", "epoch", "last", "num_outputs", "num_tokens", "start", "ttft"),
    )

    def __init__(self, generation: Generation) -> None:
        num_choices = len(generation.requests) * generation.call.params.n
        self.arrival = generation.call.arrival
        self.start = time.monotonic()
        self.epoch = time.time() - self.start  # zero of time.monotonic(), in RequestMetrics' time
        self.ttft = [0.0] * num_choices  # seconds from arrival
        self.last = [0.0] * num_choices  # when the last output came, 0 before the first
        self.num_outputs = [0] * num_choices  # steps that were seen
        self.num_tokens = [0] * num_choices
        self.ended = [False] * num_choices


class RequestObserver(Observer):
    """Counts requests by vLLM's rules. Each of a request's n completions counts as one.

    Where several steps are read at once, because of a slow reader or an answer that is sent whole,
    the times between them are assumed equal. Their number and sum are exact.
    """

    def __init__(self, model_name: str, max_model_len: int, options: ServerOptions) -> None:
        self._labels = labels_of(model_name)
        self._max_model_len = max_model_len
        self._slo = (options.slo_ttft, options.slo_tpot)
        self._open: dict[Generation, _Watch] = {}
        self._histograms: dict[str, tuple[str, Buckets]] = {}
        self._finished = collections.Counter(dict.fromkeys(FINISH_REASONS, 0))
        self._refused = collections.Counter(dict.fromkeys(ADMISSION_REASONS, 0))
        self._num_in_slo = [0, 0]  # good requests, all requests

        seconds, tokens = buckets.REQUEST_SECONDS, buckets.token_counts(max_model_len)
        add = self._add_histogram
        self._ttft = add(
            "time_to_first_token_seconds",
            buckets.FIRST_TOKEN_SECONDS,
            "Seconds from a request's arrival to its first token.",
        )
        self._itl = add(
            "inter_token_latency_seconds",
            buckets.TOKEN_SECONDS,
            "Seconds between the outputs of a completion's steps.",
        )
        self._tpot = add(
            "request_time_per_output_token_seconds",
            buckets.TOKEN_SECONDS,
            "Seconds a token after the first, in the mean of each request.",
        )
        self._e2e = add(
            "e2e_request_latency_seconds", seconds, "Seconds from a request's arrival to its end."
        )
        self._queue = add(
            "request_queue_time_seconds", seconds, "Seconds until a request was first computed."
        )
        self._prefill = add(
            "request_prefill_time_seconds",
            seconds,
            "Seconds from when a request was first computed to its first token.",
        )
        self._decode = add(
            "request_decode_time_seconds", seconds, "Seconds from a first token to the last."
        )
        self._inference = add(
            "request_inference_time_seconds",
            seconds,
            "Seconds from when a request was first computed to its last token.",
        )
        self._prompt = add("request_prompt_tokens", tokens, "Tokens of prompts.")
        self._generated = add("request_generation_tokens", tokens, "Tokens of completions.")
        self._longest = add(
            "request_max_num_generation_tokens",
            tokens,
            "Tokens of the longest of a request's completions.",
        )
        self._computed = add(
            "request_prefill_kv_computed_tokens",
            tokens,
            "Prompt tokens that the prefix cache did not have.",
        )
        self._max_tokens = add("request_params_max_tokens", tokens, "max_tokens of requests.")
        self._n = add("request_params_n", buckets.PARAMS_N, "n of requests.")
        self._preempted = add(
            "request_num_preemptions",
            buckets.PREEMPTIONS,
            "Times requests were taken out of the batch to free KV blocks.",
        )

    # -- events

    def started(self, generation: Generation) -> None:
        """The generation's requests are in the engine."""
        self._open[generation] = _Watch(generation)

    def progressed(self, generation: Generation, outputs: list[tuple[int, RequestOutput]]) -> None:
        """A step's outputs were read."""
        watch = self._open.get(generation)
        if watch is None:  # it has ended
            return
        now = time.monotonic()
        n = generation.call.params.n
        for index, output in outputs:
            request, metrics = generation.requests[index], output.metrics
            for part in output.outputs:
                choice = index * n + part.index
                if part.token_ids:
                    watch.num_tokens[choice] += len(part.token_ids)
                    self._see_outputs(watch, choice, request.num_outputs(part.index), now, metrics)
                if part.finish_reason is not None:
                    self._end(generation, choice, metrics, part.finish_reason)

    def ended(self, generation: Generation) -> None:
        """The generation was read to its end, failed, or its client left."""
        watch = self._open.get(generation)
        if watch is None:
            return
        n = generation.call.params.n
        reason = "error" if isinstance(generation.error, Exception) else "abort"
        for index, request in enumerate(generation.requests):
            choices = range(index * n, (index + 1) * n)
            if not all(watch.ended[choice] for choice in choices):
                rest, _ = request.peek()
                self.progressed(generation, [(index, rest)])
                for choice in choices:
                    self._end(generation, choice, rest.metrics, reason)
            self._n.observe(n)
            self._longest.observe(max(watch.num_tokens[choice] for choice in choices))
        del self._open[generation]

    def refused(self, reason: str) -> None:
        """A request was refused."""
        self._refused[reason] += 1

    # -- output

    def metrics(self) -> Iterator[tuple[str, list[Metric]]]:
        """All metrics with their help texts, grouped by name."""
        for name, (help_text, counted) in self._histograms.items():
            counts = list(counted.counts)
            yield (
                help_text,
                [Histogram.of_counts(name, self._labels, counted.bounds, counts, counted.total)],
            )
        name = REQUEST_SUCCESS.name
        yield (
            REQUEST_SUCCESS.help,
            [
                Counter(name, {**self._labels, "finished_reason": reason}, count)
                for reason, count in self._finished.copy().items()
            ],
        )
        model = {"model_name": self._labels["model_name"]}
        yield (
            "Requests that a limit of the queue kept out, by which.",
            [
                Counter("vllm:admission_rejections", {**model, "reason": reason}, count)
                for reason, count in self._refused.copy().items()
            ],
        )
        good, total = self._num_in_slo
        yield (
            "Completions that a client waited for to the end.",
            [Counter("specdec_native:slo_requests", self._labels, total)],
        )
        yield (
            "Of them, those whose first token and further tokens came within the limits.",
            [Counter("specdec_native:slo_good_requests", self._labels, good)],
        )
        limits = {name: limit for name, limit in zip(("ttft", "tpot"), self._slo, strict=True)}
        yield (
            "The limits; +Inf where there is none.",
            [
                Gauge(
                    "specdec_native:slo_seconds",
                    {**self._labels, "limit": name},
                    float("inf") if limit is None else limit,
                )
                for name, limit in limits.items()
            ],
        )

    # -- inside

    def _add_histogram(self, name: str, bounds: tuple[float, ...], help_text: str) -> Buckets:
        counted = Buckets(bounds)
        self._histograms[f"vllm:{name}"] = help_text, counted
        return counted

    def _see_outputs(
        self,
        watch: _Watch,
        choice: int,
        num_outputs: int,
        now: float,
        metrics: RequestMetrics | None,
    ) -> None:
        """Counts the times before the new outputs."""
        if metrics is not None and metrics.finished_time:
            now = metrics.finished_time - watch.epoch
        if not watch.last[choice]:
            first = now
            if metrics is not None and metrics.first_token_time:
                first = metrics.first_token_time - watch.epoch
            watch.last[choice] = first
            watch.num_outputs[choice] = 1
            watch.ttft[choice] = max(0.0, first - watch.arrival)
            self._ttft.observe(watch.ttft[choice])
        num_new = num_outputs - watch.num_outputs[choice]
        if num_new > 0:
            seconds = max(0.0, now - watch.last[choice])
            self._itl.observe(seconds / num_new, num_new)
            watch.num_outputs[choice] = num_outputs
            watch.last[choice] = now

    def _end(
        self, generation: Generation, choice: int, metrics: RequestMetrics | None, reason: str
    ) -> None:
        watch = self._open[generation]
        if watch.ended[choice]:
            return
        watch.ended[choice] = True
        self._finished[reason] += 1
        metrics = metrics or RequestMetrics()
        now = time.monotonic() + watch.epoch
        end = metrics.finished_time or now
        is_first = choice % generation.call.params.n == 0
        request = generation.requests[choice // generation.call.params.n]
        num_prompt = len(request.prompt_token_ids)
        num_tokens = watch.num_tokens[choice]

        seconds = max(0.0, end - watch.epoch - watch.arrival)
        self._e2e.observe(seconds)
        started = (metrics.first_scheduled_time or now) - watch.epoch
        self._queue.observe(max(0.0, started - watch.start))
        self._prompt.observe(num_prompt)
        self._generated.observe(num_tokens)
        self._max_tokens.observe(request.params.max_tokens or self._max_model_len - num_prompt)
        # A request's completions share the prompt's tokens: these are counted with the first.
        self._computed.observe(num_prompt - metrics.num_cached_tokens if is_first else 0)
        self._preempted.observe(metrics.num_preemptions if is_first else 0)
        tpot = 0.0
        if num_tokens and metrics.first_token_time:
            prefill = max(0.0, metrics.first_token_time - metrics.first_scheduled_time)
            decode = max(0.0, end - metrics.first_token_time)
            tpot = decode / (num_tokens - 1) if num_tokens > 1 else 0.0
            self._prefill.observe(prefill)
            self._decode.observe(decode)
            self._inference.observe(prefill + decode)
            self._tpot.observe(tpot)
        if reason in _SLO_REASONS:
            self._judge(reason, watch.ttft[choice], tpot)
        _logger.debug(
            "%s %s ended (%s): %d prompt tokens, %d generated, the first after %.3f s, "
            "the end after %.3f s",
            generation.call.kind,
            ascii(generation.call.request_id[:80]),
            reason,
            num_prompt,
            num_tokens,
            watch.ttft[choice],
            seconds,
        )

    def _judge(self, reason: str, ttft: float, tpot: float) -> None:
        limits = zip(self._slo, (ttft, tpot), strict=True)
        is_good = reason != "error" and all(x is None or seconds <= x for x, seconds in limits)
        self._num_in_slo[0] += is_good
        self._num_in_slo[1] += 1
