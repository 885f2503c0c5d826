"""Random JSON schemas, of the kinds that people send, whose texts are short."""

import random
from collections.abc import Callable
from typing import Any

WORDS = ("name", "size", "in", "true", "x1", "kind", "alpha", "main")


def random_schema(seed: int) -> dict[str, Any]:
    """An object schema; the same for the same seed."""
    return _object(random.Random(seed), 0)


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(WORDS, draw.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _value(draw, depth + 1) for name in names},
        "required": [name for name in names if draw.random() < 0.8],
        "additionalProperties": False,
    }


def _value(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "integer", "minimum": draw.randint(-9, 0), "maximum": draw.randint(0, 99)},
        lambda: {"type": "boolean"},
        lambda: {"type": "null"},
        lambda: {"enum": draw.sample([*WORDS, 3, None, False], 3)},
        lambda: {"const": draw.choice(WORDS)},
        lambda: {"type": "string", "maxLength": draw.randint(0, 6)},
        lambda: {"type": "string", "pattern": "^[a-c]{1,3}[0-9]?$"},
        lambda: {"anyOf": [{"type": "boolean"}, {"const": draw.choice(WORDS)}]},
    ]
    if depth < 3:
        kinds += [
            lambda: _object(draw, depth),
            lambda: {"type": "array", "items": _value(draw, depth + 1), "maxItems": 2},
        ]
    return draw.choice(kinds)()
