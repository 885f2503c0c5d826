"""Tokens per second of vLLM on the same shapes, with random weights.

python -m bench.gpu.vllm_run --model DIR [--draft DIR | --head DIR --drafts K --acceptance A]
    --json=FILE ...
Drafts are accepted at a given rate, as this engine's are (synthetic verification). Seconds are the
difference between a long and a short generation, so that prompts are not in them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from .engine_run import mean_length
from .steps import write_json


def main() -> int:
    parser = argparse.ArgumentParser(description="tokens a second of vLLM")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--head", type=Path, help="an EAGLE-3 head, instead of a draft model")
    parser.add_argument("--drafts", type=int, default=0)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()

    batches = [int(item) for item in options.batches.split(",")]
    import vllm

    engine_options: dict[str, Any] = {
        "model": str(options.model),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": options.context + options.new_tokens + 16,
        "max_num_seqs": max(batches),  # what graphs are captured for
        "enable_prefix_caching": False,
        "disable_log_stats": True,
    }
    drafter = options.head or options.draft
    if drafter is not None:
        engine_options["speculative_config"] = {
            "method": "eagle3" if options.head else "draft_model",
            "model": str(drafter),
            "num_speculative_tokens": options.drafts,
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": mean_length(options.acceptance, options.drafts),
        }
    engine = vllm.LLM(**engine_options)
    vocab_size = json.loads((options.model / "config.json").read_text())["vocab_size"]
    generator = random.Random(1)

    def seconds(prompts: list[Any], new_tokens: int) -> float:
        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        begin = time.perf_counter()
        engine.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begin

    short = max(1, options.new_tokens // 8)
    records: list[dict[str, Any]] = []
    for batch in batches:
        prompts = [
            {
                "prompt_token_ids": [
                    generator.randrange(2, vocab_size) for _ in range(options.context)
                ]
            }
            for _ in range(batch)
        ]
        seconds(prompts, short)
        long_run, short_run = (
            min(seconds(prompts, new_tokens) for _ in range(2))
            for new_tokens in (options.new_tokens, short)
        )
        rate = batch * (options.new_tokens - short) / max(1e-9, long_run - short_run)
        records.append({"batch": batch, "context": options.context, "tokens_per_s": rate})
        print(
            f"vllm {options.model.name} K={options.drafts} batch {batch}: {rate:.1f} tokens/s",
            flush=True,
        )
        summary = {
            "model": options.model.name,
            "draft": drafter.name if drafter else None,
            "drafts": options.drafts,
            "acceptance": options.acceptance if drafter else None,
            "version": vllm.__version__,
            "records": records,
        }
        write_json(options.json, summary)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
