"""Tokens per second of this engine with one way of drafting, by batch size.

One process an engine: python -m bench.gpu.engine_run --model DIR --json=FILE ... The prompts are
random token ids, or those of --prompts (one JSON list of ids a line); seconds are those from the
first token of the last request to the end, so that prompts are not in them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from .steps import write_json

Record = dict[str, Any]


def mean_length(acceptance: float, num_drafts: int) -> float:
    """Tokens a step emits on average when each draft is accepted at that rate given all before."""
    return sum(acceptance**i for i in range(num_drafts + 1))


def speculation(options: argparse.Namespace) -> dict[str, Any] | None:
    """The engine's speculative_config."""
    if options.speculation == "none":
        return None
    if options.speculation == "off":  # speculation that is switched on but never drafts
        return {
            "method": "ngram",
            "num_speculative_tokens": 1,
            "draft_length_policy": "fixed",
            "num_speculative_tokens_per_batch_size": [[1, 4096, 0]],
        }
    config: dict[str, Any] = {"num_speculative_tokens": options.drafts}
    if options.head is not None:
        config |= {"method": "eagle3", "model": str(options.head), "quantization": "none"}
        config |= {"tree_width": options.tree_width}
    elif options.draft is not None:
        config |= {"method": "draft_model", "model": str(options.draft), "quantization": "none"}
    else:
        config |= {"method": options.speculation}
    if options.acceptance is not None:
        config |= {
            "draft_length_policy": "fixed",
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": mean_length(options.acceptance, options.drafts),
        }
    return config


def measure(
    engine: Any, prompts: list[list[int]], new_tokens: int, drafts: int | None = None
) -> Record:
    """Runs all prompts at once to the same length, with so many drafts where they are given."""
    from specdec_native import SamplingParams

    params = SamplingParams(
        temperature=0.0, max_tokens=new_tokens, ignore_eos=True, num_speculative_tokens=drafts
    )
    for prompt in prompts:
        engine.add_request({"prompt_token_ids": prompt}, params)
    started: set[str] = set()
    begin_all = begin = time.perf_counter()
    before = engine.stats()
    while engine.has_unfinished_requests():
        outputs = engine.step()
        if len(started) < len(prompts):
            started |= {out.request_id for out in outputs if out.outputs[0].token_ids}
            if len(started) == len(prompts):
                begin, before = time.perf_counter(), engine.stats()
                prompt_seconds = begin - begin_all
    seconds = time.perf_counter() - begin
    after = engine.stats()
    tokens = after.num_generation_tokens - before.num_generation_tokens
    steps = max(1, after.num_steps - before.num_steps)
    record: Record = {
        "batch": len(prompts),
        "context": len(prompts[0]),
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_s": tokens / seconds if seconds > 0 else 0.0,
        "tokens_per_step": tokens / steps / len(prompts),
        "step_seconds": seconds / steps,
        "prompt_tokens_per_s": len(prompts) * len(prompts[0]) / prompt_seconds,
    }
    for part in ("draft", "forward", "sample", "schedule", "commit"):
        name = f"{part}_seconds"
        record[f"{part}_share"] = (getattr(after, name) - getattr(before, name)) / seconds
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description="tokens a second of specdec_native")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--head", type=Path, help="an EAGLE-3 head, instead of a draft model")
    parser.add_argument("--tree-width", type=int, default=1, help="of the head's trees")
    parser.add_argument(
        "--each-drafts", help="draft lengths to measure one after another, up to --drafts"
    )
    parser.add_argument("--speculation", default="none", help="none, off, draft_model, ngram ...")
    parser.add_argument("--drafts", type=int, default=0)
    parser.add_argument("--acceptance", type=float, help="synthetic, of each draft")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument(
        "--load_format",
        default="auto",
        choices=["auto", "dummy"],
        help="dummy: the directories have a config.json only, and weights are made up",
    )
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()

    from specdec_native import Engine

    engine = Engine(
        options.model,
        device=options.device,
        dtype="bfloat16",
        load_format=options.load_format,
        skip_tokenizer_init=options.prompts is None,
        enable_prefix_caching=False,
        max_model_len=options.context + options.new_tokens + 16,
        speculative_config=speculation(options),
    )
    info = engine.model_info()
    generator = random.Random(1)
    records: list[Record] = []
    each_drafts: list[int | None] = [None]
    if options.each_drafts is not None:
        each_drafts = [int(item) for item in options.each_drafts.split(",")]
    for batch in [int(item) for item in options.batches.split(",")]:
        if options.prompts is not None:
            lines = options.prompts.read_text().splitlines()
            prompts = [json.loads(lines[i % len(lines)]) for i in range(batch)]
        else:
            prompts = [
                [generator.randrange(info.vocab_size) for _ in range(options.context)]
                for _ in range(batch)
            ]
        for drafts in each_drafts:
            # First a short one, in which graphs are captured.
            measure(engine, prompts, min(16, options.new_tokens), drafts)
            record = measure(engine, prompts, options.new_tokens, drafts)
            if drafts is not None:
                record["drafts"] = drafts
            records.append(record)
            print(
                f"{options.model.name} {options.speculation} "
                f"K={options.drafts if drafts is None else drafts} batch {batch}: "
                f"{record['tokens_per_s']:.1f} tokens/s, "
                f"{1e3 * record['step_seconds']:.3f} ms a step, "
                f"{record['tokens_per_step']:.2f} tokens a step",
                flush=True,
            )
            summary = {
                "model": options.model.name,
                "device": info.device,
                "draft": (options.head or options.draft).name
                if options.head or options.draft
                else None,
                "speculation": options.speculation,
                "drafts": options.drafts,
                "acceptance": options.acceptance,
                "weight_bytes": info.weight_bytes,
                "records": records,
            }
            write_json(options.json, summary)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
