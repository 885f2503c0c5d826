"""Plain decoding here and in transformers, interleaved in one run on the same checkpoint.

    python bench/e2e/against_transformers.py [--model DIR_OR_NAME] [--json FILE]

Prints tokens/s of both as medians and their ratio, at each batch size. One thread count for both.
Needs the packages of the `dev` dependency group.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from specdec_native import Engine, SamplingParams, hub

TEXT = (
    "Explain how a bicycle stays upright while it moves, what the rider does without noticing, "
    "and why it falls over when it stands still."
)


def seconds(generate: Callable[[int], object], batch: int) -> float:
    start = time.perf_counter()
    generate(batch)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--num-threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--num-tokens", type=int, default=64, help="new tokens of each request")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    directory = hub.resolve_model(options.model)
    torch.set_num_threads(options.num_threads)
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    engine = Engine(
        directory,
        dtype="bfloat16",
        num_threads=options.num_threads,
        max_model_len=1024,
        enable_prefix_caching=False,
    )
    prompt = engine.tokenizer.encode(TEXT)
    n = options.num_tokens
    config = GenerationConfig(
        do_sample=False, max_new_tokens=n, min_new_tokens=n, pad_token_id=0, eos_token_id=None
    )
    params = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)

    def ours(batch: int) -> None:
        engine.generate([prompt] * batch, params, use_tqdm=False)

    def theirs(batch: int) -> None:
        with torch.inference_mode():
            peer.generate(torch.tensor([prompt] * batch), generation_config=config)

    rows = []
    for batch in options.batch:
        seconds(ours, batch), seconds(theirs, batch)  # warm-up
        pairs = [(seconds(ours, batch), seconds(theirs, batch)) for _ in range(options.repeats)]
        row = {
            "batch": batch,
            "specdec_tokens_per_s": n * batch / statistics.median(a for a, _ in pairs),
            "transformers_tokens_per_s": n * batch / statistics.median(b for _, b in pairs),
            "ratio": statistics.median(b / a for a, b in pairs),
        }
        rows.append(row)
        print(
            f"batch {batch:3d}: specdec {row['specdec_tokens_per_s']:8.1f} tok/s, transformers "
            f"{row['transformers_tokens_per_s']:8.1f} tok/s, ratio {row['ratio']:.2f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"model": str(options.model), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
