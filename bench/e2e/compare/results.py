"""The measurements, and figures computed from them: medians of the quiet samples, ratios."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

OURS = "specdec"
PLAIN = "plain"


@dataclasses.dataclass(frozen=True, order=True)
class Contestant:
    """A peer that decodes in one way."""

    peer: str
    speculation: str
    precision: str
    isa: str = "auto"  # the instruction set it is held to

    def __str__(self) -> str:
        return f"{self.peer}:{self.speculation}:{self.kernels.replace(', ', ':')}"

    @property
    def kernels(self) -> str:
        """Precision and instruction set: only contestants with equal ones are compared."""
        return self.precision if self.isa == "auto" else f"{self.precision}, {self.isa}"


@dataclasses.dataclass
class Sample:
    """One call of one contestant. `call` counts the calls of a cell: the prompt at batch 1."""

    contestant: Contestant
    workload: str
    batch: int
    call: int
    repeat: int
    num_tokens: int
    seconds: float
    first_token_seconds: float | None
    num_accepted: int | None
    foreign_cores: float
    digest: str  # of the generated token ids
    peak_bytes: int

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Sample:
        """The inverse of dataclasses.asdict."""
        return cls(**{**fields, "contestant": Contestant(**fields["contestant"])})


@dataclasses.dataclass
class Result:
    """A run, or several on the same machine and model put together.

    Attributes:
        machine: facts about the machine and the settings.
        versions: versions of the peers that ran, by name.
        absent: for each peer that is not installed, the commands that install it.
        failed: errors, by contestant.
        weight_bytes: bytes read for one token, by precision.
        bandwidths: bytes/s that could be read from memory, measured between the samples.
        samples: all calls, noisy ones too.
        max_foreign_cores: above this a sample is noisy.
    """

    machine: dict[str, Any]
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    absent: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    weight_bytes: dict[str, float] = dataclasses.field(default_factory=dict)
    bandwidths: list[float] = dataclasses.field(default_factory=list)
    samples: list[Sample] = dataclasses.field(default_factory=list)
    max_foreign_cores: float = 0.1

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Result:
        """Reads what the report wrote."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {name: value for name, value in fields.items() if name in names}
        return cls(**{**known, "samples": [Sample.from_json(s) for s in fields["samples"]]})

    def add(self, other: Result) -> None:
        """Adds another run's samples. Raises ValueError for a run of another model."""
        if self.machine.get("model") != other.machine.get("model"):
            raise ValueError("results of different models cannot be put together")
        self.versions |= other.versions
        self.absent = {k: v for k, v in self.absent.items() if k in other.absent}
        self.failed |= other.failed
        self.weight_bytes |= other.weight_bytes
        self.bandwidths += other.bandwidths
        self.samples += other.samples


@dataclasses.dataclass
class Row:
    """One contestant in one cell.

    Attributes:
        tokens_per_s: new tokens over the whole call, prompts included.
        times_plain: speed relative to the same peer's plain decoding; None if not measured.
        worst_times_plain: the same on the slowest prompt; batch 1 only.
        ours_over_it: this engine's tokens_per_s relative to its own; plain is compared with plain,
            and speculation with this engine's best speculation.
        first_token_ms: median over the prompts.
        decode_tokens_per_s: after the first token; batch 1 only.
        of_bandwidth: the share of the read bandwidth at which plain decoding reads its weights.
        tokens_per_step: mean tokens per pass of the target; 1 if no draft is accepted.
        peak_bytes: peak memory.
        same_as_plain: whether the tokens equal its own plain decoding's.
        num_samples: number of quiet samples, for the call with the fewest.
        num_noisy: number of dropped samples.
    """

    contestant: Contestant
    workload: str
    batch: int
    tokens_per_s: float
    times_plain: float | None
    worst_times_plain: float | None
    ours_over_it: float | None
    first_token_ms: float | None
    decode_tokens_per_s: float | None
    of_bandwidth: float | None
    tokens_per_step: float | None
    peak_bytes: int
    same_as_plain: bool | None
    num_samples: int
    num_noisy: int


def digest(token_ids: Iterable[Sequence[int]]) -> str:
    """A short name of generated tokens."""
    return hashlib.sha256(repr([list(ids) for ids in token_ids]).encode()).hexdigest()[:16]


