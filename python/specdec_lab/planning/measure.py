"""Measures the cost of an engine's steps by batch size, draft length and context."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_lab.planning.costs import CostPoint
from specdec_lab.planning.speedup import Acceptance
from specdec_native.checkpoints import hub
from specdec_native.engine import Engine
from specdec_native.requests.sampling_params import SamplingParams
from specdec_native.speculation.methods import WITHOUT_MODEL
from specdec_native.speculation.speculative_config import parse_speculative_config

LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Draft lengths that are measured, up to the longest."""

_WARM_UP_STEPS = 1
_ROUNDS = 3  # over all lengths of a batch and context, so that a busy spell affects all
_LEAST_STEPS = 3  # per round
_MOST_STEPS = 16
_SECONDS = 0.15  # least time per round
_OUTLIER = 1.5  # times the median: slower steps are dropped
_KEPT = 0.5  # share of drafts kept, so that steps include the cost of accepted drafts
_MOST_CONTEXT_TOKENS = 8192  # over all requests, for contexts longer than the shortest
_BLOCK_SIZE = 16
_CHUNK = 512  # rows of the prompt's pass that is timed
_TARGET_PARTS = ("schedule_seconds", "forward_seconds", "sample_seconds", "commit_seconds")
_PATTERN = 7  # period of the repeating texts for drafters that copy


@dataclasses.dataclass(frozen=True)
class Grid:
    """The points to measure.

    Attributes:
        batches: numbers of requests.
        contexts: tokens per request before the step.
        longest: the longest draft.
    """

    batches: Sequence[int]
    contexts: Sequence[int]
    longest: int

    @property
    def lengths(self) -> list[int]:
        """Draft lengths that are measured."""
        return sorted({*(n for n in LENGTHS if n < self.longest), self.longest})

    def points(self) -> list[tuple[int, int]]:
        """The pairs (context, batch) at which all lengths are measured.

        All batch sizes at the shortest context; longer ones at the largest batch size whose texts
        are not too long together, or at the smallest.
        """
        contexts = sorted(set(self.contexts))
        batches = sorted(set(self.batches))
        points = [(contexts[0], batch) for batch in batches]
        for context in contexts[1:]:
            fitting = [b for b in batches if b * context <= _MOST_CONTEXT_TOKENS]
            points.append((context, max(fitting, default=batches[0])))
        return points

    @property
    def steps_tokens(self) -> int:
        """Tokens that requests may grow by during the measurement: 2 per step on average."""
        return (_WARM_UP_STEPS + _MOST_STEPS + 2) * min(3, self.longest + 1)


@dataclasses.dataclass
class Measurement:
    """The result of a measurement.

    Attributes:
        points: the measured steps.
        prompt_rows, prompt_seconds: rows and time of a pass over a full chunk of prompts; 0 seconds
            where no prompt was long enough.
        facts: facts about the engine, named as in ModelInfo.
    """

    points: list[CostPoint]
    prompt_rows: int
    prompt_seconds: float
    facts: dict[str, Any]


def runs_model(speculation: Mapping[str, Any]) -> bool:
    """Whether a drafter of the config runs a draft model or a head."""
    drafters = parse_speculative_config(speculation, hub.find_config).drafters
    return any(drafter.method not in (*WITHOUT_MODEL, "custom_class") for drafter in drafters)


