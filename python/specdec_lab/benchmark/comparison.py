"""Compares two servers by the ratios of their figures, round by round."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_lab.benchmark.load_run import Result
from specdec_lab.benchmark.metrics import Metrics, Times, metrics_of

# The 97.5% quantiles of Student's t for 1, 2, ... 30 degrees of freedom.
_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
_NORMAL = 1.95996


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The ratio of a figure between two servers.

    Attributes:
        mean: the geometric mean of the rounds' ratios.
        low, high: the ends of the mean's 95% confidence interval; None after a single round.
        num_rounds: rounds in which both have the figure.
    """

    mean: float
    low: float | None
    high: float | None
    num_rounds: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A server compared with the first one.

    Attributes:
        name, first: the two servers' names.
        ratios: by figure; output_throughput is better above 1, times are better below 1.
        num_same: questions to which both gave the same text.
        num_compared: questions that both answered.
    """

    name: str
    first: str
    ratios: Mapping[str, Ratio]
    num_same: int
    num_compared: int

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return dataclasses.asdict(self)


def quantile(num_degrees: int) -> float:
    """The 97.5% quantile of Student's t."""
    if num_degrees <= len(_QUANTILES):
        return _QUANTILES[num_degrees - 1]
    return _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * num_degrees)


def ratio_of(figures: Sequence[float | None], first: Sequence[float | None]) -> Ratio | None:
    """The ratio of figures of the same rounds, assuming that logarithms are normally distributed.

    None where no round has both figures.
    """
    logs = [math.log(a / b) for a, b in zip(figures, first, strict=True) if a and b]
    if not logs:
        return None
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(mean), None, None, 1)
    half = quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def compare(result: Result, first: Result) -> Comparison:
    """Compares a server with the first one over the same rounds."""
    own, others = _metrics_of_turns(result), _metrics_of_turns(first)
    ratios = {}
    for name, figure in _FIGURES.items():
        ratio = ratio_of(list(map(figure, own)), list(map(figure, others)))
        if ratio is not None:
            ratios[name] = ratio
    pairs = [
        (mine, other)
        for mine, other in zip(result.answers, first.answers, strict=True)
        if mine.error is None and other.error is None
    ]
    num_same = sum(mine.text == other.text for mine, other in pairs)
    return Comparison(result.name, first.name, ratios, num_same, len(pairs))


def _metrics_of_turns(result: Result) -> list[Metrics]:
    return [metrics_of(turn.answers, turn.seconds, {}) for turn in result.turns]


def _mean(times: Times | None) -> float | None:
    return None if times is None else times.mean


_FIGURES: dict[str, Callable[[Metrics], float | None]] = {
    "output_throughput": lambda metrics: metrics.per_second(metrics.num_output_tokens),
    "mean_ttft": lambda metrics: _mean(metrics.ttft),
    "mean_tpot": lambda metrics: _mean(metrics.tpot),
    "mean_e2el": lambda metrics: _mean(metrics.e2el),
}