def quiet(samples: Sequence[Sample], max_foreign_cores: float) -> list[Sample]:
    """The samples during which others used little of the machine."""
    return [sample for sample in samples if sample.foreign_cores <= max_foreign_cores]


def make_rows(result: Result) -> list[Row]:
    """One row for each contestant and cell with quiet samples of all its calls."""
    cells: dict[tuple[str, int], dict[Contestant, list[Sample]]] = {}
    for sample in result.samples:
        cell = cells.setdefault((sample.workload, sample.batch), {})
        cell.setdefault(sample.contestant, []).append(sample)
    rows: list[Row] = []
    for (workload, batch), by_contestant in cells.items():
        summaries = {
            contestant: summary
            for contestant, samples in by_contestant.items()
            if (summary := _summarise(samples, result.max_foreign_cores)) is not None
        }
        new_rows = [
            _row(contestant, workload, batch, summaries, result)
            for contestant in sorted(summaries, key=_table_order)
        ]
        _compare_with_ours(new_rows)
        rows += new_rows
    return rows


def _table_order(contestant: Contestant) -> tuple[bool, str, bool, str, str, str]:
    """This engine first, plain decoding first."""
    peer, speculation = contestant.peer, contestant.speculation
    return (
        *(peer != OURS, peer, speculation != PLAIN, speculation),
        *(contestant.precision, contestant.isa),
    )


def find_noisy(result: Result) -> list[str]:
    """Contestants with a call in a cell that was never quiet; they have no row there."""
    calls: dict[tuple[str, int, Contestant], dict[int, bool]] = {}
    for sample in result.samples:
        by_call = calls.setdefault((sample.workload, sample.batch, sample.contestant), {})
        is_quiet = sample.foreign_cores <= result.max_foreign_cores
        by_call[sample.call] = by_call.get(sample.call, False) or is_quiet
    return [
        f"{contestant} in {workload}, batch {batch}"
        for (workload, batch, contestant), by_call in calls.items()
        if not all(by_call.values())
    ]


@dataclasses.dataclass
class _Summary:
    """Medians of a contestant in a cell, by call."""

    num_tokens: list[int]
    seconds: list[float]
    first_token_seconds: list[float] | None
    num_accepted: int | None
    digests: list[set[str]]
    peak_bytes: int
    num_samples: int
    num_noisy: int

    @property
    def tokens_per_s(self) -> float:
        return sum(self.num_tokens) / sum(self.seconds)


def _summarise(samples: Sequence[Sample], max_foreign_cores: float) -> _Summary | None:
    kept = quiet(samples, max_foreign_cores)
    calls = [[s for s in kept if s.call == call] for call in sorted({s.call for s in samples})]
    if not all(calls):
        return None
    firsts = [[s.first_token_seconds for s in call] for call in calls]
    known_firsts = [[t for t in call if t is not None] for call in firsts]
    accepted = [call[0].num_accepted for call in calls]
    known_accepted = [n for n in accepted if n is not None]
    return _Summary(
        num_tokens=[call[0].num_tokens for call in calls],
        seconds=[statistics.median(s.seconds for s in call) for call in calls],
        first_token_seconds=(
            [statistics.median(call) for call in known_firsts] if all(known_firsts) else None
        ),
        num_accepted=sum(known_accepted) if len(known_accepted) == len(calls) else None,
        digests=[{s.digest for s in samples if s.call == call[0].call} for call in calls],
        peak_bytes=max(s.peak_bytes for s in samples),
        num_samples=min(map(len, calls)),
        num_noisy=len(samples) - len(kept),
    )


