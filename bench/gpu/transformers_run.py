"""Tokens per second of Hugging Face transformers on the same shapes: static cache, compiled.

python -m bench.gpu.transformers_run --model DIR --json=FILE ... Weights are random, made on the
device from config.json. Seconds are the difference between a long and a short generation, so that
prompts are not in them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from .steps import write_json


def main() -> int:
    parser = argparse.ArgumentParser(description="tokens a second of transformers")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()

    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(options.model)
    torch.manual_seed(0)
    make: Any = transformers.AutoModelForCausalLM.from_config
    with torch.device(options.device):
        model = make(config, dtype=torch.bfloat16)
    model.eval()
    generation: dict[str, Any] = {
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
        "cache_implementation": "static",
        "disable_compile": options.device == "cpu",
    }

    def seconds(ids: Any, new_tokens: int) -> float:
        """Seconds of the faster of two runs."""
        return min(run_seconds(ids, new_tokens) for _ in range(2))

    def run_seconds(ids: Any, new_tokens: int) -> float:
        if options.device != "cpu":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        out = model.generate(
            ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, **generation
        )
        if options.device != "cpu":
            torch.cuda.synchronize()
        assert out.shape[1] == ids.shape[1] + new_tokens
        return time.perf_counter() - begin

    short = max(1, options.new_tokens // 8)
    records: list[dict[str, Any]] = []
    for batch in [int(item) for item in options.batches.split(",")]:
        shape = (batch, options.context)
        ids = torch.randint(2, config.vocab_size, shape, device=options.device)
        begin = time.perf_counter()
        for new_tokens in (options.new_tokens, short):  # compiles
            run_seconds(ids, new_tokens)
        compile_seconds = time.perf_counter() - begin
        long_run, short_run = seconds(ids, options.new_tokens), seconds(ids, short)
        step = max(1e-9, long_run - short_run) / (options.new_tokens - short)
        records.append(
            {
                "batch": batch,
                "context": options.context,
                "step_seconds": step,
                "tokens_per_s": batch / step,
                "compile_seconds": compile_seconds,
            }
        )
        print(
            f"transformers {options.model.name} batch {batch}: {batch / step:.1f} tokens/s, "
            f"{1e3 * step:.3f} ms a step, compiled in {compile_seconds:.0f} s",
            flush=True,
        )
        summary = {
            "model": options.model.name,
            "version": transformers.__version__,
            "compiled": options.device != "cpu",
            "records": records,
        }
        write_json(options.json, summary)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
