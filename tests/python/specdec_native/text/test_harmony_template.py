"""A chat template of gpt-oss's shape: what the sandbox renders of it."""

import datetime
from typing import Any

import pytest

from harmony import CHAT_TEMPLATE
from specdec_native.text.chat_template import check_all_shown, render

HELLO: dict[str, Any] = {"role": "user", "content": "Hello?"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"enum": ["C", "F"], "default": "C"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "at": {"oneOf": [{"type": "string"}, {"type": "number", "nullable": True}]},
                    "depth": {"type": ["number", "null"]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
TYPES = """\
## functions

namespace functions {

// The weather.
type weather = (_: {
city: string,
unit?: "C" | "F", // default: "C",
days?: number[],
at?: string | number | null,
depth?: number | null
}) => any;

type now = () => any;

} // namespace functions<|end|>"""
CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
ANSWER = {"role": "tool", "tool_call_id": "1", "content": 'It "rains".'}


def text_of(*messages: dict[str, Any], **options: Any) -> str:
    return render(CHAT_TEMPLATE, messages, **options)


def history_of(*messages: dict[str, Any], **options: Any) -> str:
    """What follows the system message."""
    return text_of(*messages, **options).partition("<|end|>")[2]


def test_the_system_message_has_the_date_and_the_effort() -> None:
    before = datetime.date.today()
    text = text_of(HELLO)
    dates = {f"Current date: {day}\n" for day in (before, datetime.date.today())}
    assert any(date in text for date in dates)
    assert text.startswith("<|start|>system<|message|>You are a test.\n")
    assert "Reasoning: medium\n" in text and "# Valid channels" in text
    assert text.endswith("<|end|><|start|>user<|message|>Hello?<|end|><|start|>assistant")


@pytest.mark.parametrize("effort", ["low", "high"])
def test_variables_of_the_system_message(effort: str) -> None:
    text = text_of(
        HELLO,
        variables={
            "reasoning_effort": effort,
            "model_identity": "You are a bee.",
            "builtin_tools": ["browser", "python"],
        },
    )
    assert text.startswith("<|start|>system<|message|>You are a bee.\n")
    assert f"Reasoning: {effort}\n" in text and "Tools: browser, python\n" in text


@pytest.mark.parametrize("role", ["developer", "system"])
def test_instructions_and_tools_are_the_developers(role: str) -> None:
    instructions = {"role": role, "content": "Be kind."}
    assert history_of(instructions, HELLO).startswith(
        "<|start|>developer<|message|># Instructions\n\nBe kind.<|end|><|start|>user"
    )
    text = history_of(instructions, HELLO, tools=TOOLS)
    assert text.startswith("<|start|>developer<|message|># Instructions\n\nBe kind.\n\n# Tools\n\n")
    assert TYPES in text
    check_all_shown(CHAT_TEMPLATE, [instructions, HELLO], tools=TOOLS)


def test_thoughts_come_before_calls_until_there_is_an_answer() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "Hm."}
    called = (
        '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": '
        '"Rome"}<|call|><|start|>functions.weather to=assistant<|channel|>commentary<|message|>'
        '"It \\"rains\\"."<|end|>'
    )
    thought = "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
    question = "<|start|>user<|message|>Hello?<|end|>"
    assert history_of(HELLO, call, ANSWER) == f"{question}{thought}{called}<|start|>assistant"
    answer = {"role": "assistant", "content": "Rain.", "reasoning": "So."}
    assert history_of(HELLO, call, ANSWER, answer, HELLO) == (
        f"{question}{called}<|start|>assistant<|channel|>final<|message|>Rain.<|end|>{question}"
        "<|start|>assistant"
    )
    check_all_shown(CHAT_TEMPLATE, [HELLO, call, ANSWER, answer, HELLO], tools=TOOLS)


def test_what_was_said_before_a_call_is_among_the_thoughts() -> None:
    """The template takes one of them, and refuses both."""
    call = {"role": "assistant", "content": "I look.", "tool_calls": [CALL], "reasoning": "Hm."}
    text = history_of(HELLO, call, ANSWER)
    assert "<|channel|>analysis<|message|>Hm.\nI look.<|end|>" in text
    with pytest.raises(ValueError, match="not both"):
        text_of(HELLO, {**call, "thinking": "Hm."}, ANSWER)


def test_an_answer_can_be_continued() -> None:
    text = text_of(
        HELLO,
        {"role": "assistant", "content": "Once", "reasoning": "Hm."},
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert text.endswith(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Once"
    )


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([HELLO, ANSWER], "no call before"),
        ([HELLO, {"role": "assistant", "content": "<|channel|>a"}], "marks in the content"),
    ],
)
def test_what_the_template_refuses(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_of(*messages)
