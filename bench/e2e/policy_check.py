"""Compares speculation that chooses its own draft lengths with plain decoding, prompt by prompt.

    python -m bench.e2e.policy_check --model DIR_OR_NAME --speculation '{"method": "ngram"}'

Two engines take turns on each prompt, greedy, past any end of sequence. Prints, for each prompt,
the ratio of their times (a quantile of the repeats each), the same ratio of plain decoding with
itself, tokens a step and what the policy chose; exits with 1 if a ratio is below --least or an
answer differs. What is learned on one prompt is kept for the next, as in use; --fresh loads both
engines anew for each answer instead, and lets them touch their memory with a few tokens after
another prompt of that length, without drafts. --speculation, --quantization, --isa and --busy may
have several values: each combination is measured. --busy N measures beside N processes that compute
all the time. --cpu-time goes by the CPU time of the process where others keep the machine busy:
give it --num-threads 1, since threads that wait for each other count, too. --batch N answers N
prompts at once, and a row is such a batch.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.e2e.compare.workloads import DEFAULT_PROMPTS, WORKLOADS, encode, pick, read_prompts

from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub
from specdec_native.requests.outputs import DraftPolicyStats

Prompts = Sequence[Sequence[int]]

_WARM_UP = [range(10, 40)]  # tokens that say nothing about the prompts
_CACHE_BYTES_OF_REQUEST = 1 << 26
_FIELDS = [field.name for field in dataclasses.fields(DraftPolicyStats)]
_NO_POLICY = DraftPolicyStats(*[0] * len(_FIELDS))  # before anything was decided


@dataclasses.dataclass(frozen=True)
class Condition:
    """The settings of a measurement.

    Attributes:
        speculation: speculative_config, as JSON.
        quantization: both engines' quantization; None: the checkpoint's.
        isa: cpu_isa of both engines; "auto": the widest.
        busy: processes that compute meanwhile.
    """

    speculation: str
    quantization: str | None
    isa: str
    busy: int


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer and its cost."""

    wall: float
    cpu: float
    tokens: list[list[int]]  # of each request


class Times:
    """Seconds of one engine's answers to one batch of prompts."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def quantile(self, share: float, clock: str) -> float:
        """A quantile of the answers' seconds; 0 is the fastest."""
        seconds = sorted(getattr(answer, clock) for answer in self.answers)
        index = share * (len(seconds) - 1)
        below = int(index)
        above = min(below + 1, len(seconds) - 1)
        return float(seconds[below] + (index - below) * (seconds[above] - seconds[below]))


@contextlib.contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Processes that compute until the context ends."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(engine: Engine, prompts: Prompts, params: SamplingParams) -> Answer:
    """The answers to prompts that are asked at once."""
    start, cpu_start = time.perf_counter(), time.process_time()
    outputs = engine.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
    return Answer(
        wall=time.perf_counter() - start,
        cpu=time.process_time() - cpu_start,
        tokens=[list(output.outputs[0].token_ids) for output in outputs],
    )


def touch_memory(engine: Engine, prompts: Prompts) -> None:
    """A few tokens after other prompts of those lengths, without drafts."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, num_speculative_tokens=0)
    run(engine, [prompt[::-1] for prompt in prompts], params)


class Contestant:
    """An engine for all prompts, or a fresh one for each answer."""

    def __init__(self, load: Callable[[], Engine], fresh: bool) -> None:
        self._load = load
        self._fresh = fresh
        self._engine = None if fresh else load()
        if self._engine is not None:
            run(self._engine, _WARM_UP, SamplingParams(temperature=0, max_tokens=4))
        self.isa = ""
        self.num_steps = 0
        self.policy = _NO_POLICY

    def run(self, prompts: Prompts, params: SamplingParams) -> Answer:
        """Answers to one batch; num_steps and policy count this batch only."""
        if self._engine is None or self._fresh:
            self.close()
            self._engine = self._load()
            touch_memory(self._engine, prompts)
        self.isa = self._engine.model_info().isa
        before = self._engine.stats()
        answer = run(self._engine, prompts, params)
        after = self._engine.stats()
        self.num_steps = after.num_steps - before.num_steps
        was, now = before.draft_policy or _NO_POLICY, after.draft_policy or _NO_POLICY
        self.policy = DraftPolicyStats(*(getattr(now, n) - getattr(was, n) for n in _FIELDS))
        return answer

    def close(self) -> None:
        """Gives the engine's memory back."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None


def compare(
    plain: Contestant, other: Contestant, prompts: Prompts, options: argparse.Namespace
) -> dict[str, Any]:
    """One batch: plain decoding before and after the engine that speculates, several times."""
    params = SamplingParams(temperature=0, max_tokens=options.num_tokens, ignore_eos=True)
    before, speculative, after = Times(), Times(), Times()
    num_steps = decisions = without = verified = probes = 0
    for _ in range(options.repeats):
        before.answers.append(plain.run(prompts, params))
        speculative.answers.append(other.run(prompts, params))
        after.answers.append(plain.run(prompts, params))
        num_steps += other.num_steps
        decisions += other.policy.num_decisions
        without += other.policy.num_without_drafts
        verified += other.policy.num_verified_tokens
        probes += other.policy.num_probes
    both = Times()
    both.answers = before.answers + after.answers
    expected = before.answers[0].tokens
    num_tokens = len(prompts) * options.num_tokens
    row: dict[str, Any] = {"prompt_tokens": sum(map(len, prompts))}
    for clock in ("wall", "cpu"):
        of_plain = both.quantile(options.quantile, clock)
        row[f"plain_{clock}_tokens_per_s"] = num_tokens / of_plain
        row[f"{clock}_ratio"] = of_plain / speculative.quantile(options.quantile, clock)
        of_before, of_after = (times.quantile(options.quantile, clock) for times in (before, after))
        row[f"{clock}_ratio_of_plain"] = min(of_before, of_after) / max(of_before, of_after)
    return row | {
        "tokens_per_step": num_tokens * options.repeats / num_steps,
        "draft_length": verified / max(decisions - without, 1),
        "without_drafts": without / max(decisions, 1),
        "probes": probes,
        "same": all(a.tokens == expected for a in both.answers + speculative.answers),
    }


