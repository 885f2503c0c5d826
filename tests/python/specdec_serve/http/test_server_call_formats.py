"""Every family's syntax of calls: what is read of it, and how a chat template tells it."""

import json
import random
from typing import Any

import pytest

from answer_pieces import FUNCTIONS, Answer, called, mutated, read, splits
from specdec_serve.http.tools.call_formats import CALL_FORMATS, call_format_of
from specdec_serve.http.tools.events import Arguments, CallBegins, Content
from specdec_serve.http.tools.function import Function
from specdec_serve.http.tools.value_types import ParameterTypes, json_of

F = ("f", "{}")

# -- what is read of each syntax, beside the random calls below

CASES: dict[str, dict[str, Answer]] = {
    "qwen3_coder": {
        "A<tool_call>\n<function=f>\n<parameter=s>\n1\n\n</parameter>\n<parameter=i>\n5\n"
        "</parameter>\n</function>\n</tool_call>\nB": [
            ("content", "A"),
            *called(("f", '{"s": "1\\n", "i": 5}')),
            ("content", "B"),
        ],
        # Marks that models leave out.
        "<function=f>\n</function>\n</tool_call>\n<function=f></function>": called(F, F),
        "<tool_call><function=f><parameter=s>a\n<parameter=i>1</function></tool_call>": called(
            ("f", '{"s": "a", "i": 1}')
        ),
        "<tool_call><function=f></function><tool_call><function=f></function>": called(F, F),
        "<tool_call><function=f><parameter=s>a</parameter>\n</func": called(("f", '{"s": "a"}')),
        "<tool_call><function=f></function></tool_": called(F),
        "<tool_call><function=f></function>x": [*called(F), ("content", "x")],
        # What is cut within a value, or is no call.
        "<tool_call><function=f><parameter=s>a\n": [
            *called(("f", '{"s": "a\\n')),
            ("fails", 0, "<tool_call><function=f><parameter=s>a\n"),
        ],
        "<tool_call><function=f>x": [
            ("call", 0, "f"),
            ("fails", 0, "<tool_call><function=f>"),
            ("content", "x"),
        ],
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>': [
            ("content", '<tool_call>{"name": "f", "arguments": {}}</tool_call>')
        ],
        "<tool_call><tool_call><function=f></function>": [("content", "<tool_call>"), *called(F)],
        "a <function=a b> <function": [("content", "a <function=a b> <function")],
        "<function=" + "x" * 300: [("content", "<function=" + "x" * 300)],
        # Tags within values, and what is no end.
        "<function=f><parameter=s></tool_call></parameters><b></parameter></function>": called(
            ("f", '{"s": "</tool_call></parameters><b>"}')
        ),
    },
    "seed_oss": {
        "<seed:tool_call>\n<function=f>\n<parameter=i>1</parameter>\n</function>\n"
        "</seed:tool_call>": called(("f", '{"i": 1}')),
    },
    "mimo": {
        "<tool_call><function=f><parameter=s>\na\n</parameter></function></tool_call>": called(
            ("f", '{"s": "\\na\\n"}')
        ),
    },
    "minimax_m2": {
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">\na</parameter>\n</invoke>\n'
        '<invoke name="f"></invoke>\n</minimax:tool_call>.': [
            *called(("f", '{"s": "\\na"}'), F),
            ("content", "."),
        ],
    },
    "deepseek_v32": {
        "A<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="i" string="true">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="any" string="false">[1]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="f"></｜DSML｜invoke>\n</｜DSML｜function_calls>B': [
            ("content", "A"),
            *called(("f", '{"i": "1", "any": [1]}'), F),
            ("content", "B"),
        ],
    },
    "deepseek_v4": {
        "<｜DSML｜tool_calls>"
        '<｜DSML｜invoke name="f"></｜DSML｜invoke></｜DSML｜tool_calls>': called(F),
    },
    "step3": {
        "<｜tool_calls_begin｜>\n"
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">\n'
        '<steptml:parameter name="s"> 1</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n'
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f"></steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>.": [
            *called(("f", '{"s": " 1"}'), F),
            ("content", "."),
        ],
    },
    "apertus": {
        'A<|tools_prefix|>[{"f": {"s": "}"}}, {"f": {}}]<|tools_suffix|>B': [
            ("content", "A"),
            *called(("f", '{"s": "}"}'), F),
            ("content", "B"),
        ],
        '<|tools_prefix|>{"f": {}}': [("content", '<|tools_prefix|>{"f": {}}')],
        '<|tools_prefix|>[{"f": 1}]': [
            ("call", 0, "f"),
            ("fails", 0, '<|tools_prefix|>[{"f": '),
            ("content", "1}]"),
        ],
    },
    "gigachat3": {
        'A<|function_call|>{"name": "f", "arguments": {}}': [("content", "A"), *called(F)],
        'function call<|role_sep|>\n{"name": "f", "arguments": {}}': called(F),
    },
    "glm45": {
        "<tool_call>f\n<arg_key> s </arg_key>\n<arg_value> a</arg_value>\n<arg_key>i</arg_key>"
        "<arg_value>3</arg_value>\n</tool_call><tool_call>f</tool_call>": called(
            ("f", '{"s": " a", "i": 3}'), F
        ),
        "<tool_call>f<b>": [("content", "<tool_call>f<b>")],
        "<tool_call>": [("content", "<tool_call>")],
        "<tool_call>a b</tool_call>": [("content", "<tool_call>a b</tool_call>")],
        "<tool_call>f<tool_call>f</tool_call>": [("content", "<tool_call>f"), *called(F)],
    },
    "gemma4": {
        '<|tool_call>call:f{s:<|"|>a"\\,}<|"|>,i:1,b:true,any:{k:[1,<|"|>x<|"|>,],z:},a:[]}'
        "<tool_call|>\nB": [
            *called(
                (
                    "f",
                    '{"s": "a\\"\\\\,}", "i": 1, "b": true, "any": {"k": [1, "x"], "z": ""}, '
                    '"a": []}',
                )
            ),
            ("content", "B"),
        ],
        "<|tool_call>call:f{s:12,enum:1,any:12:30 h}<tool_call|>": called(
            ("f", '{"s": "12", "enum": "1", "any": "12:30 h"}')
        ),
        "<|tool_call>call:f{}call:f{}<|tool_call>:f{}": called(F, F, F),
        '<|tool_call>call:f{<|"|>a b<|"|>:1}': called(("f", '{"a b": 1}')),
        '<|tool_call>call:f{s:<|"|>a': [
            *called(("f", '{"s": "a')),
            ("fails", 0, '<|tool_call>call:f{s:<|"|>a'),
        ],
        "<|tool_call>call:f{s}": [
            *called(("f", '{"s"')),
            ("fails", 0, "<|tool_call>call:f{s"),
            ("content", "}"),
        ],
        "<|tool_call>call f{}": [("content", "<|tool_call>call f{}")],
    },
    "functiongemma": {
        "<start_function_call>call:f{s:<escape>a<escape>,i:5}<end_function_call>": called(
            ("f", '{"s": "a", "i": 5}')
        ),
    },
    "deepseek_v3": {
        "A<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"x": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json'
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>": [
            ("content", "A"),
            *called(("f", '{"x": 1}'), F),
        ],
    },
    "deepseek_v31": {
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>": called(F),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁ca": called(F),
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{} x": [
            *called(F),
            ("fails", 0, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{} "),
            ("content", "x"),
        ],
    },
    "kimi_k2": {
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        "{}<|tool_call_end|><|tool_call_begin|>f:1<|tool_call_argument_begin|><|tool_call_end|>"
        "<|tool_calls_section_end|>": called(F, F),
        "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>": [
            (
                "content",
                "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>",
            )
        ],
    },
    "mistral": {
        '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "f", '
        '"arguments": "{\\"y\\": 2}"}]': called(("f", '{"x": 1}'), ("f", '{"y": 2}')),
        '[TOOL_CALLS]{"name": "f", "arguments": "a"}': called(("f", '"a"')),
        'A[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]f[ARGS] {}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}': [
            ("content", "A"),
            *called(("f", '{"x": 1}'), F, F),
        ],
        "[TOOL_CALLS]two words{}": [("content", "[TOOL_CALLS]two words{}")],
    },
    "olmo3": {
        "<function_calls>\nf(i=1)\nf(b=true, any=null)\n</function_calls>": called(
            ("f", '{"i": 1}'), ("f", '{"b": true, "any": null}')
        ),
    },
    "lfm2": {
        "A<|tool_call_start|>[f(), f()]<|tool_call_end|>B": [
            ("content", "A"),
            *called(F, F),
            ("content", "B"),
        ],
        "<|tool_call_start|>f()": [("content", "<|tool_call_start|>f()")],
    },
    "pythonic": {
        "[f(a=1, b='x', c=[1, (2, 3)], d={'k': None, 1: True,},), f()]": called(
            ("f", '{"a": 1, "b": "x", "c": [1, [2, 3]], "d": {"k": null, "1": true}}'), F
        ),
        " <|python_start|>[f()]<|python_end|>B": [("content", " "), *called(F), ("content", "B")],
        r"""[f(a="it's \"\n\x41\u00e9\N{BULLET}\101\0", b='\q\"\'', c='''l1
l2''', d="", e='''''')]""": called(
            (
                "f",
                r'{"a": "it'
                "'"
                r's \"\nA\u00e9\u2022A\u0000", "b": "\\q\"'
                "'"
                r'", "c": "l1\nl2", "d": "", "e": ""}',
            )
        ),
        "[f(a=07, b=-1.50, c=+2, d=1e3, e=1_000, f=.5, g=00)]": called(
            (
                "f",
                '{"a": 7, "b": -1.5, "c": 2, "d": 1000.0, "e": 1000, "f": 0.5, "g": 0}',
            )
        ),
        # What would have to be run, and other texts in brackets.
        "[1] f": [("content", "[1] f")],
        "[f(x)](http://x)": [("content", "[f(x)](http://x)")],
        "[f(1)]": [("content", "[f(1)]")],
        "[]": [("content", "[]")],
        "A [f()]": [("content", "A [f()]")],
        "[f(a=g())]": [
            *called(("f", '{"a": ')),
            ("fails", 0, "[f(a="),
            ("content", "g())]"),
        ],
        "[f(a=1, a=2)]": [
            *called(("f", '{"a": 1')),
            ("fails", 0, "[f(a=1, "),
            ("content", "a=2)]"),
        ],
        "[f(a=1e999)]": [
            *called(("f", '{"a": ')),
            ("fails", 0, "[f(a="),
            ("content", "1e999)]"),
        ],
        f"[f(a={'[' * 65}": [
            *called(("f", '{"a": ' + "[" * 64)),
            ("fails", 0, f"[f(a={'[' * 64}"),
            ("content", "["),
        ],
        "[f(), ": called(F),
    },
    "granite": {
        '<|tool_call|>[{"name": "f", "arguments": {}}]\nB': [*called(F), ("content", "B")],
        '<tool_call> [{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]': called(
            F, F
        ),
        '<tool_call>{"name": "f", "arguments": {}}': [
            ("content", '<tool_call>{"name": "f", "arguments": {}}')
        ],
    },
    "granite-20b-fc": {
        '<function_call> {"name": "f", "arguments": {}} <function_call> {"name": "f", "arguments": '
        "{}}": called(F, F),
    },
    "phi4_mini_json": {
        'functools[{"name": "f", "arguments": {}}]': called(F),
        '<|tool_call|>[{"name": "f", "parameters": {}}]<|/tool_call|>': called(F),
        "functools.partial [1]": [("content", "functools.partial [1]")],
    },
    "jamba": {
        '<tool_calls>[\n  {"name": "f", "arguments": {}}\n]</tool_calls>': called(F),
        '<tool_calls>\n{"name": "f", "arguments": {}}\n{"name": "f", "arguments": {}}\n'
        "</tool_calls>": called(F, F),
    },
    "longcat": {
        '<longcat_tool_call>{"name": "f", "arguments": {}}</longcat_tool_call>': called(F),
    },
    "nemotron_json": {
        '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>': called(F),
    },
    "internlm": {
        'A<|action_start|><|plugin|>\n{"name": "f", "parameters": {}}<|action_end|>\n': [
            ("content", "A"),
            *called(F),
        ],
    },
    "xlam": {
        '[{"name": "f", "arguments": {}}]': called(F),
        '[TOOL_CALLS][{"name": "f", "arguments": {}}]': called(F),
        'A\n```json\n[{"name": "f", "arguments": {}}]\n```': [("content", "A\n"), *called(F)],
        '```\n{"name": "f", "arguments": {}}\n```': called(F),
        "```js\nf()\n```": [("content", "```js\nf()\n```")],
    },
}


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        pytest.param(name, text, answer, id=f"{name}{i}")
        for name, cases in CASES.items()
        for i, (text, answer) in enumerate(cases.items())
    ],
)
def test_an_answer_is_the_same_in_any_pieces(name: str, text: str, answer: Answer) -> None:
    call_format = CALL_FORMATS[name]
    for pieces in splits(text):
        assert read(lambda: call_format.parser(FUNCTIONS), pieces) == answer, pieces


