"""How much of a text the tokens cover that a draft head would score (`speculative_token_map`).

    python -m bench.e2e.token_coverage --model DIR --text answers.txt --text notes.md

For each text and size: the share of its tokens among the likely tokens without a text, among the
lowest ids, and among the most frequent tokens of each other text. Every text is cut into two halves
of alternate lines, so that a text also shows what its own other half covers. Prints a table in
Markdown.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from specdec_native.checkpoints.text_files import read_text
from specdec_native.speculation.likely_tokens import DraftTarget, likely_tokens_first
from specdec_native.text.tokenizer import Tokenizer

SIZES = (8192, 16384, 32768, 65536)


def counts_of(tokenizer: Tokenizer, lines: Sequence[str]) -> Counter[int]:
    """How often each token occurs."""
    return Counter(tokenizer.encode("\n".join(lines), add_special_tokens=False))


def by_count(counts: Counter[int], vocab_size: int) -> list[int]:
    """All tokens, the most frequent first, of equally frequent ones the lowest."""
    return sorted(range(vocab_size), key=lambda token: (-counts[token], token))


def coverage(counts: Counter[int], tokens: Iterable[int]) -> float:
    """Share of the counted tokens that are among `tokens`."""
    return sum(counts[token] for token in tokens) / counts.total()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True, help="a checkpoint's directory")
    parser.add_argument("--text", type=Path, action="append", required=True, help="repeatable")
    parser.add_argument("--size", type=int, action="append", help=f"repeatable; {SIZES}")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_directory(arguments.model)
    target = DraftTarget(arguments.model, "auto", "auto", num_tokens=len(tokenizer))
    vocab_size = target.vocab_size
    halves = {}
    for file in arguments.text:
        lines = read_text(file).splitlines()
        halves[file.name] = [counts_of(tokenizer, lines[begin::2]) for begin in (0, 1)]
    orders = {"likely": list(likely_tokens_first(target)), "lowest ids": range(vocab_size)}
    orders |= {name: by_count(counts[0], vocab_size) for name, counts in halves.items()}
    sizes = [size for size in arguments.size or SIZES if size < vocab_size]
    print("| text | tokens by |", *(f" {size:,} |" for size in sizes), sep="")
    print("|---|---|", *("---|" for _ in sizes), sep="")
    for name, (_, counts) in halves.items():
        for source, order in orders.items():
            shares = [coverage(counts, order[:size]) for size in sizes]
            print(f"| {name} | {source} |", *(f" {share:.3f} |" for share in shares), sep="")


if __name__ == "__main__":
    main()
