"""What predictions of answers and answers of the last epoch bring: CPU seconds of edits.

    python -m bench.e2e.predictions MODEL --prompts /data/eval/edit.jsonl [--method ngram]

A prompt asks for a file with a change, and the answer begins with the first characters of the file,
so that it is the file. Every prompt is answered several times in turn, on one thread, from a prefix
cache that knows the prompt: plainly, with the file as prediction, with another prompt's file, and
with the plain answer itself in which every 40th token is another one. The other drafter of the
engine drafts nothing, or is --method, which then also drafts alone. All answers must be the same.

Then an engine with the method replay samples each prompt four times at temperature 1, and again:
with the same seeds ("replay"), and with other ones ("reseeded"). At last the model has other
weights, those of --changed bits, and samples with the seeds and from the answers of the last time
("changed"), beside its own plain decoding.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specdec_native import LLM, SamplingParams
from specdec_native.text.chat_template import Message

_PREDICTED = ("file", "useless", "answer")
_NUM_SAMPLES = 4
_EDIT_EVERY = 40


def _no_drafts(_: Sequence[int], __: int) -> list[int]:
    return []


def _edited(tokens: Sequence[int]) -> list[int]:
    return [token if (i + 1) % _EDIT_EVERY else 5 for i, token in enumerate(tokens)]


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _messages(entry: dict[str, str]) -> list[Message]:
    source = entry["source"]
    asked = (
        f"{entry['instruction']}\n```python\n{source}```\n"
        "Write the whole new file, with as few changes as possible."
    )
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": f"```python\n{source[:40]}"},
    ]


def main() -> None:
    """Prints the ratios of CPU seconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--lines", type=int, default=60, help="of each file")
    parser.add_argument("--num-tokens", type=int, default=400)
    parser.add_argument("--num-speculative-tokens", type=int, default=32)
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--changed", default="int8", help="quantization of the changed model")
    parser.add_argument("--method", choices=("ngram", "suffix"), help="the other drafter")
    options = parser.parse_args()

    entries = [json.loads(line) for line in options.prompts.read_text("utf-8").splitlines()]
    for entry in entries:
        entry["source"] = "\n".join(entry["source"].split("\n")[: options.lines]) + "\n"
    for line in _predictions(options, entries):
        print(line, flush=True)
    for line in _epochs(options, entries):
        print(line, flush=True)


def _engine(
    options: argparse.Namespace, speculation: dict[str, Any], quantization: str | None = None
) -> LLM:
    return LLM(
        options.model,
        max_model_len=4096,
        num_threads=1,
        quantization=quantization or options.quantization,
        speculative_config={
            **speculation,
            "num_speculative_tokens": options.num_speculative_tokens,
        },
    )


def _timed(
    llm: LLM, entry: dict[str, str], params: SamplingParams
) -> tuple[list[list[int]], float]:
    """Token ids of the answers, and CPU seconds."""
    begin = _cpu_seconds()
    output = llm.chat(
        _messages(entry),
        params,
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
    )[0]
    return [list(answer.token_ids) for answer in output.outputs], _cpu_seconds() - begin


def _rows(seconds: dict[str, float], num_tokens: int) -> Iterator[str]:
    plain = next(iter(seconds.values()))
    for kind, taken in seconds.items():
        yield f"{kind:10} {num_tokens} tokens, {taken:7.2f} CPU s, {plain / taken:5.2f} of plain"


def _predictions(options: argparse.Namespace, entries: list[dict[str, str]]) -> Iterator[str]:
    nothing = {"method": "custom_class", "drafter": _no_drafts}
    llm = _engine(options, {"method": options.method} if options.method else nothing)
    alone = (options.method,) if options.method else ()
    seconds = dict.fromkeys(("plain", *alone, *_PREDICTED), 0.0)
    num_tokens = 0
    for i, entry in enumerate(entries[: options.num_prompts]):
        params = SamplingParams(temperature=0, max_tokens=options.num_tokens)
        (plain,), _ = _timed(llm, entry, params)
        num_tokens += len(plain)
        other = entries[(i + len(entries) // 2) % len(entries)]["source"]
        predictions: dict[str, str | list[int]] = {
            "file": entry["source"],
            "useless": other,
            "answer": _edited(plain),
        }
        for kind in seconds:
            asked = dataclasses.replace(
                params,
                prediction=predictions.get(kind),
                num_speculative_tokens=0 if kind == "plain" else None,
            )
            answers, taken = _timed(llm, entry, asked)
            seconds[kind] += taken
            assert answers == [plain], kind
    llm.engine.close()
    yield from _rows(seconds, num_tokens)


def _epochs(options: argparse.Namespace, entries: list[dict[str, str]]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        answers = str(Path(directory) / "answers")
        llm = _engine(options, {"record": answers})
        epochs = (("plain", 1), ("replay", 1), ("reseeded", 2))
        yield from _sampled(llm, options, entries, epochs)
        llm.engine.close()
        llm = _engine(options, {"replay": answers}, quantization=options.changed)
        yield from _sampled(llm, options, entries, (("plain", 2), ("changed", 2)))
        llm.engine.close()


def _sampled(
    llm: LLM,
    options: argparse.Namespace,
    entries: list[dict[str, str]],
    epochs: Sequence[tuple[str, int]],
) -> Iterator[str]:
    """Speeds of epochs of answers to all prompts, each with its seed; the first without drafts."""
    plain_rate = 0.0
    for kind, seed in (("warm-up", 0), *epochs):
        num_tokens, seconds = 0, 0.0
        for entry in entries[: options.num_prompts]:
            params = SamplingParams(
                temperature=1,
                seed=seed,
                n=_NUM_SAMPLES,
                max_tokens=1 if kind == "warm-up" else options.num_tokens,
                num_speculative_tokens=0 if kind in ("warm-up", "plain") else None,
            )
            answers, taken = _timed(llm, entry, params)
            seconds += taken
            num_tokens += sum(map(len, answers))
        if kind == "warm-up":
            continue
        rate = num_tokens / seconds
        plain_rate = plain_rate or rate
        yield (
            f"{kind:10} {num_tokens} tokens, {seconds:7.2f} CPU s, {rate / plain_rate:5.2f} of "
            "plain, sampled"
        )


if __name__ == "__main__":
    main()