@pytest.mark.parametrize("name", CASES)
def test_nothing_that_is_written_makes_a_parser_fail(name: str) -> None:
    """Mutations of all texts: no exception, and any split is as good as the whole."""
    noise = random.Random(name)
    call_format = CALL_FORMATS[name]
    marks = sorted({*call_format.tags, *filter(None, call_format.calls.marks)})
    for _ in range(300):
        text = mutated(noise, noise.choice([*CASES[name]]), [*marks, "'", "(", ")", "=", "f"])
        whole = read(lambda: call_format.parser(FUNCTIONS), [text])
        for pieces in splits(text)[-3:]:
            assert read(lambda: call_format.parser(FUNCTIONS), pieces) == whole, pieces
        failed = [event[1] for event in whole if event[0] == "fails"]
        for event in whole:
            if event[0] == "arguments" and event[1] not in failed:
                json.loads(event[2])


# -- how calls come


@pytest.mark.parametrize(
    ("name", "begin", "piece", "written"),
    [
        ("qwen3_coder", "<tool_call><function=f><parameter=s>\n", 'a\n"b', 'a\\n\\"b'),
        ("glm45", "<tool_call>f<arg_key>s</arg_key><arg_value>", 'a\n"b', 'a\\n\\"b'),
        ("gemma4", '<|tool_call>call:f{s:<|"|>', 'a\n"b', 'a\\n\\"b'),
        ("pythonic", "[f(s='''", 'a\\n"b', 'a\\n\\"b'),
        ("mistral", '[TOOL_CALLS]f{"s": "', "a\\nb", "a\\nb"),
    ],
)
def test_long_strings_come_as_they_are_written(
    name: str, begin: str, piece: str, written: str
) -> None:
    parser = CALL_FORMATS[name].parser(FUNCTIONS)
    first, arguments = parser.feed(begin)
    assert isinstance(first, CallBegins) and first.name == "f"
    assert arguments == Arguments(0, '{"s": "')
    for _ in range(3):
        assert parser.feed(piece) == [Arguments(0, written)]


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("qwen3_coder", "a <func", "a "),
        ("qwen3_coder", "a <func b", "a <func b"),
        ("pythonic", "[f(", ""),
        ("pythonic", "[f(x", ""),
        ("pythonic", "[f(x)", "[f(x)"),
        ("pythonic", "a [f(", "a [f("),
        ("xlam", "a ``", "a "),
        ("mistral", "a [TOOL", "a "),
        ("gemma4", "a <|tool_call>cal", "a "),
    ],
)
def test_only_what_may_be_a_call_waits(name: str, text: str, shown: str) -> None:
    parser = CALL_FORMATS[name].parser()
    assert parser.feed(text) == ([Content(shown)] if shown else [])
    assert parser.holds == (shown != text)


