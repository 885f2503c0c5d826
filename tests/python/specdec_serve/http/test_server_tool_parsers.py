"""Calls of tools in the text of answers: the parsers, piece by piece.

What is expected of hermes and llama3_json is what vLLM 0.33.0's tests of them say; docs/vllm.md has
the differences. What is expected of harmony is its description by OpenAI.
"""

import json
import random

import pytest

from answer_pieces import Answer, Maker, called, mutated, read, splits
from specdec_serve.http.tools.call_formats import CALL_FORMATS
from specdec_serve.http.tools.events import (
    AnswerParser,
    Arguments,
    CallBegins,
    Content,
)
from specdec_serve.http.tools.forced import NamedParser, required_parser
from specdec_serve.http.tools.harmony import TAGS as HARMONY_TAGS
from specdec_serve.http.tools.harmony import HarmonyParser
from specdec_serve.http.tools.object_scanner import ObjectScanner, Step

hermes = CALL_FORMATS["hermes"].parser
llama3_json = CALL_FORMATS["llama3_json"].parser


def harmony() -> AnswerParser:
    return HarmonyParser(reads_calls=True)


def harmony_without_calls() -> AnswerParser:
    return HarmonyParser(reads_calls=False)


def named() -> AnswerParser:
    return NamedParser("f")