def print_row(row: dict[str, Any]) -> None:
    """One batch."""
    print(
        f"  {row['workload']:5s} {row['prompt_tokens']:5d} tokens: "
        f"{row['plain_wall_tokens_per_s']:6.1f} tok/s x {row['wall_ratio']:.3f}, "
        f"CPU time x {row['cpu_ratio']:.3f} (plain x {row['wall_ratio_of_plain']:.3f}, "
        f"{row['cpu_ratio_of_plain']:.3f}), {row['tokens_per_step']:.2f} a step, "
        f"drafts of {row['draft_length']:.1f}, none in {row['without_drafts']:4.0%}, "
        f"probes {row['probes']}" + ("" if row["same"] else "  ANOTHER ANSWER"),
        flush=True,
    )


class Check:
    """All conditions, one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._texts = read_prompts(options.prompts)
        self.rows: list[dict[str, Any]] = []

    def _load(self, directory: Path, condition: Condition, speculates: bool) -> Engine:
        return Engine(
            directory,
            num_threads=self._options.num_threads,
            quantization=condition.quantization,
            cpu_isa=condition.isa,
            max_model_len=2048,
            max_num_seqs=self._options.batch,
            kv_cache_memory_bytes=max(self._options.batch, 4) * _CACHE_BYTES_OF_REQUEST,
            enable_prefix_caching=False,
            speculative_config=json.loads(condition.speculation) if speculates else None,
        )

    def _batches(self, directory: Path) -> Iterator[tuple[str, Prompts]]:
        size, count = self._options.batch, self._options.num_prompts
        for workload in self._options.workloads:
            ids = encode(self._texts[workload], directory)
            prompts = pick(ids, size * count, self._options.max_prompt_tokens)
            for batch in range(count):
                yield workload, prompts[batch * size : (batch + 1) * size]

    def run(self, condition: Condition) -> None:
        """Every prompt under one condition."""
        print(json.dumps(dataclasses.asdict(condition)), flush=True)
        options = self._options
        directory = hub.resolve_model(options.model, quantization=condition.quantization)
        plain = Contestant(lambda: self._load(directory, condition, False), options.fresh)
        other = Contestant(lambda: self._load(directory, condition, True), options.fresh)
        rows: list[dict[str, Any]] = []
        conditions = dataclasses.asdict(condition) | {"batch": options.batch}
        with busy_neighbours(condition.busy):
            for workload, prompts in self._batches(directory):
                row = compare(plain, other, prompts, options)
                rows.append(conditions | {"isa": plain.isa, "workload": workload} | row)
                print_row(rows[-1])
        for contestant in (plain, other):
            contestant.close()
        for clock in ("wall", "cpu"):
            ratios = [row[f"{clock}_ratio"] for row in rows]
            floor = min(row[f"{clock}_ratio_of_plain"] for row in rows)
            print(
                f"  {clock}: least {min(ratios):.3f} (plain {floor:.3f}), "
                f"median {statistics.median(ratios):.3f}, most {max(ratios):.3f}",
                flush=True,
            )
        self.rows += rows


def parse_options() -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--speculation", nargs="+", required=True, help="JSON")
    parser.add_argument("--prompts", type=Path, default=DEFAULT_PROMPTS, help="folder of *.jsonl")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--num-prompts", type=int, default=4, help="or batches, of each workload")
    parser.add_argument("--batch", type=int, default=1, help="prompts that are answered at once")
    parser.add_argument("--max-prompt-tokens", type=int, default=1024)
    parser.add_argument("--num-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quantile", type=float, default=0.5, help="of the repeats' times")
    parser.add_argument("--fresh", action="store_true", help="an engine for each answer")
    parser.add_argument("--busy", type=int, nargs="+", default=[0], help="computing processes")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--quantization", nargs="+", default=["none"], help='"none": as it is')
    parser.add_argument("--isa", nargs="+", default=["auto"], help="cpu_isa")
    parser.add_argument("--least", type=float, default=0.97, help="ratio of each prompt or batch")
    parser.add_argument("--cpu-time", action="store_true", help="what --least goes by")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    check = Check(options)
    for quantization, isa, speculation, busy in itertools.product(
        options.quantization, options.isa, options.speculation, options.busy
    ):
        check.run(
            Condition(
                speculation=speculation,
                quantization=None if quantization == "none" else quantization,
                isa=isa,
                busy=busy,
            )
        )
        if options.json:
            options.json.write_text(json.dumps(check.rows, indent=1) + "\n", encoding="utf-8")
    ratio = "cpu_ratio" if options.cpu_time else "wall_ratio"
    return int(any(row[ratio] < options.least or not row["same"] for row in check.rows))


if __name__ == "__main__":
    sys.exit(main())
