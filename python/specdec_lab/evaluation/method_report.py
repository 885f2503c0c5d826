"""The result of a measurement: rows of figures, one for each method and workload."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from specdec_native.requests.outputs import RequestOutput, SpeculativeDecodingMetrics

SCHEMA = 1
"""Version of the reports' JSON; raised when a field changes its meaning."""

ALL = "all"
"""The workload of rows that sum up all categories."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One measured situation.

    Attributes:
        name: the category of its prompts.
        batch: prompts that are answered together.
        temperature: of sampling; 0 is greedy.
    """

    name: str
    batch: int = 1
    temperature: float = 0.0


@dataclasses.dataclass
class Sample:
    """One call of one method.

    Attributes:
        method: its name.
        workload: what the call belongs to.
        call: number of the call in its workload; calls with the same number have the same prompts.
        seconds: from prompts to answers.
        outputs: the answers.
    """

    method: str
    workload: Workload
    call: int
    seconds: float
    outputs: list[RequestOutput]

    @property
    def tokens(self) -> list[list[int]]:
        """New tokens of each prompt."""
        return [list(output.outputs[0].token_ids) for output in self.outputs]


@dataclasses.dataclass
class Row:
    """One method in one workload.

    Attributes:
        method: its name.
        workload: the category of the prompts, or "all".
        batch: prompts answered together.
        temperature: of sampling; 0 is greedy.
        num_prompts: prompts, each counted once.
        num_tokens: new tokens of these prompts.
        seconds: time for these tokens, prompts included; the median of repeated calls.
        tokens_per_s: num_tokens / seconds.
        first_token_ms: median over the prompts.
        speedup: tokens/s relative to the first method's on the same prompts.
        lowest_speedup: the lowest speedup of a single call.
        same_answers: whether all tokens equal the first method's.
        tokens_per_step: mean tokens per step of a request after its first token, steps without
            drafts included; 1 in plain decoding.
        acceptance_length: tokens emitted by a step that verified drafts, as vLLM counts them: 1 +
            accepted / steps. This one and the following are None without speculation.
        acceptance_rate: share of the verified drafts that was kept.
        acceptance_per_position: share of the drafts' first, second, ... tokens that was kept;
            accepted over proposed.
        proposed_per_position: steps that drafted a first, second, ... token.
        accepted_per_position: steps that kept it.
    """

    method: str
    workload: str
    batch: int
    temperature: float
    num_prompts: int
    num_tokens: int
    seconds: float
    tokens_per_s: float
    first_token_ms: float
    speedup: float
    lowest_speedup: float
    same_answers: bool
    tokens_per_step: float
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    acceptance_per_position: list[float] | None = None
    proposed_per_position: list[int] | None = None
    accepted_per_position: list[int] | None = None


@dataclasses.dataclass
class Report:
    """The results of a run.

    Attributes:
        model: the last part of the target's directory.
        architecture, num_parameters, dtype, weight_format, device, isa, num_threads: facts about
            the target as the engine loaded it.
        load_seconds: time to load the target.
        rows: the figures; rows of the first method come first.
        schema: SCHEMA.
    """

    model: str
    architecture: str
    num_parameters: int
    dtype: str
    weight_format: str
    device: str
    isa: str
    num_threads: int
    load_seconds: float
    rows: list[Row] = dataclasses.field(default_factory=list)
    schema: int = SCHEMA


@dataclasses.dataclass
class HeadReport(Report):
    """The results of `specdec-native eval-head`.

    Attributes:
        head: the speculative_config whose drafter was measured.
        configs: the speculative_config of each method; None for plain decoding.
        max_tokens: the limit of each answer.
        repeats: number of calls with the same prompts.
        loaded: "together": all methods were loaded and took turns call by call; "in turns": one
            method ran after the other.
    """

    head: Mapping[str, object] = dataclasses.field(default_factory=dict)
    configs: Mapping[str, Mapping[str, object] | None] = dataclasses.field(default_factory=dict)
    max_tokens: int = 0
    repeats: int = 1
    loaded: str = ""


def make_rows(samples: Iterable[Sample], *, with_totals: bool = False) -> list[Row]:
    """The rows of samples; speeds and answers are compared with the method of the first sample.

    A row needs calls that the first method has made, too. An interrupted run may lack them.

    with_totals: adds rows over all categories, where there are several.
    """
    by_method: dict[str, dict[Workload, list[Sample]]] = {}
    for sample in samples:
        by_method.setdefault(sample.method, {}).setdefault(sample.workload, []).append(sample)
    baseline = next(iter(by_method.values()), {})
    rows = []
    for workloads in by_method.values():
        groups = {workload: [workload] for workload in workloads}
        if with_totals and len({workload.name for workload in workloads}) > 1:
            for workload in workloads:
                total = dataclasses.replace(workload, name=ALL)
                groups.setdefault(total, []).append(workload)
        for shown, members in groups.items():
            own = _calls(workloads, members)
            first = _calls(baseline, members)
            compared = {call: first[call] for call in own if call in first}
            if compared:
                rows.append(_row(shown, own, compared))
    return rows