def measure(
    model: str | os.PathLike[str],
    speculation: Mapping[str, Any],
    grid: Grid,
    engine_options: Mapping[str, Any],
    on_point: Callable[[int, int, str], None] = lambda *_: None,
    *,
    acceptance: Acceptance | None = None,
    cpu_time: bool = False,
) -> Measurement:
    """Measures steps of plain decoding and with drafts of each length.

    model: the model argument of Engine.
    speculation: keys of drafters, see speculation.speculative_config.
    engine_options: keyword arguments of Engine; sizes are chosen here.
    on_point: called with the number of points done, their total, and a text about the next one.
    acceptance: of the drafts in the measured steps; if unknown, half of them are kept. A draft
        model computes the last accepted draft again.
    cpu_time: measure CPU time of this process instead of wall time: for an engine of one thread on
        a busy machine.

    Raises what Engine raises.
    """
    total = len(grid.points()) * (1 if runs_model(speculation) else 2)
    done = itertools.count(1)

    def tell(context: int, batch: int) -> None:
        on_point(next(done), total, f"batch {batch}, context {context}")

    if runs_model(speculation):
        rates = _rates(acceptance, grid.longest)
        with _engine(model, dict(speculation), grid, engine_options, rates) as engine:
            return _Measurer(engine, grid, cpu_time=cpu_time).run(_RandomTexts(engine), tell)
    scripted = {"method": "custom_class", "drafter": _propose_anything}
    with _engine(model, scripted, grid, engine_options) as engine:
        found = _Measurer(engine, grid, cpu_time=cpu_time).run(_RandomTexts(engine), tell)
    with _engine(model, dict(speculation), grid, engine_options) as engine:
        measurer = _Measurer(engine, grid, rounds=1, cpu_time=cpu_time)
        drafting = measurer.run(_RepeatedTexts(engine), tell)
    found.points = [
        dataclasses.replace(passes, draft_seconds=drafts.draft_seconds)
        for passes, drafts in zip(found.points, drafting.points, strict=True)
    ]
    return found


def _propose_anything(tokens: Sequence[int], max_tokens: int) -> list[int]:
    """Drafts arbitrary tokens: their acceptance is synthetic."""
    return list(tokens[:max_tokens])


def _engine(
    model: str | os.PathLike[str],
    speculation: dict[str, Any],
    grid: Grid,
    engine_options: Mapping[str, Any],
    rates: Sequence[float] | None = None,
) -> Engine:
    batch = max(grid.batches)
    tokens = max(b * (c + grid.steps_tokens) for c, b in grid.points())
    texts = sum(c * b for c, b in grid.points())
    sizes = {
        "max_num_seqs": batch,
        "max_num_batched_tokens": max(_CHUNK, batch * (grid.longest + 1)),
        "num_kv_blocks": (tokens + texts) // _BLOCK_SIZE + 3 * batch + 8,
        "skip_tokenizer_init": True,
        "speculative_config": {
            **speculation,
            "num_speculative_tokens": grid.longest,
            "draft_length_policy": "fixed",
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": list(rates or _rates(None, grid.longest)),
        },
    }
    return Engine(model, **{**engine_options, **sizes})


def _rates(acceptance: Acceptance | None, length: int) -> list[float]:
    """The share of drafts that keep each position."""
    if acceptance is None or acceptance.rate == 0:
        return [_KEPT**i for i in range(1, length + 1)]
    shares = [kept / acceptance.proposed[0] for kept in acceptance.kept[:length]]
    return shares + [0.0] * (length - len(shares))


class _RandomTexts:
    """Random prompts, so that a model's experts are chosen evenly."""

    def __init__(self, engine: Engine) -> None:
        self._vocab_size = engine.model_info().vocab_size

    def prompts(self, batch: int, context: int) -> list[list[int]]:
        """The same prompts every time, so that the prefix cache has them after the first time."""
        generators = [random.Random(i) for i in range(batch)]
        return [g.choices(range(self._vocab_size), k=context) for g in generators]

    params: Mapping[str, Any] = {}


class _RepeatedTexts:
    """Prompts and answers that repeat one token, so that drafters which copy always have drafts."""

    def __init__(self, engine: Engine) -> None:
        self._token = engine.model_info().vocab_size // _PATTERN
        self.params = {"allowed_token_ids": [self._token]}

    def prompts(self, batch: int, context: int) -> list[list[int]]:
        """The same for all requests."""
        return [[self._token] * context] * batch