def _row(
    contestant: Contestant,
    workload: str,
    batch: int,
    summaries: Mapping[Contestant, _Summary],
    result: Result,
) -> Row:
    own = summaries[contestant]
    plain = summaries.get(dataclasses.replace(contestant, speculation=PLAIN))
    gains = (
        [] if plain is None else [p / s for p, s in zip(plain.seconds, own.seconds, strict=True)]
    )
    decode = _decode_tokens_per_s(own) if batch == 1 else None
    tokens = sum(own.num_tokens)
    return Row(
        contestant=contestant,
        workload=workload,
        batch=batch,
        tokens_per_s=own.tokens_per_s,
        times_plain=None if plain is None else own.tokens_per_s / plain.tokens_per_s,
        worst_times_plain=min(gains) if gains and batch == 1 else None,
        ours_over_it=None,
        first_token_ms=(
            None
            if own.first_token_seconds is None
            else 1e3 * statistics.median(own.first_token_seconds)
        ),
        decode_tokens_per_s=decode,
        of_bandwidth=_of_bandwidth(contestant, decode, result),
        tokens_per_step=(
            None if own.num_accepted is None else tokens / max(1, tokens - own.num_accepted)
        ),
        peak_bytes=own.peak_bytes,
        # Plain decoding must repeat itself too.
        same_as_plain=(
            None
            if plain is None
            else all(len(a | b) == 1 for a, b in zip(own.digests, plain.digests, strict=True))
        ),
        num_samples=own.num_samples,
        num_noisy=own.num_noisy,
    )


def _decode_tokens_per_s(summary: _Summary) -> float | None:
    if summary.first_token_seconds is None:
        return None
    seconds = sum(summary.seconds) - sum(summary.first_token_seconds)
    tokens = sum(summary.num_tokens) - len(summary.num_tokens)
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def _of_bandwidth(contestant: Contestant, decode: float | None, result: Result) -> float | None:
    weights = result.weight_bytes.get(contestant.precision)
    if contestant.speculation != PLAIN or None in (decode, weights) or not result.bandwidths:
        return None
    assert decode is not None
    assert weights is not None
    return decode * weights / statistics.median(result.bandwidths)


def _compare_with_ours(rows: Sequence[Row]) -> None:
    """Fills in ours_over_it for the rows of one cell."""
    for row in rows:
        is_plain = row.contestant.speculation == PLAIN
        ours = [
            other.tokens_per_s
            for other in rows
            if other.contestant.peer == OURS
            and other.contestant.kernels == row.contestant.kernels
            and (other.contestant.speculation == PLAIN) == is_plain
        ]
        row.ours_over_it = max(ours) / row.tokens_per_s if ours else None


@dataclasses.dataclass
class Verdict:
    """This engine against the best peer in one cell, plain or speculating, or to the first token.

    `ratio` above 1 is in this engine's favour.
    """

    kind: str
    kernels: str  # precision and instruction set
    workload: str
    batch: int
    ours: Contestant
    best_peer: Contestant
    ratio: float


def cells_of(rows: Sequence[Row]) -> dict[tuple[str, str, int], list[Row]]:
    """The rows that are compared with each other, by kernels, workload and batch."""
    cells: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.contestant.kernels, row.workload, row.batch), []).append(row)
    return cells


def make_verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Comparisons for which both sides were measured."""
    verdicts = []
    for (kernels, workload, batch), cell in cells_of(rows).items():
        plain = [row for row in cell if row.contestant.speculation == PLAIN]
        speculating = [row for row in cell if row.contestant.speculation != PLAIN]
        for kind, group in (("plain", plain), ("best speculation", speculating)):
            ours = [row for row in group if row.contestant.peer == OURS]
            peers = [row for row in group if row.contestant.peer != OURS]
            if ours and peers:
                left = max(ours, key=lambda row: row.tokens_per_s)
                right = max(peers, key=lambda row: row.tokens_per_s)
                ratio = left.tokens_per_s / right.tokens_per_s
                sides = (left.contestant, right.contestant)
                verdicts.append(Verdict(kind, kernels, workload, batch, *sides, ratio))
        verdicts += _first_token_verdict(plain, kernels, workload, batch)
    return verdicts


def _first_token_verdict(
    plain: Sequence[Row], kernels: str, workload: str, batch: int
) -> list[Verdict]:
    times = {row.contestant: row.first_token_ms for row in plain if row.first_token_ms}
    ours = [c for c in times if c.peer == OURS]
    peers = [c for c in times if c.peer != OURS]
    if batch != 1 or not ours or not peers:
        return []
    best = min(peers, key=lambda c: times[c])
    ratio = times[best] / times[ours[0]]
    return [Verdict("first token", kernels, workload, batch, ours[0], best, ratio)]
