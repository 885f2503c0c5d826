"""How much time the automatic draft length loses against the best fixed one, known in hindsight.

    python -m bench.e2e.policy_regret --speculation '{"method": "ngram"}' --batch 8

Each batch of prompts is answered by an engine that chooses its lengths, and by one with fixed
lengths, once for each of them (0 is plain decoding), in another order every time. The workloads
come in blocks, so that what pays changes suddenly: chat, code, edit, and these again. Prints the
seconds of each choice by block, and the regret after each block: the automatic engine's seconds
over those of the fixed length that was fastest up to there. Exits with 1 where the regret of the
whole run is above --most, or an answer differs. What is learned is kept from batch to batch.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.e2e.compare.workloads import DEFAULT_PROMPTS, WORKLOADS, encode, pick, read_prompts

from specdec_native import Engine, SamplingParams
from specdec_native.checkpoints import hub

AUTO = "auto"
_CACHE_BYTES_OF_REQUEST = 1 << 26
_WARM_UP = [list(range(10, 40))]


@dataclasses.dataclass(frozen=True)
class Turn:
    """The seconds of every choice for one batch."""

    block: int
    workload: str
    seconds: dict[str, float]  # by choice: "auto", or a fixed length


class Contest:
    """Two engines of one model: one chooses its draft lengths, one is told."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._choices = [AUTO, *map(str, options.lengths)]
        self.directory = hub.resolve_model(options.model, quantization=options.quantization)
        config = {**json.loads(options.speculation), "num_speculative_tokens": max(options.lengths)}
        self._auto = self._load(config)
        self._fixed = self._load({**config, "draft_length_policy": "fixed"})
        self.num_different = 0

    def _load(self, config: dict[str, Any]) -> Engine:
        options = self._options
        engine = Engine(
            self.directory,
            num_threads=options.num_threads,
            quantization=options.quantization,
            cpu_isa=options.isa,
            max_model_len=2048,
            max_num_seqs=options.batch,
            kv_cache_memory_bytes=max(options.batch, 4) * _CACHE_BYTES_OF_REQUEST,
            enable_prefix_caching=False,
            speculative_config=config,
        )
        engine.generate(_WARM_UP, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
        return engine

    def _answer(self, choice: str, prompts: Sequence[Sequence[int]]) -> tuple[float, Any]:
        options = self._options
        params = SamplingParams(
            temperature=options.temperature, seed=1, max_tokens=options.num_tokens, ignore_eos=True
        )
        if choice != AUTO:
            params.num_speculative_tokens = int(choice)
        engine = self._auto if choice == AUTO else self._fixed
        begin = time.perf_counter()
        outputs = engine.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        return seconds, [list(output.outputs[0].token_ids) for output in outputs]

    def turn(
        self, number: int, block: int, workload: str, prompts: Sequence[Sequence[int]]
    ) -> Turn:
        """Every choice answers a batch; the first one changes from turn to turn."""
        begin = number % len(self._choices)
        order = self._choices[begin:] + self._choices[:begin]
        answers = {choice: self._answer(choice, prompts) for choice in order}
        expected = answers[AUTO][1]
        self.num_different += sum(tokens != expected for _, tokens in answers.values())
        return Turn(block, workload, {choice: answers[choice][0] for choice in self._choices})


def regret(turns: Sequence[Turn]) -> tuple[float, str]:
    """The share of time that "auto" lost against the fastest fixed length, and that length."""
    totals = {choice: sum(turn.seconds[choice] for turn in turns) for choice in turns[0].seconds}
    best = min((choice for choice in totals if choice != AUTO), key=lambda choice: totals[choice])
    return totals[AUTO] / totals[best] - 1.0, best


def batches(options: argparse.Namespace, directory: Path) -> Iterator[tuple[int, str, Any]]:
    """The number of the block, its workload and a batch of prompts."""
    texts = read_prompts(options.prompts)
    ids = {name: encode(texts[name], directory) for name in set(options.blocks)}
    taken = dict.fromkeys(ids, 0)
    size = options.batch * options.batches
    for block, name in enumerate(options.blocks):
        num_blocks = options.blocks.count(name)
        prompts = pick(ids[name], size * num_blocks, options.max_prompt_tokens)
        begin = taken[name] * size
        taken[name] += 1
        for batch in range(options.batches):
            first = begin + batch * options.batch
            yield block, name, prompts[first : first + options.batch]


def parse_options() -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--speculation", required=True, help="JSON")
    parser.add_argument("--lengths", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--prompts", type=Path, default=DEFAULT_PROMPTS, help="folder of *.jsonl")
    parser.add_argument("--blocks", nargs="+", default=[*WORKLOADS, *WORKLOADS], choices=WORKLOADS)
    parser.add_argument("--batches", type=int, default=4, help="of each block")
    parser.add_argument("--batch", type=int, default=1, help="prompts that are answered at once")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-prompt-tokens", type=int, default=512)
    parser.add_argument("--num-tokens", type=int, default=64)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--quantization")
    parser.add_argument("--isa", default="auto", help="cpu_isa")
    parser.add_argument("--most", type=float, default=0.03, help="regret of the whole run")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    contest = Contest(options)
    turns: list[Turn] = []
    for number, (block, workload, prompts) in enumerate(batches(options, contest.directory)):
        turns.append(contest.turn(number, block, workload, prompts))
        if number + 1 == (block + 1) * options.batches:
            print_block(turns, block)
    lost, best = regret(turns)
    plain = sum(turn.seconds["0"] for turn in turns) if 0 in options.lengths else None
    automatic = sum(turn.seconds[AUTO] for turn in turns)
    over_plain = "" if plain is None else f", {plain / automatic:.3f} times as fast as plain"
    print(
        f"regret {lost:+.2%} against {best} drafts{over_plain}; different {contest.num_different}"
    )
    if options.json:
        rows = [dataclasses.asdict(turn) for turn in turns]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(lost > options.most or contest.num_different > 0)


def print_block(turns: Sequence[Turn], block: int) -> None:
    """Seconds of the block by choice, and the regret up to its end."""
    own = [turn for turn in turns if turn.block == block]
    totals = {choice: sum(turn.seconds[choice] for turn in own) for choice in own[0].seconds}
    times = ", ".join(f"{choice} {seconds:.2f} s" for choice, seconds in totals.items())
    (lost, best), (here, best_here) = regret(turns), regret(own)
    print(
        f"{own[0].workload:5s} {times}: {here:+.1%} of {best_here} in the block, "
        f"{lost:+.1%} of {best} so far",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