@dataclasses.dataclass
class _Measurer:
    """Measures the points of a grid with one engine."""

    engine: Engine
    grid: Grid
    rounds: int = _ROUNDS
    cpu_time: bool = False

    def run(
        self, texts: _RandomTexts | _RepeatedTexts, tell: Callable[[int, int], None]
    ) -> Measurement:
        """`tell` is called with the next context and batch size."""
        info = self.engine.model_info()
        names = ("architecture", "device", "isa", "num_threads", "weight_format", "weight_bytes")
        facts = {name: getattr(info, name) for name in names}
        points = []
        self._prompt_seconds: list[float] = []
        for context, batch in self.grid.points():
            tell(context, batch)
            prompts = texts.prompts(batch, context)
            steps: dict[int, list[tuple[float, float]]] = {n: [] for n in self.grid.lengths}
            for _, length in itertools.product(range(self.rounds), self.grid.lengths):
                steps[length] += self._steps(prompts, length, texts.params)
            for length, pairs in steps.items():
                target, draft = (_usual(seconds) for seconds in zip(*pairs, strict=True))
                points.append(CostPoint(batch, length, context, target, draft))
        fastest = min(self._prompt_seconds, default=0.0)
        return Measurement(points, info.max_num_batched_tokens, fastest, facts)

    def _steps(
        self, prompts: Sequence[Sequence[int]], length: int, params: Mapping[str, Any]
    ) -> list[tuple[float, float]]:
        """Seconds of steps without drafting, and of drafting in them."""
        room = self.engine.model_info().max_model_len - len(prompts[0])
        most_steps = min(_MOST_STEPS, room // (length + 1) - _WARM_UP_STEPS - 1)
        if most_steps < _LEAST_STEPS:
            raise ValueError(
                f"a context of {len(prompts[0])} tokens leaves {room} for answers, too few to "
                f"measure drafts of {length} tokens; give shorter --contexts or fewer --spec-tokens"
            )
        sampling = SamplingParams(
            temperature=0,
            max_tokens=None,
            ignore_eos=True,
            detokenize=False,
            num_speculative_tokens=length,
            **params,
        )
        ids = [self.engine.add_request(list(prompt), sampling) for prompt in prompts]
        try:
            self._run_prompts(set(ids))
            for _ in range(_WARM_UP_STEPS):
                self.engine.step()
            steps: list[tuple[float, float]] = []
            start = time.perf_counter()
            while len(steps) < _LEAST_STEPS or (
                len(steps) < most_steps and time.perf_counter() - start < _SECONDS
            ):
                steps.append(self._step())
        finally:
            for request_id in ids:
                self.engine.abort(request_id)
        return steps

    def _step(self) -> tuple[float, float]:
        before, cpu_before = self.engine.stats(), time.process_time()
        self.engine.step()
        after, cpu_after = self.engine.stats(), time.process_time()
        target = sum(getattr(after, part) - getattr(before, part) for part in _TARGET_PARTS)
        draft = after.draft_seconds - before.draft_seconds
        factor = (cpu_after - cpu_before) / (target + draft) if self.cpu_time else 1.0
        return factor * target, factor * draft

    def _run_prompts(self, waiting: set[str]) -> None:
        """Steps until every request has its first token; notes the times of full chunks."""
        chunk = self.engine.model_info().max_num_batched_tokens
        while waiting:
            before = self.engine.stats()
            waiting -= {output.request_id for output in self.engine.step()}
            after = self.engine.stats()
            if after.num_prompt_tokens - before.num_prompt_tokens == chunk:
                self._prompt_seconds.append(after.forward_seconds - before.forward_seconds)


def _usual(seconds: Sequence[float]) -> float:
    """The mean without outliers, which something else on the machine has delayed."""
    limit = _OUTLIER * statistics.median(seconds)
    return statistics.mean(value for value in seconds if value <= limit)
