"""Speculation as it chooses its own lengths against plain decoding, prompt by prompt.

    python -m bench.e2e.policy_check --model DIR_OR_NAME --speculation '{"method": "ngram"}'

Two engines take turns on each prompt, greedy, past any end of sequence. Prints, for each prompt,
the ratio of their times (medians of the repeats), tokens a step and what the policy chose; exits
with 1 if a ratio is below --least or an answer differs. --speculation may be given several times;
what is learned on one prompt is kept for the next, as in use. --lock as in bench.e2e.compare.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.e2e.compare.shared_machine import SharedMachine
from bench.e2e.compare.workloads import DEFAULT_PROMPTS, WORKLOADS, encode, pick, read_prompts

from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub
from specdec_native.requests.outputs import DraftPolicyStats


def run(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> tuple[float, list[int]]:
    """Seconds and tokens of one answer."""
    start = time.perf_counter()
    output = engine.generate([list(prompt)], params, use_tqdm=False)[0]
    return time.perf_counter() - start, list(output.outputs[0].token_ids)


def policy_of(engine: Engine) -> DraftPolicyStats:
    """What was chosen so far."""
    return engine.stats().draft_policy or DraftPolicyStats(0, 0, 0, 0, 0, 0, 0.0, 0.0)


def compare(plain: Engine, other: Engine, prompt: Sequence[int], options: Any) -> dict[str, Any]:
    """One prompt in both engines, in turns."""
    params = SamplingParams(temperature=0, max_tokens=options.num_tokens, ignore_eos=True)
    times: tuple[list[float], list[float]] = ([], [])
    same = True
    before, steps_before = policy_of(other), other.stats().num_steps
    for repeat in range(options.repeats):
        order = ((plain, times[0]), (other, times[1]))
        answers = []
        for engine, seconds in order if repeat % 2 == 0 else order[::-1]:
            taken, tokens = run(engine, prompt, params)
            seconds.append(taken)
            answers.append(tokens)
        same &= answers[0] == answers[1]
    after = policy_of(other)
    medians = [statistics.median(seconds) for seconds in times]
    with_drafts = (after.num_decisions - after.num_without_drafts) - (
        before.num_decisions - before.num_without_drafts
    )
    return {
        "prompt_tokens": len(prompt),
        "plain_tokens_per_s": options.num_tokens / medians[0],
        "ratio": medians[0] / medians[1],
        "first_ratio": times[0][0] / times[1][0],
        "tokens_per_step": options.num_tokens
        * options.repeats
        / (other.stats().num_steps - steps_before),
        "draft_length": (after.num_verified_tokens - before.num_verified_tokens)
        / max(with_drafts, 1),
        "without_drafts": (after.num_without_drafts - before.num_without_drafts)
        / max(after.num_decisions - before.num_decisions, 1),
        "probes": after.num_probes - before.num_probes,
        "same": same,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--speculation", action="append", required=True, help="JSON")
    parser.add_argument("--prompts", type=Path, default=DEFAULT_PROMPTS)
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--num-prompts", type=int, default=4, help="of each workload")
    parser.add_argument("--max-prompt-tokens", type=int, default=1024)
    parser.add_argument("--num-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--quantization", help="of both engines, as Engine's")
    parser.add_argument("--least", type=float, default=0.97, help="ratio of each prompt")
    parser.add_argument("--lock", type=Path, nargs="+", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    directory = hub.resolve_model(options.model, quantization=options.quantization)
    texts = read_prompts(options.prompts)
    machine = SharedMachine(options.lock)

    def load(speculation: dict[str, Any] | None) -> Engine:
        return Engine(
            directory,
            num_threads=options.num_threads,
            quantization=options.quantization,
            max_model_len=2048,
            max_num_seqs=1,
            kv_cache_memory_bytes=1 << 29,
            enable_prefix_caching=False,
            speculative_config=speculation,
        )

    rows = []
    with machine.shared():
        plain = load(None)
    for text in options.speculation:
        with machine.shared():
            other = load(json.loads(text))
        print(text, flush=True)
        with machine.exclusive() as hold:
            for engine in (plain, other):  # warm up on what says nothing about the prompts
                run(engine, range(10, 40), SamplingParams(temperature=0, max_tokens=4))
            for workload in options.workloads:
                prompts = pick(
                    encode(texts[workload], directory),
                    options.num_prompts,
                    options.max_prompt_tokens,
                )
                for prompt in prompts:
                    row = compare(plain, other, prompt, options)
                    row |= {"speculation": text, "workload": workload}
                    rows.append(row)
                    print(
                        f"  {workload:5s} {row['prompt_tokens']:5d} tokens: "
                        f"{row['plain_tokens_per_s']:6.1f} tok/s x {row['ratio']:.3f} "
                        f"(first {row['first_ratio']:.3f}), {row['tokens_per_step']:.2f} a step, "
                        f"drafts of {row['draft_length']:.1f}, none in "
                        f"{row['without_drafts']:4.0%}, probes {row['probes']}"
                        + ("" if row["same"] else "  ANOTHER ANSWER"),
                        flush=True,
                    )
                    hold.breathe()
        other.close()
        ratios = [row["ratio"] for row in rows if row["speculation"] == text]
        print(
            f"  least {min(ratios):.3f}, median {statistics.median(ratios):.3f}, "
            f"most {max(ratios):.3f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return int(any(row["ratio"] < options.least or not row["same"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