WEATHER = '{"city": "New York", "unit": "C"}'
HERMES: dict[str, Answer] = {
    "This is not a tool call.": [("content", "This is not a tool call.")],
    '<tool_call>\n{"name": "f", "arguments": {"x": true}}\n</tool_call>': called(
        ("f", '{"x": true}')
    ),
    '<tool_call>{"name": "a", "arguments": {"q": "cats"}}</tool_call>\n'
    '<tool_call>{"arguments": {"q": "dogs"}, "name": "b"}</tool_call>\n': called(
        ("a", '{"q": "cats"}'), ("b", '{"q": "dogs"}')
    ),
    f'Hi!<tool_call>{{"name": "w", "arguments": {WEATHER}}}</tool_call> \n Bye.': [
        ("content", "Hi!"),
        *called(("w", WEATHER)),
        ("content", "Bye."),
    ],
    # The end of the text closes a call, but not its object.
    '<tool_call>\n{"name": "f", "arguments": {}}': called(("f", "{}")),
    '<tool_call>{"name": "f", "arguments": {}}\n</tool_': called(("f", "{}")),
    '<tool_call>{"name": "f", "arguments": {"x": 1}': [
        *called(("f", '{"x": 1}')),
        ("fails", 0, '<tool_call>{"name": "f", "arguments": {"x": 1}'),
    ],
    # Tags and brackets within texts of arguments belong to them.
    r'<tool_call>{"name": "f", "arguments": {"a": "}</tool_call>\"{[", "b": [{}]}}</tool_call>': (
        called(("f", r'{"a": "}</tool_call>\"{[", "b": [{}]}'))
    ),
    # A name may be escaped, arguments stay as they are written, other members are passed over.
    r'<tool_call>{"id": {"name": "x"}, "name": "\u0066\"", "arguments": [ 1 ]}</tool_call>': called(
        ('f"', "[ 1 ]")
    ),
    '<tool_call>{"name": "f", "arguments": -1.5, "x": null}</tool_call>': called(("f", "-1.5")),
    # SmolLM2's lists.
    'A<tool_call> [{"name": "a", "arguments": {}} , {"name": "b", "arguments": 1}]</tool_call>.': [
        ("content", "A"),
        *called(("a", "{}"), ("b", "1")),
        ("content", "."),
    ],
    '<tool_call>[{"name": "a", "arguments": {}}': called(("a", "{}")),
    '<tool_call>[{"name": "a", "arguments": {}}, 7]</tool_call>': [
        *called(("a", "{}")),
        ("content", " 7]</tool_call>"),
    ],
    '<tool_call>[{"name": "a", "arguments": {}}}</tool_call>': [
        *called(("a", "{}")),
        ("fails", 0, '<tool_call>[{"name": "a", "arguments": {}}'),
        ("content", "}</tool_call>"),
    ],
    "<tool_call>[[": [("content", "<tool_call>[[")],
    "<tool_call> ": [("content", "<tool_call> ")],
    # Text that is not a call is content.
    "<tool_call>no JSON</tool_call>": [("content", "<tool_call>no JSON</tool_call>")],
    '<tool_call>{"name": "f"}</tool_call>': [("content", '<tool_call>{"name": "f"}</tool_call>')],
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>': [
        ("content", '<tool_call>{"name": 7, "arguments": {}}</tool_call>')
    ],
    '<tool_call>{"name": "", "arguments": {}}</tool_call>': [
        ("content", '<tool_call>{"name": "", "arguments": {}}</tool_call>')
    ],
    "<tool_call>[]</tool_call> <tool_call": [("content", "<tool_call>[]</tool_call> <tool_call")],
    "a < b <tool_ <tool_call x": [("content", "a < b <tool_ <tool_call x")],
    '<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>': [
        ("content", "<tool_call>"),
        *called(("f", "{}")),
    ],
    # What turns out malformed after its beginning.
    '<tool_call>{"name": "f", "arguments": {"x": nil}}</tool_call>': [
        *called(("f", '{"x": n')),
        ("fails", 0, '<tool_call>{"name": "f", "arguments": {"x": n'),
        ("content", "il}}</tool_call>"),
    ],
    '<tool_call>{"name": "f", "arguments": {}}}</tool_call>': [
        *called(("f", "{}")),
        ("fails", 0, '<tool_call>{"name": "f", "arguments": {}}'),
        ("content", "}</tool_call>"),
    ],
    '<tool_call>{"name": "f", "arguments": {}, "arguments": {}}</tool_call>.': [
        *called(("f", "{}")),
        ("fails", 0, '<tool_call>{"name": "f", "arguments": {}, "arguments": {'),
        ("content", "}}</tool_call>."),
    ],
    '<tool_call>{"name": "a", "arguments": {}}<tool_call>{"name": "b", "arguments": {}}': [
        *called(("a", "{}")),
        ("fails", 0, '<tool_call>{"name": "a", "arguments": {}}'),
        ("call", 1, "b"),
        ("arguments", 1, "{}"),
    ],
}
LLAMA: dict[str, Answer] = {
    "This is just some text": [("content", "This is just some text")],
    '{"name": "s", "parameters": {"query": "q", "limit": 10}}': called(
        ("s", '{"query": "q", "limit": 10}')
    ),
    '{"name": "s", "arguments": {"q": 1}}': called(("s", '{"q": 1}')),
    '<|python_tag|>{"name": "s", "parameters": {}}': called(("s", "{}")),
    '{"name": "a", "parameters": {}} ; {"name": "b", "parameters": {"x": "};{"}}; '
    '<|python_tag|> {"type": "function", "name": "c", "parameters": {}}': called(
        ("a", "{}"), ("b", '{"x": "};{"}'), ("c", "{}")
    ),
    'Here: {"name": "f", "parameters": {}} Would you like more?': [
        ("content", "Here: "),
        *called(("f", "{}")),
        ("content", "Would you like more?"),
    ],
    '{"name": "c", "parameters": {"a": {"b": {"c": {"d": "deep"}}}}}': called(
        ("c", '{"a": {"b": {"c": {"d": "deep"}}}}')
    ),
    r'{"name": "p", "parameters": {"text": "He said \"Hello {world}\""}}': called(
        ("p", r'{"text": "He said \"Hello {world}\""}')
    ),
    # Objects that are no calls, and what is within them.
    '{"parameters": {}}': [("content", '{"parameters": {}}')],
    '{"name": "f"} a': [("content", '{"name": "f"} a')],
    '{"x": {"name": "f", "parameters": {}}}': [
        ("content", '{"x": {"name": "f", "parameters": {}}}')
    ],
    '{"name": 5, "x": {"name": "f", "parameters": {}}}': [
        ("content", '{"name": 5, "x": {"name": "f", "parameters": {}}}')
    ],
    "if (x) { y(); } <|python_": [("content", "if (x) { y(); } <|python_")],
    "<|python_tag|>search(1)": [("content", "<|python_tag|>search(1)")],
    "{hello world[A(A=\t)A(A=,\t": [("content", "{hello world[A(A=\t)A(A=,\t")],
    '{"name": "bad", "parameters": {oops}': [
        *called(("bad", "{")),
        ("fails", 0, '{"name": "bad", "parameters": {'),
        ("content", "oops}"),
    ],
}
REQUIRED: dict[str, Answer] = {
    '[{"name": "a", "parameters": {"x": "}}, {"}}, {"name": "b", "parameters": {}}]': called(
        ("a", '{"x": "}}, {"}'), ("b", "{}")
    ),
    ' [ {"name": "a", "parameters": {}} ]\nDONE': [*called(("a", "{}")), ("content", "DONE")],
    '[{"name": "a", "parameters": {}}, ': called(("a", "{}")),
    '[{"name": "a", "parameters": {}}, {"name": "b", "parameters": {"x': [
        *called(("a", "{}"), ("b", '{"x')),
        ("fails", 1, ' {"name": "b", "parameters": {"x'),
    ],
    '[{"na': [("content", '[{"na')],
    "no list": [("content", "no list")],
    "[]": [("content", "[]")],
    "[7]": [("content", "[7]")],
    '[{"name": 7, "parameters": {}}]': [("content", '[{"name": 7, "parameters": {}}]')],
    '[{"x": 1}, {"name": "a", "parameters": {}}]': [
        ("content", '[{"x": 1}, {"name": "a", "parameters": {}}]')
    ],
}
NAMED: dict[str, Answer] = {
    '\n {"x": 1} ': called(("f", '{"x": 1} ')),
    '{"x"': [*called(("f", '{"x"')), ("fails", 0, '{"x"')],
    " \n": [],
    "": [],
}

