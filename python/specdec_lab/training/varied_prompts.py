"""Writes users' turns of many kinds, for `train-head --data`, as a model is asked by people.

    python -m specdec_lab.training.varied_prompts FILE.jsonl --count 10000 --seed 41
        [--made-up-by MODEL --made-up-share 0.25] [--not-in PROMPTS.jsonl ...]

Most turns are templates with fillers (prompt_parts.py); some ask about a paragraph of the standard
library's documentation. A share is made up by the model, as SampledTurns does, after a system
message with a topic, which the written conversation leaves out. About a sixth of the conversations
have a second turn or a third. A turn that shares eight words in a row with a text of `--not-in`,
such as the prompts that the head will be judged by, is left out.

The same arguments give the same file, on the same version of Python and, with --made-up-by, on the
same kind of processor.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import json
import random
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specdec_lab.training.files import write_errors
from specdec_lab.training.made_up_prompts import SampledTurns
from specdec_lab.training.prompt_parts import (
    FILLERS,
    FOLLOW_UPS,
    POLITE,
    SYSTEMS,
    TEMPLATES,
)
from specdec_native.engine import Engine

_FIELD = re.compile(r"\{(\w+)\}")
_DOCUMENTED = """
    argparse array ast asyncio base64 bisect calendar cmath collections contextlib copy csv
    ctypes datetime decimal difflib email.message enum fileinput fractions functools gettext
    glob gzip heapq html http.client http.cookiejar imaplib inspect io ipaddress itertools json
    locale logging mailbox math multiprocessing numbers operator optparse os pathlib pickle
    platform pprint queue random re sched secrets select shelve shutil signal smtplib socket
    sqlite3 statistics string struct subprocess tarfile tempfile textwrap threading time timeit
    tkinter tokenize traceback turtle types typing unittest urllib.parse urllib.request uuid
    wave weakref xml.dom.minidom zipfile zlib
"""
_PASSAGE = (250, 900)  # characters
_SHARED_WORDS = 8
_POLITE_SHARE = 0.25
_MOST_TURNS = 3
_LAST_TURN = 5 / 6  # chance that no further turn follows
_SYSTEMS_SAMPLED = 64
_TRIES = 50


def prompt_conversations(seed: int, passages: Sequence[str]) -> Iterator[list[str]]:
    """Users' turns of one conversation after another, without end and without repetition.

    `passages`: texts that some turns ask about.
    """
    draw = random.Random(seed)
    seen: set[str] = set()
    for number in itertools.count():
        templates = list(TEMPLATES.values())[number % len(TEMPLATES)]
        for _ in range(_TRIES):
            turn = _filled(draw.choice(templates), draw, passages)
            if draw.random() < _POLITE_SHARE:
                turn = draw.choice(POLITE).format(turn)
            if turn not in seen:
                break
        else:
            continue
        seen.add(turn)
        turns = [turn]
        while len(turns) < _MOST_TURNS and draw.random() > _LAST_TURN:
            turns.append(_filled(draw.choice(FOLLOW_UPS), draw, passages))
        yield turns


def system_messages(seed: int, count: int) -> list[str]:
    """System messages of assistants with different subjects."""
    draw = random.Random(f"systems {seed}")
    return [_filled(SYSTEMS[i % len(SYSTEMS)], draw, ()) for i in range(count)]


def documentation() -> list[str]:
    """Paragraphs of the standard library's docstrings, in a fixed order, each once."""
    texts: dict[str, None] = {}
    for name in _DOCUMENTED.split():
        try:
            module = importlib.import_module(name)
        except ImportError:  # such as tkinter
            continue
        members = [value for _, value in sorted(vars(module).items(), key=lambda item: item[0])]
        for value in [module, *members]:
            if not (inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of deprecated members
                paragraphs = re.split(r"\n\s*\n", inspect.getdoc(value) or "")
            for text in (" ".join(paragraph.split()) for paragraph in paragraphs):
                if _PASSAGE[0] <= len(text) <= _PASSAGE[1] and ">>>" not in text:
                    texts[text] = None
    return list(texts)


class Overlap:
    """Finds turns that share some words in a row with given texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._known = {run for text in texts for run in _runs(text)}

    def __contains__(self, text: str) -> bool:
        return not self._known.isdisjoint(_runs(text))


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """All runs of words; a shorter text is one run."""
    words = re.findall(r"\w+", text.lower())
    for begin in range(max(len(words) - _SHARED_WORDS, 0) + 1):
        yield tuple(words[begin : begin + _SHARED_WORDS])


def _filled(template: str, draw: random.Random, passages: Sequence[str]) -> str:
    used: set[str] = set()

    def value(field: re.Match[str]) -> str:
        name = field[1]
        if name == "n":
            return str(draw.randint(2, 9))
        if name == "big":
            return str(draw.randint(10, 90))
        choices = passages if name == "passage" else FILLERS[name]
        chosen = draw.choice(choices)
        while chosen in used:
            chosen = draw.choice(choices)
        used.add(chosen)
        return chosen

    text = _FIELD.sub(value, template.replace("\\n", "\n"))
    return text[0].upper() + text[1:]


def _texts(value: Any) -> Iterator[str]:
    """All strings of a JSON value but the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _read_texts(file: Path) -> Iterator[str]:
    """All texts of a JSONL file."""
    for line in file.read_text(encoding="utf-8").splitlines():
        yield from _texts(json.loads(line))


def _mixed(
    conversations: Iterator[list[str]], made_up: Iterator[list[str]], share: float
) -> Iterator[list[str]]:
    """Takes `share` of its conversations from `made_up`, evenly spread."""
    for number in itertools.count():
        is_made_up = int((number + 1) * share) > int(number * share)
        yield next(made_up if is_made_up else conversations)


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, help="the JSONL file that is written")
    parser.add_argument("--count", type=int, default=10_000, help="conversations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--made-up-by", metavar="MODEL", default="")
    parser.add_argument("--made-up-share", type=float, default=0.25)
    parser.add_argument("--not-in", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    given = parser.parse_args(arguments)
    known = Overlap(turn for file in given.not_in for turn in _read_texts(file))
    conversations = prompt_conversations(given.seed, documentation())
    engine = None
    if given.made_up_by:
        engine = Engine(given.made_up_by, max_num_seqs=given.max_num_seqs)
        systems = system_messages(given.seed, _SYSTEMS_SAMPLED)
        sampled = SampledTurns(engine, seed=given.seed, systems=[None, *systems])
        made_up = ([messages[-1]["content"]] for messages in sampled.conversations())
        conversations = _mixed(conversations, made_up, given.made_up_share)
    num_left_out = 0
    try:
        with write_errors(given.file), given.file.open("w", encoding="utf-8") as file:
            num_written = 0
            while num_written < given.count:
                turns = next(conversations)
                if any(turn in known for turn in turns):
                    num_left_out += 1
                    continue
                file.write(json.dumps({"turns": turns}) + "\n")
                num_written += 1
    finally:
        if engine is not None:
            engine.close()
    print(f"{num_written} conversations; {num_left_out} left out", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
