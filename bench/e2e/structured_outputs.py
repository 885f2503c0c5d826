"""Measures the cost of structured output, and the gain from drafting forced tokens.

    python bench/e2e/structured_outputs.py [--model DIR_OR_NAME] [--rounds N] [--cpu-time]
        [--json FILE]

Three figures:

- JSON answers at batch 1: seconds an answer with forced tokens as drafts over seconds without
  speculation, both under the same grammar, interleaved, with the median over rounds. The texts must
  be equal.
- A mask's cost: the seconds of a matcher's step and mask along those answers.
- What grammars cost a step that decodes for 8 requests: masks over the step, and the step's seconds
  under the grammar over those without, in turns. Masks of a step are made on all threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec_native import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from specdec_native.requests.grammar_compiler import GrammarCompiler

NUM_REQUESTS = 8
Clock = Callable[[], float]  # seconds
TEXT = {"type": "string", "maxLength": 24}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "occupation": TEXT,
        "address": {
            "type": "object",
            "properties": {"street": TEXT, "city": TEXT, "country": TEXT},
            "required": ["street", "city", "country"],
            "additionalProperties": False,
        },
        "is_married": {"type": "boolean"},
        "hobbies": {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 3},
    },
    "required": ["name", "age", "occupation", "address", "is_married", "hobbies"],
    "additionalProperties": False,
}
SUBJECTS = [
    *("Ada Lovelace", "a baker in Paris", "a pilot", "Marie Curie"),
    *("a farmer in Kansas", "a violinist", "Johann Wolfgang von Goethe", "a student of law"),
]
# No match is ever this long, so that the grammar is the only drafter.
FORCED_ALONE = {
    "method": "ngram",
    "num_speculative_tokens": 8,
    "prompt_lookup_min": 128,
    "prompt_lookup_max": 128,
}


def conversation(subject: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Describe {subject} as JSON."}]


def params(compact: bool, max_tokens: int) -> SamplingParams:
    grammar = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=compact)
    return SamplingParams(temperature=0, max_tokens=max_tokens, structured_outputs=grammar)


def answer_each(
    llm: LLM, sampling: SamplingParams, clock: Clock
) -> tuple[float, list[RequestOutput]]:
    """Seconds for all subjects, one after the other, and the answers."""
    begin = clock()
    outputs = [llm.chat(conversation(s), sampling, use_tqdm=False)[0] for s in SUBJECTS]
    return clock() - begin, outputs


def mask_seconds(
    llm: LLM, sampling: SamplingParams, outputs: list[RequestOutput], clock: Clock
) -> float:
    """The mean seconds of a step and a mask of a matcher, once its grammar is warm."""
    info = llm.engine.model_info()
    tokenizer = llm.get_tokenizer()
    compiler = GrammarCompiler(tokenizer, info.vocab_size, [tokenizer.eos_token_id or 0])
    assert isinstance(sampling.structured_outputs, StructuredOutputsParams)
    grammar = compiler.compile(sampling.structured_outputs)
    seconds: list[float] = []
    for is_warm in (False, True):
        for output in outputs:
            matcher = grammar.make_matcher()
            for token in output.outputs[0].token_ids:
                begin = clock()
                matcher.mask()
                matcher.advance(token)
                if is_warm:
                    seconds.append(clock() - begin)
    return statistics.fmean(seconds)


def batch_seconds(llm: LLM, sampling: SamplingParams, clock: Clock) -> float:
    """Seconds of answers to NUM_REQUESTS subjects together."""
    batch = [conversation(subject) for subject in SUBJECTS[:NUM_REQUESTS]]
    begin = clock()
    llm.chat(batch, sampling, use_tqdm=False)
    return clock() - begin


def step_seconds(llm: LLM, compact: bool, clock: Clock, num_rounds: int) -> tuple[float, float]:
    """Seconds of a step that decodes for NUM_REQUESTS requests, under the grammar and without.

    From the fastest answers of two lengths, measured in turns.
    """
    short, long = 8, 40
    least: dict[tuple[bool, int], float] = {}
    for _ in range(num_rounds):
        for max_tokens in (short, long):
            for is_free in (False, True):
                sampling = params(compact, max_tokens)
                if is_free:
                    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
                seconds = batch_seconds(llm, sampling, clock)
                key = (is_free, max_tokens)
                least[key] = min(seconds, least.get(key, seconds))
    under, free = (
        (least[is_free, long] - least[is_free, short]) / (long - short) for is_free in (False, True)
    )
    return under, free


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count CPU time, of one thread, where others keep the machine busy",
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter
    engine: dict[str, Any] = {"max_model_len": 1024, "num_threads": int(options.cpu_time)}
    plain = LLM(options.model, **engine)
    drafting = LLM(options.model, speculative_config=FORCED_ALONE, **engine)
    results: dict[str, Any] = {}
    for compact in (True, False):
        sampling = params(compact, options.max_tokens)
        ratios, tokens = [], 0
        for _ in range(options.rounds):
            without, expected = answer_each(plain, sampling, clock)
            with_drafts, outputs = answer_each(drafting, sampling, clock)
            assert [o.outputs[0] for o in outputs] == [o.outputs[0] for o in expected]
            ratios.append(without / with_drafts)
            tokens = sum(len(o.outputs[0].token_ids) for o in expected)
        mask = mask_seconds(plain, sampling, expected, clock)
        under, free = step_seconds(plain, compact, clock, 3 * options.rounds)
        results["compact" if compact else "with whitespace"] = {
            "speed-up": statistics.median(ratios),
            "least speed-up of a round": min(ratios),
            "tokens": tokens,
            "mask microseconds": mask * 1e6,
            f"milliseconds of a step of {NUM_REQUESTS}": 1e3 * under,
            "milliseconds without the grammar": 1e3 * free,
            f"{NUM_REQUESTS} masks over a step": NUM_REQUESTS * mask / under,
            "cost of the grammar in a step": under / free - 1,
        }
    print(json.dumps(results, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
