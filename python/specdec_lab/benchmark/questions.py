"""The questions of a benchmark: random words, random tokens, or a file's prompts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from specdec_lab.benchmark.answers import Question
from specdec_lab.evaluation.prompts import read_prompts

RANDOM = "random"

_MOST_TRIES = 6  # to find a text of a given length
# Frequent words; each is a single token in most vocabularies.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea kid body information back "
    "parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
_WORDS = _TEXT.split()

TokenCounter = Callable[[str], Awaitable[int | None]]


def custom_questions(
    files: Sequence[Path], num_prompts: int | None, max_tokens: int, seed: int
) -> list[Question]:
    """Questions from JSON-lines files, see read_prompts(); repeated from the start if too few.

    num_prompts: the number of questions; None for every prompt once.

    Raises PromptsError that names the file and the line.
    """
    prompts = read_prompts(files)
    chosen = itertools.islice(itertools.cycle(prompts), num_prompts or len(prompts))
    return [
        Question(prompt.category, prompt.text, max_tokens, seed + i)
        for i, prompt in enumerate(chosen)
    ]


def lengths(num: int, length: int, range_ratio: float, source: random.Random) -> list[int]:
    """Lengths drawn evenly from length * (1 - range_ratio) to length * (1 + range_ratio)."""
    lowest = max(1, int(length * (1 - range_ratio)))
    highest = max(lowest, int(length * (1 + range_ratio)))
    return [source.randint(lowest, highest) for _ in range(num)]


async def random_questions(
    num_prompts: int,
    input_len: int,
    output_len: int,
    *,
    range_ratio: float = 0.0,
    seed: int = 0,
    count_tokens: TokenCounter,
) -> list[Question]:
    """Texts of random words.

    A text has the given number of tokens if `count_tokens` can count them, else the given number of
    words. A prompt's true length is in the answer.
    """
    source = random.Random(seed)
    inputs = lengths(num_prompts, input_len, range_ratio, source)
    outputs = lengths(num_prompts, output_len, range_ratio, source)
    questions = []
    for i, (num_input, num_output) in enumerate(zip(inputs, outputs, strict=True)):
        text = await _text_of(num_input, source, count_tokens)
        questions.append(Question(RANDOM, text, num_output, seed + i))
    return questions


async def _text_of(length: int, source: random.Random, count_tokens: TokenCounter) -> str:
    words = source.choices(_WORDS, k=length)
    best, smallest = words, None
    for _ in range(_MOST_TRIES):
        count = await count_tokens(" ".join(words))
        if count is None:
            break
        off = count - length
        if smallest is None or abs(off) < smallest:
            best, smallest = words, abs(off)
        if off == 0 or (off > 0 and len(words) == 1):
            break
        per_word = count / len(words)
        num_words = max(1, len(words) - (round(off / per_word) or (1 if off > 0 else -1)))
        words = [*words, *source.choices(_WORDS, k=max(0, num_words - len(words)))][:num_words]
    return " ".join(best)


def random_tokens(num_prompts: int, input_len: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Prompts of random token ids: [num_prompts, input_len]."""
    source = random.Random(seed)
    return [source.choices(range(vocab_size), k=input_len) for _ in range(num_prompts)]