NEXT = "<|start|>assistant"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
ENDS: Answer = [("ends",)]
HARMONY: dict[str, Answer] = {
    f"<|channel|>analysis<|message|>Hm.\n<|end|>{NEXT}<|channel|>final<|message|>Hi <b>": [
        ("reasoning", "Hm.\n"),
        *ENDS,
        ("content", "Hi <b>"),
    ],
    "<|channel|>final <|constrain|>json<|message|>{}<|return|>": [("content", "{}"), *ENDS],
    # Marks of the end are left out of texts, unless a request wants them.
    f"<|channel|>analysis<|message|>Hm.<|end|>{NEXT}{CALL}{WEATHER}<|call|>": [
        ("reasoning", "Hm."),
        *ENDS,
        *called(("f", WEATHER)),
    ],
    # A preamble is for users.
    f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}{{}}": [
        ("content", "I look."),
        *ENDS,
        *called(("f", "{}")),
    ],
    # The recipient's other place, other channels, and no content type.
    " to=functions.f<|channel|>commentary json<|message|>{}": called(("f", "{}")),
    " to=functions.a.b<|channel|>analysis<|message|>[]": called(("a.b", "[]")),
    "<|channel|>commentary to=functions.f<|constrain|>json<|message|>1<|call|>": called(("f", "1")),
    f"{CALL}{{}}<|call|>{NEXT}{CALL}[]<|call|>": called(("f", "{}"), ("f", "[]")),
    f"{CALL} <|call|>": called(("f", " {}")),
    # Tools that are nowhere: what the model writes to them is for itself.
    f"<|channel|>analysis to=python code<|message|>1+1<|call|>{NEXT} to=browser.search"
    "<|channel|>commentary<|message|>{}": [("reasoning", "1+1"), *ENDS, ("reasoning", "{}")],
    # Cut and malformed calls.
    f'{CALL}{{"x": 1': [*called(("f", '{"x": 1')), ("fails", 0, '{"x": 1')],
    f"{CALL}oops<|call|>": [*called(("f", "oops")), ("fails", 0, "oops")],
    "<|channel|>commentary to=functions.": [],
    "<|channel|>commentary to=functions.f <|constrain|>js": [],
    "<|channel|>commentary to=functions.f json": [],
    "<|channel|>anal": [],
    "<|channel|>": [],
    "<|channel|>analysis<|message|>Hm. <|en": [("reasoning", "Hm. <|en")],
    # No channels at all, as where an answer goes on from a part of its text.
    "Plain text.": [("content", "Plain text.")],
    "to be": [("content", "to be")],
    "to=": [("content", "to=")],
    "assistant": [("content", "assistant")],
    "assistants": [("content", "assistants")],
    " \n": [("content", " \n")],
    "": [],
    f"more.<|end|>{NEXT}<|channel|>analysis<|message|>a": [
        ("content", "more."),
        *ENDS,
        ("reasoning", "a"),
    ],
    # Marks that are missing, or too many.
    "<|message|>Hi": [("content", "Hi")],
    "<|channel|>final Hello you<|end|>": [("content", "Hello you"), *ENDS],
    "<|channel|>analysis Hm, hm": [("reasoning", "Hm, hm")],
    "assistant<|channel|>final<|message|>Hi": [("content", "Hi")],
    "<|channel|>analysis<|message|>a<|end|> \n<|channel|>final<|message|>b": [
        ("reasoning", "a"),
        *ENDS,
        ("content", "b"),
    ],
    "<|channel|>analysis<|message|>a<|channel|>final<|message|>b": [
        ("reasoning", "a"),
        *ENDS,
        ("content", "b"),
    ],
    f"<|channel|>analysis<|message|>a{NEXT}<|channel|>final<|message|>b": [
        ("reasoning", "a"),
        *ENDS,
        ("content", "b"),
    ],
    f"{NEXT}<|channel|>final<|message|>a<|message|>b<|constrain|>": [("content", "ab")],
    "<|channel|>final<|message|>a<|return|>b": [("content", "a"), *ENDS, ("content", "b")],
    "<|channel|>final<|message|>a<|end|> \n": [("content", "a"), *ENDS],
    "<|channel|>thoughts<|message|>a": [("content", "a")],
    "<|end|><|end|>": [],
}
HARMONY_WITHOUT_CALLS: dict[str, Answer] = {
    f"<|channel|>analysis<|message|>Hm.<|end|>{NEXT}{CALL}{WEATHER}<|call|>": [
        ("reasoning", "Hm."),
        *ENDS,
        ("content", WEATHER),
        *ENDS,
    ],
}

