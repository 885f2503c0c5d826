"""Random calls in every family's syntax are read as they were meant."""

import json
import random
from typing import Any

import pytest

from answer_pieces import FUNCTIONS, read, splits
from call_writers import WRITERS, Call
from specdec_serve.http.tools.call_formats import CALL_FORMATS
from specdec_serve.http.tools.events import CallBegins

SYLLABLES = ["a", "é", "😀", "\n", " ", '"', "'", "\\", "\\n", "{", "}", "[", "]", ",", ":", "<"]
SYLLABLES += [
    "</",
    "</para",
    "</｜DS",
    "<arg",
    "<|",
    "null",
    "1",
    "(",
    ")",
    "=",
    "`",
    "\t",
    "<tool_call",
]


def random_value(noise: random.Random, kind: str, depth: int = 0) -> Any:
    match kind:
        case "s":
            return "".join(noise.choices(SYLLABLES, k=noise.randrange(8)))
        case "i":
            return noise.randrange(-1000, 1000)
        case "x":
            return noise.choice([0.5, -1.25, 1e20, 3.0, 1e-7])
        case "b":
            return noise.random() < 0.5
        case "o" | "a":
            inner = [] if depth > 2 else noise.choices("sixboan", k=noise.randrange(4))
            values = [random_value(noise, each, depth + 1) for each in inner]
            return values if kind == "a" else {f"k{i}": value for i, value in enumerate(values)}
    return None


@pytest.mark.parametrize("name", WRITERS)
def test_random_calls_are_read_as_they_were_meant(name: str) -> None:
    noise = random.Random(name)
    call_format = CALL_FORMATS[name]
    for _ in range(60):
        calls: list[Call] = [
            (
                noise.choice(["f", "get_weather"]),
                {kind: random_value(noise, kind) for kind in noise.sample("sixboa", k=3)},
            )
            for _ in range(noise.randrange(1, 4))
        ]
        text = "Hm. " + WRITERS[name](calls) + "\nBye."
        for pieces in (splits(text)[0], splits(text)[1], *splits(text)[-6:]):
            answer = read(lambda: call_format.parser(FUNCTIONS), pieces)
            expected = [(call, json.dumps(arguments)) for call, arguments in calls]
            read_calls = [
                (event[2], json.dumps(json.loads(answer[i + 1][2])))
                for i, event in enumerate(answer)
                if event[0] == "call"
            ]
            assert read_calls == expected, text
            assert (answer[0], answer[-1]) == (("content", "Hm. "), ("content", "Bye.")), text


@pytest.mark.parametrize("name", WRITERS)
def test_time_is_linear_in_the_text(name: str) -> None:
    """No part is read again and again: the text of calls is looked at a few times at most."""
    call_format = CALL_FORMATS[name]
    calls = [("f", {"s": "ab<\n" * 500, "a": [1] * 300, "o": {"k": "\\" * 99}})] * 3

    def looks(count: int) -> int:
        text = "<" * 999 + WRITERS[name](calls * count)
        parser = call_format.parser(FUNCTIONS)
        sizes = 0
        for i in range(0, len(text), 7):
            parser.feed(text[i : i + 7])
            sizes += len(parser._text)  # type: ignore[attr-defined]
        return sizes

    assert looks(4) < 5 * looks(1)


def test_ids_are_those_that_templates_take() -> None:
    def ids(name: str, text: str) -> list[str]:
        events = CALL_FORMATS[name].parser().feed(text)
        return [event.id for event in events if isinstance(event, CallBegins)]

    kimi = WRITERS["kimi_k2"]([("f", {}), ("f", {})])
    first, second = ids("kimi_k2", kimi)  # the model has written one id twice
    assert first == "functions.f:0" and second != first
    first, second = ids("mistral", "[TOOL_CALLS]f[CALL_ID]aB3[ARGS]{}[TOOL_CALLS]f{}")
    assert first == "aB3" and len(second) == 9 and second.isalnum()