_Calls = dict[tuple[Workload, int], list[Sample]]  # the repeats of each call


def _calls(workloads: Mapping[Workload, list[Sample]], members: Sequence[Workload]) -> _Calls:
    calls: _Calls = {}
    for workload in members:
        for sample in workloads.get(workload, []):
            calls.setdefault((workload, sample.call), []).append(sample)
    return calls


def _row(workload: Workload, own: _Calls, first: _Calls) -> Row:
    seconds = {call: _seconds(samples) for call, samples in own.items()}
    num_tokens = {call: _num_tokens(samples[0]) for call, samples in own.items()}
    rates = {call: num_tokens[call] / seconds[call] for call in own}
    ratios = [
        rates[call] / (_num_tokens(samples[0]) / _seconds(samples))
        for call, samples in first.items()
        if num_tokens[call] and _num_tokens(samples[0])
    ]
    compared = sum(num_tokens[call] for call in first) / sum(seconds[call] for call in first)
    baseline = sum(map(_num_tokens, (s[0] for s in first.values()))) / sum(
        map(_seconds, first.values())
    )
    outputs = [output for samples in own.values() for output in samples[0].outputs]
    repeated = [o for samples in own.values() for sample in samples for o in sample.outputs]
    row = Row(
        method=next(iter(own.values()))[0].method,
        workload=workload.name,
        batch=workload.batch,
        temperature=workload.temperature,
        num_prompts=len(outputs),
        num_tokens=sum(num_tokens.values()),
        seconds=sum(seconds.values()),
        tokens_per_s=sum(num_tokens.values()) / sum(seconds.values()),
        first_token_ms=1e3 * statistics.median(map(_first_token_latency, repeated)),
        speedup=compared / baseline if baseline else 1.0,
        lowest_speedup=min(ratios, default=1.0),
        same_answers=all(
            sample.tokens == first[call][0].tokens
            for call, samples in own.items()
            for sample in samples
            if call in first
        ),
        tokens_per_step=1.0,
    )
    _add_acceptance(row, repeated)
    return row


def _add_acceptance(row: Row, outputs: Sequence[RequestOutput]) -> None:
    all_metrics = [o.metrics.speculative_decoding for o in outputs if o.metrics is not None]
    metrics = [m for m in all_metrics if m is not None]
    if not metrics:
        return
    steps = _sum_of(metrics, "num_spec_steps")
    drafted = _sum_of(metrics, "num_draft_tokens")
    accepted = _sum_of(metrics, "num_accepted_draft_tokens")
    row.acceptance_length = 1.0 + accepted / steps if steps else 1.0
    row.acceptance_rate = accepted / drafted if drafted else 0.0
    proposed = _sum_lists([m.proposed_per_position for m in metrics])
    kept = _sum_lists([m.accepted_per_position for m in metrics])
    length = len(proposed) - next((i for i, n in enumerate(reversed(proposed)) if n), len(proposed))
    row.proposed_per_position, row.accepted_per_position = proposed[:length], kept[:length]
    row.acceptance_per_position = [
        k / n for k, n in zip(kept[:length], proposed[:length], strict=True)
    ]
    # The first token of a request comes with its prompt; a step without drafts emits one.
    decoded = sum(max(0, len(output.outputs[0].token_ids) - 1) for output in outputs)
    all_steps = steps + decoded - _sum_of(metrics, "num_emitted_tokens")
    row.tokens_per_step = decoded / all_steps if all_steps > 0 else 1.0


def _seconds(repeats: Sequence[Sample]) -> float:
    return statistics.median(sample.seconds for sample in repeats)


def _num_tokens(sample: Sample) -> int:
    return sum(map(len, sample.tokens))


def _first_token_latency(output: RequestOutput) -> float:
    return output.metrics.first_token_latency if output.metrics is not None else 0.0


def _sum_of(metrics: Sequence[SpeculativeDecodingMetrics], name: str) -> int:
    return sum(getattr(m, name) for m in metrics)


def _sum_lists(lists: Sequence[Sequence[int]]) -> list[int]:
    """The sum of each position."""
    return [sum(x[i] for x in lists if i < len(x)) for i in range(max(map(len, lists)))]