CASES = [
    pytest.param(make, text, answer, id=f"{name}{i}")
    for name, make, cases in (
        ("hermes", hermes, HERMES),
        ("llama", llama3_json, LLAMA),
        ("required", required_parser, REQUIRED),
        ("named", named, NAMED),
        ("harmony", harmony, HARMONY),
        ("harmony_without_calls", harmony_without_calls, HARMONY_WITHOUT_CALLS),
    )
    for i, (text, answer) in enumerate(cases.items())
]


@pytest.mark.parametrize(("make", "text", "answer"), CASES)
def test_an_answer_is_the_same_in_any_pieces(make: Maker, text: str, answer: Answer) -> None:
    for pieces in splits(text):
        assert read(make, pieces) == answer, pieces


@pytest.mark.parametrize("make", [hermes, llama3_json, required_parser, named, harmony])
def test_nothing_that_is_written_makes_a_parser_fail(make: Maker) -> None:
    """Mutations of all texts: no exception, and any split is as good as the whole."""
    noise = random.Random(3)
    texts = [*(HARMONY if make is harmony else (*HERMES, *LLAMA, *REQUIRED))]
    tags = HARMONY_TAGS if make is harmony else sorted(CALL_FORMATS["hermes"].tags)
    for _ in range(600):
        text = mutated(noise, noise.choice(texts), tags)
        whole = read(make, [text])
        for pieces in splits(text)[-3:]:
            assert read(make, pieces) == whole, pieces
        if make is not named:
            began = [event for event in whole if event[0] == "call"]
            failed = [event for event in whole if event[0] == "fails"]
            for event in whole:
                if event[0] == "arguments" and event[1] not in [fail[1] for fail in failed]:
                    json.loads(event[2])
            assert [call[1] for call in began] == list(range(len(began)))


