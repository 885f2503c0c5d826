"""The report of `specdec-native bench serve`."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_lab.benchmark.answers import Answer
from specdec_lab.benchmark.comparison import Comparison, compare
from specdec_lab.benchmark.load_run import Load, Result
from specdec_lab.benchmark.metrics import Metrics, by_category, metrics_of

SCHEMA = 1
"""Version of the JSON; raised when a field changes its meaning."""


@dataclasses.dataclass
class ServerReport:
    """The results of one server.

    Attributes:
        name: its URL.
        model: the model in its requests.
        metrics: the figures of all its answers.
        categories: the figures of each category of prompts.
        errors: answers that failed, by what happened, such as "HTTP 503: the queue is full".
        answers: all answers.
    """

    name: str
    model: str
    metrics: Metrics
    categories: Mapping[str, Metrics]
    errors: Mapping[str, int]
    answers: Sequence[Answer]

    def to_json(self, *, is_detailed: bool) -> dict[str, Any]:
        """The fields; `is_detailed` adds each answer's."""
        fields = {
            "base_url": self.name,
            "model_id": self.model,
            **self.metrics.to_json(),
            "categories": {name: found.to_json() for name, found in self.categories.items()},
            "errors": dict(self.errors),
        }
        return fields | ({"answers": list(map(_answer_json, self.answers))} if is_detailed else {})


@dataclasses.dataclass
class ServeReport:
    """The results of all servers, with the load they were under."""

    load: Load
    num_prompts: int
    num_rounds: int
    goodput: Mapping[str, float]
    servers: list[ServerReport]
    comparisons: list[Comparison]

    @property
    def num_failed(self) -> int:
        """Answers of all servers that failed."""
        return sum(server.metrics.failed for server in self.servers)

    def to_json(self, *, is_detailed: bool = False) -> dict[str, Any]:
        """The fields; those of `vllm bench serve` have its names. `is_detailed` adds answers."""
        return {
            "schema": SCHEMA,
            "date": datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"),
            "num_prompts": self.num_prompts,
            "num_rounds": self.num_rounds,
            "request_rate": "inf" if math.isinf(self.load.request_rate) else self.load.request_rate,
            "burstiness": "inf" if math.isinf(self.load.burstiness) else self.load.burstiness,
            "max_concurrency": self.load.max_concurrency,
            "seed": self.load.seed,
            "goodput": dict(self.goodput),
            "servers": [server.to_json(is_detailed=is_detailed) for server in self.servers],
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
        }


def make_report(
    results: Sequence[Result], models: Sequence[str], load: Load, limits: Mapping[str, float]
) -> ServeReport:
    """The report on what run_rounds() returned; later servers are compared with the first one.

    models: the model in the requests to each server.
    limits: the limits of goodput, in milliseconds.
    """
    servers = [
        ServerReport(
            result.name,
            model,
            metrics_of(result.answers, result.seconds, limits, result.acceptance),
            by_category(result.answers, limits),
            count_errors(result.answers),
            result.answers,
        )
        for result, model in zip(results, models, strict=True)
    ]
    return ServeReport(
        load=load,
        num_prompts=len(results[0].answers),
        num_rounds=len(results[0].turns),
        goodput=limits,
        servers=servers,
        comparisons=[compare(result, results[0]) for result in results[1:]],
    )


def count_errors(answers: Sequence[Answer]) -> dict[str, int]:
    """Answers that failed, by status of HTTP and message; the most frequent comes first."""
    errors = collections.Counter(
        f"HTTP {answer.status}: {answer.error}" if answer.status is not None else answer.error
        for answer in answers
        if answer.error is not None
    )
    return dict(errors.most_common())


def _answer_json(answer: Answer) -> dict[str, Any]:
    is_complete = answer.error is None
    return {
        "category": answer.question.category,
        "input_len": answer.num_prompt_tokens,
        "output_len": answer.num_output_tokens,
        "ttft": answer.ttft if is_complete else None,
        "latency": answer.latency if is_complete else None,
        "itl": answer.itls,
        "generated_text": answer.text,
        "status": answer.status,
        "error": answer.error,
    }
