"""Compares the speed-ups that `specdec-native plan` predicts with measured ones.

    python -m bench.e2e.plan_check --model SmolLM2-135M-Instruct --json FILE

For every drafter and batch size a plain engine and one with drafts of a fixed length answer the
same prompts in turns, greedily, past any end of sequence. Counted are the steps in which all
requests decode. The prediction takes the acceptance of these steps and the costs that the plan
measures by itself. Exits with 1 if one is further off than --tolerance.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.e2e.compare.workloads import DEFAULT_PROMPTS, WORKLOADS, encode, pick, read_prompts

from specdec_lab.planning.costs import MeasuredCosts
from specdec_lab.planning.measure import Grid, measure
from specdec_lab.planning.speedup import Acceptance, speedup, step_seconds
from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub
from specdec_native.requests.outputs import EngineStats

_WARM_UP_TOKENS = 16
_UNCOUNTED_STEPS = 2  # after prompts, on which draft models catch up
_PARTS = ("schedule", "draft", "forward", "sample", "commit")


@dataclasses.dataclass(frozen=True)
class Run:
    """Steps in which all requests decode: their seconds, tokens and drafts."""

    step_seconds: tuple[float, ...]
    num_tokens: int
    num_request_steps: int
    proposed: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.num_tokens / sum(self.step_seconds)

    @property
    def acceptance(self) -> Acceptance:
        """Shares of all steps of a request."""
        return Acceptance(
            tuple(n / self.num_request_steps for n in self.proposed),
            tuple(n / self.num_request_steps for n in self.kept),
        )


def fastest(runs: Sequence[Run]) -> Run:
    """The fastest repeat of each step, that is, the one least disturbed by other processes.

    Greedy answers are the same in every repeat, so all repeats have the same steps.
    """
    if len({(r.num_tokens, len(r.step_seconds), r.kept) for r in runs}) > 1:
        raise RuntimeError("repeats of the same prompts took other steps")
    steps = zip(*(r.step_seconds for r in runs), strict=True)
    return dataclasses.replace(runs[0], step_seconds=tuple(map(min, steps)))


def run(
    engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int, *, cpu_time: bool = False
) -> Run:
    """Answers the prompts together, until the first has `num_tokens`.

    cpu_time: count CPU time of the process instead of wall time.
    """
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
    waiting = {engine.add_request(list(prompt), params) for prompt in prompts}
    ids = set(waiting)
    while waiting:
        waiting -= {output.request_id for output in engine.step()}
    for _ in range(_UNCOUNTED_STEPS):
        engine.step()
    start = last = engine.stats()
    steps: list[float] = []
    while True:
        cpu_start = time.process_time()
        outputs = engine.step()
        cpu_seconds = time.process_time() - cpu_start
        if any(output.finished for output in outputs):  # this step is not counted
            break
        now = engine.stats()
        steps.append(cpu_seconds if cpu_time else _seconds(now) - _seconds(last))
        last = now
    for request_id in ids:
        engine.abort(request_id)
    proposed, kept = _drafts_between(start, last)
    return Run(
        step_seconds=tuple(steps),
        num_tokens=last.num_generation_tokens - start.num_generation_tokens,
        num_request_steps=len(prompts) * (last.num_steps - start.num_steps),
        proposed=proposed,
        kept=kept,
    )


def _seconds(stats: EngineStats) -> float:
    """Seconds of all steps so far."""
    return sum(float(getattr(stats, f"{part}_seconds")) for part in _PARTS)


def _drafts_between(
    start: EngineStats, last: EngineStats
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    before, after = start.speculative_decoding, last.speculative_decoding
    if before is None or after is None:
        return (), ()
    pairs = (
        (before.proposed_per_position, after.proposed_per_position),
        (before.accepted_per_position, after.accepted_per_position),
    )
    proposed, kept = (tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairs)
    return proposed, kept


def methods_of(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """A drafter of each kind."""
    cheap = {"num_speculative_tokens": options.copied_tokens}
    methods = {
        "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5, **cheap},
        "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0, **cheap},
        "draft model": {
            "method": "draft_model",
            "model": options.draft or options.model,
            "num_speculative_tokens": options.drafted_tokens,
        },
        "head": {"model": options.head, "num_speculative_tokens": options.drafted_tokens},
    }
    return {name: methods[name] for name in options.methods}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--draft", help="draft model; MODEL itself in 8 bits if left out")
    parser.add_argument("--head", default="SmolLM2-135M-Instruct-eagle3")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["ngram", "suffix", "draft model", "head"],
        choices=["ngram", "suffix", "draft model", "head"],
    )
    parser.add_argument("--copied-tokens", type=int, default=4, help="of ngram and suffix")
    parser.add_argument("--drafted-tokens", type=int, default=3, help="of draft model and head")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--workload", default="edit", choices=WORKLOADS)
    parser.add_argument("--prompts", type=Path, default=DEFAULT_PROMPTS)
    parser.add_argument("--max-prompt-tokens", type=int, default=512)
    parser.add_argument("--num-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count CPU time, of --num-threads 1, where others keep the machine busy",
    )
    parser.add_argument("--tolerance", type=float, default=0.1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.cpu_time and options.num_threads != 1:
        parser.error("--cpu-time needs --num-threads 1: threads wait for each other by computing")

    directory = hub.resolve_model(options.model)
    texts = read_prompts(options.prompts)[options.workload]
    checker = Checker(directory, encode(texts, directory), options)
    rows: list[dict[str, Any]] = []
    for name, speculation in methods_of(options).items():
        for row in checker.check(speculation):
            rows.append({"method": name, "speculation": speculation, **row})
            print(line(rows[-1]), flush=True)
        if options.json:
            report = {"model": options.model, "workload": options.workload, "rows": rows}
            options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    worst = max(abs(row["error"]) for row in rows)
    print(f"furthest off: {worst:.1%}")
    return int(worst > options.tolerance)


def line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    return (
        f"{row['method']:12s} batch {row['batch']:3d}, context {row['context']:4d}: "
        f"{row['tokens_per_step']:.2f} tokens a step, predicted {row['predicted']:.3f}, "
        f"measured {row['measured']:.3f} ({row['error']:+.1%})"
    )


@dataclasses.dataclass
class Checker:
    """Compares methods with one engine that decodes plainly."""

    directory: Path
    encoded: Sequence[list[int]]
    options: argparse.Namespace

    def __post_init__(self) -> None:
        self._engine_options = {"num_threads": self.options.num_threads}
        self._plain = self._engine(None)

    def check(self, speculation: dict[str, Any]) -> list[dict[str, Any]]:
        """A row for each batch size."""
        options = self.options
        batches = sorted(options.batch_sizes)
        prompts = {batch: pick(self.encoded, batch, options.max_prompt_tokens) for batch in batches}
        contexts = {
            batch: round(statistics.mean(map(len, prompts[batch])) + options.num_tokens / 2)
            for batch in batches
        }
        found: dict[int, list[tuple[Run, Run]]] = {}
        with self._engine({**speculation, "draft_length_policy": "fixed"}) as other:
            for batch in batches:
                for engine in (self._plain, other):  # fills prefix caches
                    run(engine, prompts[batch], _WARM_UP_TOKENS)
                found[batch] = [
                    (
                        self._run(self._plain, prompts[batch]),
                        self._run(other, prompts[batch]),
                    )
                    for _ in range(options.repeats)
                ]
        ends = sorted({min(contexts.values()), max(contexts.values())})
        grid = Grid(batches, ends, speculation["num_speculative_tokens"])
        measured = measure(
            self.directory,
            speculation,
            grid,
            self._engine_options,
            acceptance=found[batches[0]][0][1].acceptance,
            cpu_time=options.cpu_time,
        )
        costs = MeasuredCosts(measured.points)
        return [compare(costs, batch, contexts[batch], found[batch]) for batch in batches]

    def _run(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> Run:
        return run(engine, prompts, self.options.num_tokens, cpu_time=self.options.cpu_time)

    def _engine(self, speculation: dict[str, Any] | None) -> Engine:
        """Repeated prompts come from its prefix cache; their steps are not counted."""
        options = self.options
        largest = max(options.batch_sizes)
        blocks = (options.max_prompt_tokens + options.num_tokens) // 16 + 3
        return Engine(
            self.directory,
            max_num_seqs=largest,
            num_kv_blocks=2 * largest * blocks,
            skip_tokenizer_init=True,
            speculative_config=speculation,
            **self._engine_options,
        )


def compare(
    costs: MeasuredCosts, batch: int, context: int, pairs: Sequence[tuple[Run, Run]]
) -> dict[str, Any]:
    """Predicted and measured figures of a batch size."""
    plain, other = (fastest(runs) for runs in zip(*pairs, strict=True))
    predicted = speedup(costs, other.acceptance, batch, context)
    measured = other.rate / plain.rate
    return {
        "batch": batch,
        "context": context,
        "tokens_per_step": other.acceptance.tokens_per_step,
        "proposed": other.acceptance.proposed,
        "kept": other.acceptance.kept,
        "plain_tokens_per_s": plain.rate,
        "ratios": [second.rate / first.rate for first, second in pairs],
        "plain_step_ms": {
            "measured": 1e3 * batch / plain.rate,
            "predicted": 1e3 * costs.target_seconds(batch, batch, context),
        },
        "drafting_step_ms": {
            "measured": 1e3 * batch * other.acceptance.tokens_per_step / other.rate,
            "predicted": 1e3 * step_seconds(costs, other.acceptance, batch, context),
        },
        "measured": measured,
        "predicted": predicted,
        "error": predicted / measured - 1,
    }


if __name__ == "__main__":
    sys.exit(main())
