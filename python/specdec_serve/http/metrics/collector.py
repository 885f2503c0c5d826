"""All metrics, for prometheus_client's registry."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from specdec_serve.http.metrics.http_counter import HttpCounter
from specdec_serve.http.metrics.native import DRAFT_LENGTH, NATIVE_METRICS, draft_lengths
from specdec_serve.http.metrics.observer import RequestObserver
from specdec_serve.http.served_engine import EngineStatistics
from specdec_vllm.metrics import (
    ENGINE_METRICS,
    Counter,
    Gauge,
    Histogram,
    Metric,
    Vector,
    labels_of,
)


class EngineCollector(Collector):
    """Metrics of an engine and of the requests that an observer has seen.

    collect() waits for the engine's current step: call it in a thread.
    """

    def __init__(
        self,
        engine: EngineStatistics,
        model_name: str,
        observer: RequestObserver,
        http: HttpCounter,
    ) -> None:
        self._engine = engine
        self._observer = observer
        self._http = http
        self._labels = labels_of(model_name)
        cache = dataclasses.asdict(engine.vllm_config.cache_config)
        facts = {name: str(value) for name, value in cache.items()}
        self._cache_config = Gauge("vllm:cache_config_info", {**facts, "engine": "0"}, 1.0)

    def describe(self) -> Iterator[Family]:
        """Returns nothing: registering must not wait for the engine."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """The current metrics."""
        stats = self._engine.stats()
        for row in (*ENGINE_METRICS, *NATIVE_METRICS):
            if metrics := row.of(stats, self._labels):
                yield family_of(row.help, metrics)
        if lengths := draft_lengths(stats, self._labels):
            yield family_of(DRAFT_LENGTH[1], lengths)
        yield family_of("The KV cache.", [self._cache_config])
        for help_text, metrics in itertools.chain(self._observer.metrics(), self._http.metrics()):
            yield family_of(help_text, metrics)


def make_registry(collector: EngineCollector) -> CollectorRegistry:
    """A separate registry, so that several servers can run in one process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def family_of(help_text: str, metrics: Sequence[Metric]) -> Family:
    """A family of metrics with the same name, kind and labels."""
    first = metrics[0]
    names = list(first.labels)
    if isinstance(first, Histogram):
        histogram = HistogramMetricFamily(first.name, help_text, labels=names)
        for metric in metrics:
            assert isinstance(metric, Histogram)
            cells = [(_bound(bound), count) for bound, count in metric.buckets.items()]
            histogram.add_metric(list(metric.labels.values()), cells, metric.sum)
        return histogram
    if isinstance(first, Vector):
        counter = CounterMetricFamily(first.name, help_text, labels=[*names, "position"])
        for position, value in enumerate(first.values):
            counter.add_metric([*first.labels.values(), str(position)], value)
        return counter
    kind = CounterMetricFamily if isinstance(first, Counter) else GaugeMetricFamily
    family = kind(first.name, help_text, labels=names)
    for metric in metrics:
        assert isinstance(metric, (Counter, Gauge))
        family.add_metric(list(metric.labels.values()), metric.value)
    return family


def _bound(bound: str) -> str:
    return bound if bound == "+Inf" else str(floatToGoString(float(bound)))  # type: ignore[no-untyped-call]
