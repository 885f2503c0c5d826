"""Records passes and drafts of a real model for bench/host/policy_ablation to simulate.

    build/release/bench/step_bench --model=DIR --rows=1,2,4,8,16,32,64 --json=bf16.json
    python -m bench.e2e.policy_worlds --passes bf16=bf16.json int4=int4.json --json WORLDS.json

A world is an answer: for each of its tokens, how many of the tokens that a draft head, or the last
equal n-gram, would draft there are right.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from bench.e2e.compare.workloads import DEFAULT_PROMPTS, WORKLOADS, encode, pick, read_prompts

from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub

HEAD = "SmolLM2-135M-Instruct-eagle3"
HEAD_DEPTH = 8
NGRAM_DEPTH = 16
NGRAM = range(4, 1, -1)  # lengths of n-grams to match, the longest first


def right_of_head(engine: Engine, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """How many of the head's drafted tokens are right after each token of the answer.

    Each prefix of the answer is run as a prompt, and its first draft is recorded.
    """
    params = SamplingParams(
        temperature=0, max_tokens=HEAD_DEPTH + 2, ignore_eos=True, record_draft_steps=True
    )
    beginnings = [[*prompt, *answer[:i]] for i in range(len(answer))]
    outputs = engine.generate(beginnings, params, use_tqdm=False)
    return [output.metrics.speculative_decoding.per_step_accepted[0] for output in outputs]


def right_of_ngram(prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """How many tokens after the last equal n-gram are right; -1 if there is no such n-gram."""
    tokens = [*prompt, *answer]
    return [
        next(
            (
                _num_equal(tokens[start + n : end][:NGRAM_DEPTH], tokens[end:])
                for n in NGRAM
                for start in range(end - n - 1, -1, -1)
                if tokens[start : start + n] == tokens[end - n : end]
            ),
            -1,
        )
        for end in range(len(prompt) + 1, len(tokens) + 1)
    ]


def _num_equal(draft: Sequence[int], text: Sequence[int]) -> int:
    pairs = zip(draft, text, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def pass_share(engine: Engine, prompt: Sequence[int]) -> float:
    """Seconds of a pass of the head over those of the target's over 1 + HEAD_DEPTH rows."""
    before = engine.stats()
    params = SamplingParams(temperature=0, max_tokens=128, ignore_eos=True)
    engine.generate(list(prompt), params, use_tqdm=False)
    after = engine.stats()
    drafting = after.draft_seconds - before.draft_seconds
    return drafting / HEAD_DEPTH / (after.forward_seconds - before.forward_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--passes", nargs="+", required=True, help="FORMAT=FILE of step_bench")
    parser.add_argument("--num-prompts", type=int, default=8, help="of each workload")
    parser.add_argument("--num-tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    directory = hub.resolve_model(options.model)
    texts = read_prompts(DEFAULT_PROMPTS)
    passes = {}
    for entry in options.passes:
        name, _, file = entry.partition("=")
        steps = json.loads(Path(file).read_text(encoding="utf-8"))["steps"]
        passes[name] = [[step["rows"], step["seconds"]] for step in steps]
    engine = Engine(
        directory,
        max_num_seqs=32,
        speculative_config={
            "method": "eagle3",
            "model": HEAD,
            "num_speculative_tokens": HEAD_DEPTH,
            "draft_length_policy": "fixed",
        },
    )
    plain = SamplingParams(temperature=0, max_tokens=options.num_tokens, ignore_eos=True)
    right: dict[str, dict[str, list[list[int]]]] = {"head": {}, "ngram": {}}
    for workload in WORKLOADS:
        prompts = pick(encode(texts[workload], directory), options.num_prompts, 256)
        outputs = engine.generate(prompts, plain, use_tqdm=False)
        pairs = [(p, o.outputs[0].token_ids) for p, o in zip(prompts, outputs, strict=True)]
        right["head"][workload] = [right_of_head(engine, *pair) for pair in pairs]
        right["ngram"][workload] = [right_of_ngram(*pair) for pair in pairs]
        print(workload, flush=True)
    worlds = {
        "model": options.model,
        "passes": passes,
        "head_pass_share": pass_share(engine, prompts[0]),
        "right_tokens": right,
    }
    options.json.write_text(json.dumps(worlds) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