# -- types


@pytest.mark.parametrize(
    ("parameter", "text", "expected"),
    [
        ("s", "5", "5"),
        ("s", "null", "null"),
        ("i", " 5 ", 5),
        ("i", "five", "five"),
        ("i", '"5"', '"5"'),
        ("i", "5.0", 5.0),
        ("x", "1", 1),
        ("x", "NaN", "NaN"),
        ("b", "true", True),
        ("b", "True", True),
        ("b", "yes", "yes"),
        ("o", "{'a': None}", {"a": None}),
        ("o", '{"a": [1]}', {"a": [1]}),
        ("o", "[1]", "[1]"),
        ("a", "[" * 9999, "[" * 9999),
        ("maybe", "null", None),
        ("maybe", "5", "5"),
        ("any", "5", 5),
        ("any", "a b", "a b"),
        ("any", "True", "True"),
        ("ref", "5", "5"),
        ("enum", "1", "1"),
        ("missing", "[1]", [1]),
    ],
)
def test_values_have_the_types_of_the_schema(parameter: str, text: str, expected: Any) -> None:
    types = ParameterTypes(FUNCTIONS).of("f", parameter)
    assert json.loads(json_of(text, types)) == expected


def test_odd_schemas_say_nothing() -> None:
    loop = {"properties": {"a": {"$ref": "#/properties/a"}, "b": 7, "c": {"type": ["str", 7]}}}
    types = ParameterTypes([Function("f", loop), Function("g", {"properties": []})])
    assert types.of("f", "a") == types.of("f", "b") == types.of("g", "a") == frozenset()
    assert types.of("f", "c") == {"string"}