@pytest.mark.parametrize(
    ("make", "text", "shown"),
    [
        (hermes, "Hello <", "Hello "),
        (hermes, "Hello <tool_cal", "Hello "),
        (hermes, "Hello <b", "Hello <b"),
        (hermes, "Hello <tool_call>{", "Hello "),
        (llama3_json, "Hello <|py", "Hello "),
        (llama3_json, 'Hello {"na', "Hello "),
        (llama3_json, 'Hello {"name": 1', 'Hello {"name": 1'),
        (llama3_json, "Hello {x", "Hello {x"),
        (harmony, "Hello <|chan", "Hello "),
        (harmony, "<|message|>Hello <|end|", "Hello "),
        (harmony, "<|message|>Hello <|x", "Hello <|x"),
        (harmony, "to be", "to be"),
    ],
)
def test_only_what_may_be_a_call_waits(make: Maker, text: str, shown: str) -> None:
    assert make().feed(text) == [Content(shown)]


def test_arguments_come_as_they_are_written() -> None:
    parser = hermes()
    assert parser.feed('<tool_call>{"name": "f", "arg') == []
    assert parser.feed('uments": ') == []
    begin, first = parser.feed('{"x": "some')
    assert isinstance(begin, CallBegins) and (begin.index, begin.name) == (0, "f")
    assert first == Arguments(0, '{"x": "some')
    assert parser.feed(" text") == [Arguments(0, " text")]
    assert parser.feed('"}}</tool_call>') == [Arguments(0, '"}')]


DOCUMENTS = [
    '{"a": [1, -2.5e+3, true, false, null, "x\\u00e9\\n"], "b": {"c": {}}, "d": []}',
    "{ }",
    '{"name": "f", "parameters": {"x": [[[{"y": "\\"}"}]]]}}',
    '{"a":0,"b":-0,"c":1E5,"d":0.1}',
]


def test_the_scanner_agrees_with_pythons_decoder() -> None:
    """About where an object ends, and whether it is one."""
    noise = random.Random(5)
    decoder = json.JSONDecoder()
    numbers = {Step.END: 0, Step.BAD: 0, Step.INSIDE: 0}
    for _ in range(4000):
        text = noise.choice(DOCUMENTS)
        for _ in range(noise.randrange(3)):
            at = noise.randrange(len(text) + 1)
            text = text[:at] + noise.choice(' {}[]",:\\10.e-tn\n') + text[at + noise.randrange(2) :]
        if not text.lstrip(" \n").startswith("{"):
            continue
        scanner, step, end = ObjectScanner(), Step.INSIDE, 0
        for char in text:
            step = scanner.take(char)
            end += 1
            if step is not Step.INSIDE:
                break
        numbers[step] += 1
        begin = len(text) - len(text.lstrip(" \n"))
        try:
            expected = decoder.raw_decode(text, begin)[1]
        except ValueError:
            assert step is not Step.END, text
        else:
            assert (step, end) == (Step.END, expected), text
    assert min(numbers.values()) > 30


def test_every_beginning_of_an_object_is_good() -> None:
    for text in DOCUMENTS:
        scanner = ObjectScanner()
        steps = [scanner.take(char) for char in text]
        assert steps == [Step.INSIDE] * (len(text) - 1) + [Step.END]
