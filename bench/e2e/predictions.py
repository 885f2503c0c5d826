"""What a prediction of the answer (SamplingParams.prediction) brings: CPU seconds of edits.

    python -m bench.e2e.predictions MODEL --prompts /data/eval/edit.jsonl

A prompt asks for a file with a change, and the answer begins with the first characters of the file,
so that it is the file. Every prompt is answered four times in turn, on one thread, from a prefix
cache that knows the prompt: plainly, with the file as prediction, with another prompt's file, and
with the plain answer itself in which every 40th token is another one. The other drafter of the
engine drafts nothing. All answers must be the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
from collections.abc import Sequence
from pathlib import Path

from specdec_native import LLM, RequestOutput, SamplingParams
from specdec_native.text.chat_template import Message

_KINDS = ("plain", "file", "useless", "answer")
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
    options = parser.parse_args()

    entries = [json.loads(line) for line in options.prompts.read_text("utf-8").splitlines()]
    for entry in entries:
        entry["source"] = "\n".join(entry["source"].split("\n")[: options.lines]) + "\n"
    llm = LLM(
        options.model,
        max_model_len=4096,
        num_threads=1,
        quantization=options.quantization,
        speculative_config={
            "method": "custom_class",
            "drafter": _no_drafts,
            "num_speculative_tokens": options.num_speculative_tokens,
        },
    )

    def ask(entry: dict[str, str], params: SamplingParams) -> RequestOutput:
        return llm.chat(
            _messages(entry),
            params,
            use_tqdm=False,
            add_generation_prompt=False,
            continue_final_message=True,
        )[0]

    seconds = dict.fromkeys(_KINDS, 0.0)
    num_tokens = 0
    for i, entry in enumerate(entries[: options.num_prompts]):
        params = SamplingParams(temperature=0, max_tokens=options.num_tokens)
        plain = list(ask(entry, params).outputs[0].token_ids)
        num_tokens += len(plain)
        other = entries[(i + len(entries) // 2) % len(entries)]["source"]
        predictions = (None, entry["source"], other, _edited(plain))
        for kind, prediction in zip(_KINDS, predictions, strict=True):
            asked = dataclasses.replace(
                params,
                prediction=prediction,
                num_speculative_tokens=0 if prediction is None else None,
            )
            begin = _cpu_seconds()
            output = ask(entry, asked)
            seconds[kind] += _cpu_seconds() - begin
            assert list(output.outputs[0].token_ids) == plain, kind
    for kind in _KINDS:
        ratio = seconds["plain"] / seconds[kind]
        print(f"{kind:8} {num_tokens} tokens, {seconds[kind]:7.2f} CPU s, {ratio:5.2f} of plain")


if __name__ == "__main__":
    main()