# -- templates


def template_with(*marks: str) -> str:
    return "{%- if tools %}" + "\n".join(marks) + "{{ tools | tojson }}{%- endif %}"


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("hermes", ["<tool_call>", '{"name": ...}']),
        ("hermes", ["<tool_call>", r"{\"name\": ...}"]),
        ("qwen3_coder", ["<tool_call>", "<function=f>", "<parameter=p>"]),
        ("glm45", ["<tool_call>", "<arg_key>", "<arg_value>"]),
        ("granite", ["<|tool_call|>"]),
        ("phi4_mini_json", ["<|tool_call|>", "<|/tool_call|>"]),
        ("gemma4", ["<|tool_call>", "<tool_call|>"]),
        ("deepseek_v3", ["<｜tool▁calls▁begin｜>", "```json"]),
        ("deepseek_v31", ["<｜tool▁calls▁begin｜>"]),
        ("deepseek_v32", ["<｜DSML｜function_calls>"]),
        ("deepseek_v4", ["<｜DSML｜tool_calls>"]),
        ("step3", ["<｜tool_calls_begin｜>", "<steptml:invoke name"]),
        ("apertus", ["<|tools_prefix|>"]),
        ("gigachat3", ["<|function_call|>"]),
        ("seed_oss", ["<seed:tool_call>", "<function=f>", "<parameter=p>"]),
    ],
)
def test_the_template_tells_the_format(name: str, marks: list[str]) -> None:
    found = call_format_of(template_with(*marks))
    assert found is CALL_FORMATS[name]


def test_every_format_is_told_by_its_own_marks() -> None:
    for call_format in CALL_FORMATS.values():
        for marks in call_format.template_marks:
            assert call_format_of(template_with(*marks)) is call_format
    assert call_format_of(template_with("")) is None
    assert call_format_of(template_with("<tool_call>", '<invoke name="f">')) is None  # MiniMax M3
    assert call_format_of("") is None
