"""Reads answers with calls in pieces, however they are cut."""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from specdec_serve.http.tools.events import (
    AnswerParser,
    Arguments,
    CallBegins,
    CallFails,
    Content,
    MessageEnds,
    Reasoning,
)
from specdec_serve.http.tools.function import Function

Maker: TypeAlias = Callable[[], AnswerParser]
Answer: TypeAlias = list[tuple[Any, ...]]
_SCHEMA = {
    "type": "object",
    "$defs": {"text": {"type": "string"}},
    "properties": {
        "s": {"type": "string"},
        "i": {"type": "integer"},
        "x": {"type": "number"},
        "b": {"type": "boolean"},
        "o": {"type": "object"},
        "a": {"type": "array"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "any": {},
        "ref": {"$ref": "#/$defs/text"},
        "enum": {"enum": ["1", "2"]},
    },
}
FUNCTIONS = [Function("f", _SCHEMA), Function("get_weather", _SCHEMA), Function("none", None)]


def read(make: Maker, pieces: list[str]) -> Answer:
    """The pieces with neighbours of the same kind joined."""
    parser = make()
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    answer: Answer = []
    ids = []
    for event in events:
        match event:
            case Content() | Reasoning():
                kind = type(event).__name__.lower()
                if answer and answer[-1][0] == kind:
                    answer[-1] = (kind, answer[-1][1] + event.text)
                else:
                    answer.append((kind, event.text))
            case MessageEnds():
                answer.append(("ends",))
            case CallBegins():
                ids.append(event.id)
                answer.append(("call", event.index, event.name))
            case Arguments():
                if answer[-1][0] == "arguments":
                    answer[-1] = ("arguments", event.index, answer[-1][2] + event.text)
                else:
                    answer.append(("arguments", event.index, event.text))
            case CallFails():
                answer.append(("fails", event.index, event.text))
    assert len(set(ids)) == len(ids) and all(ids)
    return answer


def called(*calls: tuple[str, str]) -> Answer:
    """The calls, one after the other."""
    return [
        event
        for i, (name, arguments) in enumerate(calls)
        for event in (("call", i, name), ("arguments", i, arguments))
    ]


def splits(text: str) -> list[list[str]]:
    """The text in one piece, in two at every place, in single characters, and at random."""
    noise = random.Random(text)
    cuts = [[i] for i in range(len(text) + 1)]
    cuts += [sorted(noise.choices(range(len(text) + 1), k=k)) for k in range(2, 9) for _ in "abcd"]
    return [
        [text],
        list(text),
        *([text[a:b] for a, b in zip([0, *c], [*c, len(text)], strict=True)] for c in cuts),
    ]


def mutated(noise: random.Random, text: str, tags: Sequence[str]) -> str:
    characters = list(text)
    for _ in range(noise.randrange(4)):
        at = noise.randrange(len(characters) + 1)
        characters[at : at + noise.randrange(3)] = noise.choice(
            ["", "{", "}", '"', ",", ":", "[", "]", "\\", "1", "nul", " to=", *tags]
        )
    return "".join(characters)
