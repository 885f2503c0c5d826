"""Made-up prompts of several kinds: as many as a run has time for, equal in every run.

Drafts are kept most where an answer repeats its prompt or itself, and least in free text; the kinds
cover both, and texts whose characters have several tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_NAMES = ("Ada", "Bruno", "Chen", "Dalia", "Emeka", "Farah", "Goran", "Hana", "Ivo", "Jun")
_NOUNS = ("river", "bridge", "kettle", "garden", "letter", "engine", "mirror", "harbour", "violin")
_TOPICS = ("tides", "bread", "bicycles", "glaciers", "chess", "bees", "volcanoes", "maps", "soap")
_EMOJI = ("😀", "🚲", "🌧️", "👩‍🔬", "🍞", "🎻", "🗺️", "🐝")


def _copied(rng: random.Random) -> str:
    sentences = [
        f"{rng.choice(_NAMES)} left the {rng.choice(_NOUNS)} beside the {rng.choice(_NOUNS)}."
        for _ in range(6)
    ]
    text = " ".join(sentences)
    return f"Text: {text}\n\nThe same text, word for word: {sentences[0]}"


def _listed(rng: random.Random) -> str:
    begin, step = rng.randrange(2, 40), rng.randrange(2, 9)
    numbers = ", ".join(str(begin + step * i) for i in range(8))
    return f"Count in steps of {step}: {numbers},"


def _code(rng: random.Random) -> str:
    noun = rng.choice(_NOUNS)
    return (
        f"class {noun.title()}:\n"
        f"    def __init__(self, name, size):\n"
        f"        self.name = name\n        self.size = size\n\n"
        f"    def get_name(self):\n        return self.name\n\n"
        f"    def get_size(self):\n"
    )


def _asked(rng: random.Random) -> str:
    return f"Question: What should everybody know about {rng.choice(_TOPICS)}?\nAnswer:"


def _data(rng: random.Random) -> str:
    rows = [
        f'{{"id": {i}, "name": "{rng.choice(_NAMES)}", "item": "{rng.choice(_NOUNS)}"}}'
        for i in range(4)
    ]
    return "[\n  " + ",\n  ".join(rows) + ",\n"


def _wide(rng: random.Random) -> str:
    signs = rng.sample(_EMOJI, 4)
    return f"Repeat: {' '.join(signs)} 日本語 Ελλάδα {' '.join(signs)} 日本語 Ελλάδα {signs[0]}"


def _story(rng: random.Random) -> str:
    return f"{rng.choice(_NAMES)} had never seen such a {rng.choice(_NOUNS)} before. One morning"


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    _copied,
    _asked,
    _code,
    _listed,
    _story,
    _data,
    _wide,
)
KIND_NAMES = tuple(kind.__name__.lstrip("_") for kind in _KINDS)


def prompt(number: int) -> str:
    """The prompt with a number; its kind is that of `kind_of`."""
    kind = _KINDS[number % len(_KINDS)]
    return kind(random.Random(f"{kind.__name__} {number}"))


def kind_of(number: int) -> str:
    """The kind of a prompt: copied, asked, code, listed, story, data or wide."""
    return KIND_NAMES[number % len(_KINDS)]


def prompts(round_number: int, count: int) -> list[str]:
    """The prompts of a round."""
    return [prompt(round_number * count + i) for i in range(count)]
