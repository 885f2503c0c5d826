"""Benchmarks of an engine in this process, without a server or streams: one batch repeatedly,
or all prompts at once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_lab.benchmark.answers import Acceptance, Question
from specdec_lab.benchmark.in_process import acceptance_of
from specdec_lab.benchmark.metrics import acceptance_json
from specdec_lab.benchmark.questions import random_tokens
from specdec_native.engine import Engine
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.sampling_params import SamplingParams

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)

Clock = Callable[[], float]


@dataclasses.dataclass(frozen=True)
class LatencyReport:
    """Seconds that a batch took, from prompts to answers, once for each iteration."""

    latencies: Sequence[float]
    num_output_tokens: int
    acceptance: Acceptance | None = None

    @property
    def mean(self) -> float:
        """Seconds."""
        return float(np.mean(self.latencies))

    @property
    def percentiles(self) -> dict[int, float]:
        """Seconds by percentage."""
        points = np.percentile(self.latencies, LATENCY_PERCENTILES)
        return dict(zip(LATENCY_PERCENTILES, points.tolist(), strict=True))

    @property
    def tokens_per_s(self) -> float:
        """New tokens of a batch divided by its mean seconds."""
        return self.num_output_tokens / self.mean

    def to_json(self) -> dict[str, Any]:
        """The fields of `vllm bench latency`, and tokens per second."""
        return {
            "avg_latency": self.mean,
            "std_latency": float(np.std(self.latencies)),
            "latencies": list(self.latencies),
            "percentiles": self.percentiles,
            "output_tokens_per_second": self.tokens_per_s,
            **acceptance_json(self.acceptance),
        }


def measure_latency(
    engine: Engine,
    *,
    input_len: int,
    output_len: int,
    batch_size: int,
    num_warmups: int,
    num_iters: int,
    temperature: float = 0.0,
    seed: int = 0,
    on_iteration: Callable[[int, float], None] = lambda *_: None,
    clock: Clock = time.perf_counter,
) -> LatencyReport:
    """Answers one batch of random tokens repeatedly. The engine's prefix cache must be off.

    on_iteration: called with the number of iterations done, warm-ups included, and the seconds of
        the last one.
    """
    prompts = random_tokens(batch_size, input_len, engine.model_info().vocab_size, seed)
    params = [_params(output_len, temperature, seed + i) for i in range(batch_size)]
    latencies = []
    outputs: list[RequestOutput] = []
    for i in range(num_warmups + num_iters):
        begin = clock()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = clock() - begin
        if i >= num_warmups:
            latencies.append(seconds)
        on_iteration(i + 1, seconds)
    return LatencyReport(latencies, _num_tokens(outputs), _acceptance(outputs))


@dataclasses.dataclass(frozen=True)
class ThroughputReport:
    """All prompts answered at once.

    Attributes:
        seconds: from the first prompt to the last answer.
        num_requests, num_prompt_tokens, num_output_tokens: totals.
        categories: how the drafts of each category fared; empty without speculation.
    """

    seconds: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    acceptance: Acceptance | None = None
    categories: Mapping[str, Acceptance] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The fields of `vllm bench throughput`, and output tokens per second."""
        total = self.num_prompt_tokens + self.num_output_tokens
        return {
            "elapsed_time": self.seconds,
            "num_requests": self.num_requests,
            "total_num_tokens": total,
            "requests_per_second": self.num_requests / self.seconds,
            "tokens_per_second": total / self.seconds,
            "output_tokens_per_second": self.num_output_tokens / self.seconds,
            **acceptance_json(self.acceptance),
            "categories": {name: acceptance_json(a) for name, a in self.categories.items()},
        }


def measure_throughput(
    engine: Engine,
    questions: Sequence[Question],
    *,
    temperature: float = 0.0,
    ignore_eos: bool = True,
    clock: Clock = time.perf_counter,
) -> ThroughputReport:
    """Gives all questions to the engine at once. A short request before them warms it up."""
    engine.generate([_tokens_or_text(questions[0])], _params(2, 0.0, 0), use_tqdm=False)
    prompts = [_tokens_or_text(question) for question in questions]
    params = [
        _params(question.max_tokens, temperature, question.seed, ignore_eos)
        for question in questions
    ]
    begin = clock()
    outputs = engine.generate(prompts, params, use_tqdm=True)
    seconds = clock() - begin
    groups: dict[str, list[RequestOutput]] = {}
    for question, output in zip(questions, outputs, strict=True):
        groups.setdefault(question.category, []).append(output)
    categories = {name: _acceptance(found) for name, found in groups.items()}
    return ThroughputReport(
        seconds=seconds,
        num_requests=len(outputs),
        num_prompt_tokens=sum(len(output.prompt_token_ids or ()) for output in outputs),
        num_output_tokens=_num_tokens(outputs),
        acceptance=_acceptance(outputs),
        categories={name: found for name, found in categories.items() if found is not None},
    )


def _params(
    max_tokens: int, temperature: float, seed: int, ignore_eos: bool = True
) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, max_tokens=max_tokens, seed=seed, ignore_eos=ignore_eos
    )


def _tokens_or_text(question: Question) -> str | list[int]:
    return question.prompt if isinstance(question.prompt, str) else list(question.prompt)


def _num_tokens(outputs: Sequence[RequestOutput]) -> int:
    return sum(len(output.outputs[0].token_ids) for output in outputs)


def _acceptance(outputs: Sequence[RequestOutput]) -> Acceptance | None:
    found = [
        acceptance_of(output.metrics.speculative_decoding)
        for output in outputs
        if output.metrics is not None
    ]
    counts = [counts for counts in found if counts is not None]
    return sum(counts, Acceptance()) if counts else None
