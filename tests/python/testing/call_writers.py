"""Calls as each family's chat template would write them."""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

dumps = functools.partial(json.dumps, ensure_ascii=False)
Call: TypeAlias = tuple[str, dict[str, Any]]
Writer: TypeAlias = Callable[[Sequence[Call]], str]


def xml_calls(
    open_call: str,
    close_call: str,
    open_key: str,
    tail: str = "\n",
    close_key: str = "</parameter>\n",
) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        return "".join(
            open_call.format(name)
            + "".join(
                open_key.format(key)
                + tail
                + (value if isinstance(value, str) else dumps(value))
                + tail
                + close_key
                for key, value in arguments.items()
            )
            + close_call
            for name, arguments in calls
        )

    return write


def json_calls(begin: str, end: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        return "".join(
            begin + dumps({"name": name, "arguments": arguments}) + end for name, arguments in calls
        )

    return write


def json_list(begin: str, end: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        return begin + dumps([{"name": n, "arguments": a} for n, a in calls], indent=1) + end

    return write


def named_calls(begin: str, call: str, end: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        texts = [call % (n, dumps(a)) for n, a in calls]
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
            f"{value if isinstance(value, str) else dumps(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def dsml_calls(section: str) -> Writer:
    def write_value(value: Any) -> str:
        if isinstance(value, str):
            return f'string="true">{value}'
        return f'string="false">{dumps(value)}'

    def write(calls: Sequence[Call]) -> str:
        texts = [
            f'<｜DSML｜invoke name="{name}">\n'
            + "".join(
                f'<｜DSML｜parameter name="{key}" {write_value(value)}</｜DSML｜parameter>\n'
                for key, value in arguments.items()
            )
            + "</｜DSML｜invoke>\n"
            for name, arguments in calls
        ]
        return f"<｜DSML｜{section}>\n{''.join(texts)}</｜DSML｜{section}>"

    return write


def apertus_calls(calls: Sequence[Call]) -> str:
    return f"<|tools_prefix|>{dumps([{n: a} for n, a in calls])}<|tools_suffix|>"


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
                return dumps(value)

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
    "deepseek_v32": dsml_calls("function_calls"),
    "deepseek_v4": dsml_calls("tool_calls"),
    "step3": lambda calls: (
        "<｜tool_calls_begin｜>"
        + xml_calls(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{}">\n',
            "</steptml:invoke><｜tool_call_end｜>\n",
            '<steptml:parameter name="{}">',
            "",
            "</steptml:parameter>\n",
        )(calls)
        + "<｜tool_calls_end｜>"
    ),
    "apertus": apertus_calls,
    "gigachat3": json_calls("<|function_call|>", "\n"),
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
