"""Random calls in every family's syntax, written as the family's chat template would write them."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from answer_pieces import FUNCTIONS, read, splits
from specdec_serve.http.tools.call_formats import CALL_FORMATS
from specdec_serve.http.tools.events import CallBegins

Call: TypeAlias = tuple[str, dict[str, Any]]
Writer: TypeAlias = Callable[[Sequence[Call]], str]


def xml_calls(open_call: str, close_call: str, open_key: str, tail: str = "\n") -> Writer:
    def write(calls: Sequence[Call]) -> str:
        return "".join(
            open_call.format(name)
            + "".join(
                open_key.format(key)
                + tail
                + (value if isinstance(value, str) else json.dumps(value))
                + tail
                + "</parameter>\n"
                for key, value in arguments.items()
            )
            + close_call
            for name, arguments in calls
        )

    return write


def json_calls(begin: str, end: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        return "".join(
            begin + json.dumps({"name": name, "arguments": arguments}) + end
            for name, arguments in calls
        )

    return write


def json_list(begin: str, end: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        return begin + json.dumps([{"name": n, "arguments": a} for n, a in calls], indent=1) + end

    return write


def named_calls(begin: str, call: str, end: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        texts = [call % (n, json.dumps(a, ensure_ascii=False)) for n, a in calls]
        return begin + "".join(texts) + end

    return write


def python_calls(begin: str, comma: str, end: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        texts = [f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls]
        return begin + comma.join(texts) + end

    return write


def glm_calls(calls: Sequence[Call]) -> str:
    return "".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>"
            f"{value if isinstance(value, str) else json.dumps(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def gemma_calls(begin: str, quote: str, end: str) -> Writer:
    def value_of(value: Any) -> str:
        match value:
            case str():
                return f"{quote}{value}{quote}"
            case dict():
                return "{" + ",".join(f"{k}:{value_of(v)}" for k, v in value.items()) + "}"
            case list():
                return "[" + ",".join(map(value_of, value)) + "]"
            case _:
                return json.dumps(value)

    def write(calls: Sequence[Call]) -> str:
        return "".join(f"{begin}call:{n}{value_of(a)}{end}" for n, a in calls)

    return write


WRITERS: dict[str, Writer] = {
    "qwen3_coder": xml_calls(
        "<tool_call>\n<function={}>\n", "</function>\n</tool_call>\n", "<parameter={}>"
    ),
    "seed_oss": xml_calls(
        "<seed:tool_call>\n<function={}>\n", "</function>\n</seed:tool_call>\n", "<parameter={}>"
    ),
    "minimax_m2": xml_calls(
        '<minimax:tool_call>\n<invoke name="{}">\n',
        "</invoke>\n</minimax:tool_call>",
        '<parameter name="{}">',
        "",
    ),
    "glm45": glm_calls,
    "gemma4": gemma_calls("<|tool_call>", '<|"|>', "<tool_call|>"),
    "functiongemma": gemma_calls("<start_function_call>", "<escape>", "<end_function_call>"),
    "deepseek_v3": named_calls(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>\n",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": named_calls(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "kimi_k2": named_calls(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.%s:0<|tool_call_argument_begin|>%s<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "mistral": named_calls("", "[TOOL_CALLS]%s[ARGS]%s", ""),
    "olmo3": python_calls("<function_calls>", "\n", "</function_calls>"),
    "lfm2": python_calls("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    "pythonic": python_calls("<|python_start|>[", ", ", "]<|python_end|>"),
    "hermes": json_calls("<tool_call>\n", "\n</tool_call>\n"),
    "llama3_json": json_calls("", "; "),
    "granite-20b-fc": json_calls("<function_call> ", "\n"),
    "internlm": json_calls("<|action_start|><|plugin|>\n", "<|action_end|>"),
    "longcat": json_calls("<longcat_tool_call>", "</longcat_tool_call>"),
    "granite": json_list("<|tool_call|>", ""),
    "jamba": json_list("<tool_calls>", "</tool_calls>"),
    "nemotron_json": json_list("<TOOLCALL>", "</TOOLCALL>"),
    "phi4_mini_json": json_list("<|tool_call|>", "<|/tool_call|>"),
    "xlam": json_list("```json\n", "\n```"),
}
SYLLABLES = ["a", "é", "😀", "\n", " ", '"', "'", "\\", "\\n", "{", "}", "[", "]", ",", ":", "<"]
SYLLABLES += ["</", "</para", "<arg", "<|", "null", "1", "(", ")", "=", "`", "\t", "<tool_call"]


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
