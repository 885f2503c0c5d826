"""Costs of passes as measured on this machine, and the passes that a drafter makes."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal


@dataclasses.dataclass(frozen=True)
class CostPoint:
    """A measured step in which `batch` requests drafted `length` tokens each.

    Attributes:
        batch, length, context: the step's; `context` is the number of tokens before it per request.
        target_seconds: time of the step without drafting.
        draft_seconds: time of drafting.
    """

    batch: int
    length: int
    context: int
    target_seconds: float
    draft_seconds: float = 0.0


class MeasuredCosts:
    """Costs between and beyond measured points.

    The shortest context has points for every batch size and length, and costs are linear between
    them; where measured costs fall with the length, their mean is used. A longer context adds
    seconds per request, measured at one batch size: every request reads its own keys and values.
    """

    def __init__(self, points: Sequence[CostPoint]) -> None:
        """Raises ValueError where points are missing."""
        if not points:
            raise ValueError("points must not be empty")
        self._base = min(point.context for point in points)
        self._target = _Surface(points, self._base, "target_seconds")
        self._draft = _Surface(points, self._base, "draft_seconds")

    def target_seconds(self, batch: int, num_rows: float, context: int) -> float:
        """See PassCosts."""
        return self._target.at(batch, num_rows / batch - 1, context)

    def draft_seconds(self, batch: int, length: int, context: int) -> float:
        """See PassCosts."""
        return self._draft.at(batch, length, context) if length else 0.0


class _Surface:
    """Seconds over batch size, length and context."""

    def __init__(self, points: Sequence[CostPoint], base: int, field: str) -> None:
        self._grid: dict[int, dict[float, float]] = {}
        added: dict[float, dict[float, float]] = {}
        for point in points:
            if point.context == base:
                self._grid.setdefault(point.batch, {})[point.length] = getattr(point, field)
        self._grid = {batch: _rising(curve) for batch, curve in self._grid.items()}
        for point in points:
            if point.context > base:
                start = self._grid.get(point.batch, {}).get(point.length)
                if start is None:
                    raise ValueError(
                        f"batch {point.batch}, length {point.length} was measured at context "
                        f"{point.context} and not at {base}"
                    )
                more = max(0.0, getattr(point, field) - start) / point.batch
                added.setdefault(point.length, {0.0: 0.0})[point.context - base] = more
        self._added = added
        self._base_context = base

    def at(self, batch: int, length: float, context: int) -> float:
        by_batch = {b: _interpolate(curve, length) for b, curve in self._grid.items()}
        seconds = _interpolate(by_batch, batch)
        if self._added and context > self._base_context:
            more = context - self._base_context
            by_length = {k: _interpolate(curve, more) for k, curve in self._added.items()}
            seconds += batch * max(0.0, _interpolate(by_length, length))
        return seconds


def _rising(curve: Mapping[float, float]) -> dict[float, float]:
    """The curve made non-decreasing by averaging: more rows never cost less."""
    runs: list[list[float]] = []
    for x in sorted(curve):
        run = [curve[x]]
        while runs and sum(runs[-1]) / len(runs[-1]) > sum(run) / len(run):
            run = runs.pop() + run
        runs.append(run)
    means = [sum(run) / len(run) for run in runs for _ in run]
    return dict(zip(sorted(curve), means, strict=True))


def _interpolate(curve: Mapping[float, float] | Mapping[int, float], x: float) -> float:
    """Linear between the knots, constant below the first, with the last slope above the last."""
    knots = sorted(curve)
    if x <= knots[0] or len(knots) == 1:
        return curve[knots[0]]  # type: ignore[index]
    upper = min(bisect.bisect_left(knots, x), len(knots) - 1)
    first, second = knots[upper - 1], knots[upper]
    share = (x - first) / (second - first)
    low, high = curve[first], curve[second]  # type: ignore[index]
    return low + share * (high - low) if share <= 1 else high + (share - 1) * max(0.0, high - low)


Passes = Literal["levels", "rows", "one"]
"""How a drafter that runs a model drafts: "levels", one pass per token of a draft; "rows", one pass
with a row per token; or "one", one pass with a row per request."""


def rows_of_passes(passes: Passes, batch: int, length: int) -> list[int]:
    """The rows of each pass. A draft model also runs the token that the target added."""
    if passes == "levels":
        return [2 * batch] + [batch] * (length - 1)
    return [batch * length if passes == "rows" else batch]
