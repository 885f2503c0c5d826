"""Compares the acceptance of a draft head here and in vLLM on the CPU, from the same files.

    python -m bench.e2e.vllm_heads --model DIR_OR_NAME --head DIR_OR_NAME --prompts FILE.jsonl

Both answer the prompts ("prompt", "turns" or "messages" of each line) greedily in float32, drafting
chains, each in its own process. Prints, for each position of a draft, the share of drafts that were
accepted up to there, and whether the answers are equal. Exits with 1 where shares differ by more
than --most. vLLM is that of `bench.e2e.compare` (--vllm gives another environment's Python); it
runs EAGLE-1 heads without fc.bias, and EAGLE-3 heads, of Llama and Qwen2 targets:

    python -m bench.e2e.compare --model DIR --list      # prints how vLLM is installed
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_VLLM = Path.home() / ".cache/specdec_native/peers/vllm/bin/python"
_METHODS = ("eagle", "eagle3")


def run_here(job: dict[str, Any]) -> dict[str, Any]:
    from specdec_native import Engine, SamplingParams

    config = {
        "method": job["method"],
        "model": job["head"],
        "num_speculative_tokens": job["num_drafts"],
        "quantization": "none",
        "draft_length_policy": "fixed",
    }
    params = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
    with Engine(
        job["model"],
        dtype="float32",
        max_model_len=job["max_model_len"],
        enable_prefix_caching=False,
        speculative_config=config,
    ) as engine:
        outputs = engine.generate(job["prompts"], params)
        metrics = engine.stats().speculative_decoding
    assert metrics is not None
    return {
        "accepted": metrics.accepted_per_position,
        "drafted": metrics.proposed_per_position,
        "answers": [list(output.outputs[0].token_ids) for output in outputs],
    }


def run_vllm(job: dict[str, Any]) -> dict[str, Any]:
    import vllm

    llm = vllm.LLM(
        job["model"],
        dtype="float32",
        max_model_len=job["max_model_len"],
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        skip_tokenizer_init=True,
        speculative_config={
            "method": job["method"],
            "model": job["head"],
            "num_speculative_tokens": job["num_drafts"],
        },
    )
    params = vllm.SamplingParams(
        temperature=0, max_tokens=job["max_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    accepted, num_steps = [0] * job["num_drafts"], 0
    for metric in llm.get_metrics():
        if metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            accepted = [a + int(b) for a, b in zip(accepted, metric.values, strict=True)]
        if metric.name == "vllm:spec_decode_num_drafts":
            num_steps += int(metric.value)
    return {
        "accepted": accepted,
        "drafted": [num_steps] * job["num_drafts"],
        "answers": [list(output.outputs[0].token_ids) for output in outputs],
    }


SIDES = {"here": run_here, "vllm": run_vllm}


def run_side(side: str, python: str, job: dict[str, Any], environment: dict[str, str]) -> Any:
    """Runs one engine in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job))
        command = [python, __file__, "--side", side, "--job", str(path)]
        subprocess.run(command, check=True, env=os.environ | environment, stdout=sys.stderr)
        return json.loads(path.read_text())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", help="the target's directory or name")
    parser.add_argument("--head", help="the head's directory or name")
    parser.add_argument("--method", choices=_METHODS, help="if the head does not say it")
    parser.add_argument("--prompts", type=Path, help="JSON lines")
    parser.add_argument("--num-prompts", type=int, default=20, help="the shortest ones")
    parser.add_argument("--num-drafts", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--most", type=float, default=0.01)
    parser.add_argument("--vllm", default=str(_VLLM), help="the Python that has vLLM")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.side:
        given.job.write_text(json.dumps(SIDES[given.side](json.loads(given.job.read_text()))))
        return 0

    from bench.e2e.compare.workloads import encode

    from specdec_lab.evaluation.prompts import read_prompts
    from specdec_native.checkpoints import hub
    from specdec_native.checkpoints.draft_config import read_draft_config
    from specdec_native.speculation.methods import checkpoint_method

    if None in (given.model, given.head, given.prompts):
        parser.error("--model, --head and --prompts are needed")
    model, head = hub.resolve_model(given.model), hub.resolve_model(given.head)
    method = given.method or checkpoint_method(given.head, read_draft_config(head))
    if method not in _METHODS:
        parser.error(f"--head: vLLM runs no {method} heads")
    texts = [prompt.text for prompt in read_prompts([given.prompts])]
    prompts = sorted(encode(texts, model), key=len)
    job = {
        "model": str(model),
        "head": str(head),
        "method": method,
        "num_drafts": given.num_drafts,
        "max_tokens": given.max_tokens,
        "max_model_len": given.max_model_len,
        "prompts": prompts[: given.num_prompts],
    }
    here = run_side("here", sys.executable, job, {})
    vllm = run_side("vllm", given.vllm, job, {"VLLM_CPU_KVCACHE_SPACE": "1"})
    equal = sum(a == b for a, b in zip(here["answers"], vllm["answers"], strict=True))
    print(f"{equal} of {len(prompts[: given.num_prompts])} answers are equal")
    worst = 0.0
    for position in range(given.num_drafts):
        shares = [side["accepted"][position] / side["drafted"][position] for side in (here, vllm)]
        worst = max(worst, abs(shares[0] - shares[1]))
        counts = [f"{s['accepted'][position]}/{s['drafted'][position]}" for s in (here, vllm)]
        print(
            f"position {position + 1}: here {shares[0]:.4f} ({counts[0]}), "
            f"vLLM {shares[1]:.4f} ({counts[1]})"
        )
    return 0 if worst <= given.most else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
