"""Reasoning over HTTP: chats and responses, whole and streamed, with grammars, calls and budgets.

scripted_model makes a tiny model write the texts; where a grammar or a budget is tested, the model
writes what it likes.
"""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

import scripted_model
from scripted_model import Says
from server_world import MODEL, World, serving
from specdec_native import Engine
from structured_bodies import PERSON
from test_server_harmony import ask
from thinking import add_thinking_text, mark_ids

PATH = "/v1/chat/completions"
HELLO = {"role": "user", "content": "hello"}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "now", "parameters": PERSON}}
]
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
NOW = {"name": "now", "arguments": "{}"}
BEGUN = {"chat_template_kwargs": {"is_begun": True}}
OVER = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def world(thinking_world: World) -> World:
    return thinking_world


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    return scripted_model.says(monkeypatch, mark_ids("qwen3"))


@pytest.mark.parametrize(
    ("text", "body", "answer"),
    [
        ("<think>Hm, hm.</think>  Hi!", {}, ("Hm, hm.", "Hi!", [], "stop")),
        ("<think> a < b </think>Hi </think>", {}, ("a < b", "Hi </think>", [], "stop")),
        ("Hm.</think>Hi!", BEGUN, ("Hm.", "Hi!", [], "stop")),
        ("Hi <think>!", {}, (None, "Hi <think>!", [], "stop")),
        ("<think>Hi!", OVER, (None, "<think>Hi!", [], "stop")),
        ("Hi!", {"reasoning_effort": "none"}, (None, "Hi!", [], "stop")),
        ("<think>Hi!", {"reasoning_effort": "none"}, (None, "<think>Hi!", [], "stop")),
        ("<think>Hm.</think>Hi!", {"include_reasoning": False}, (None, "Hi!", [], "stop")),
        ("<think>Hm, hm.", {"max_tokens": 6}, ("Hm, h", None, [], "length")),
        (f"<think>Hm.</think>{CALL}", {"tools": TOOLS}, ("Hm.", None, [NOW], "tool_calls")),
        (f"<think>{CALL}</think>no", {"tools": TOOLS}, (CALL, "no", [], "stop")),
        (f"<think>Hm.</think>I look.{CALL}", {"tools": TOOLS}, ("Hm.", "I look.", [NOW], None)),
    ],
)
def test_reasoning_of_a_chat(
    world: World, says: Says, text: str, body: dict[str, Any], answer: tuple[Any, ...]
) -> None:
    says(text)
    given = ask(world, **body)
    assert given[:3] == answer[:3]
    assert answer[3] in (None, given[3])


def test_both_names_of_the_reasoning(world: World, says: Says) -> None:
    """vLLM's newer one and its older one, which other servers have as well."""
    says("<think>Hm.</think>Hi!")
    client = openai.OpenAI(base_url=f"{world.url}/v1", api_key="x")
    (choice,) = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}]
    ).choices
    extra = choice.message.model_extra or {}
    assert extra["reasoning"] == extra["reasoning_content"] == "Hm."
    deltas = [event["choices"][0]["delta"] for event in world.events(PATH, messages=[HELLO])]
    thoughts = [delta for delta in deltas if "reasoning" in delta]
    assert "".join(delta["reasoning"] for delta in thoughts) == "Hm."
    assert all(delta["reasoning"] == delta["reasoning_content"] for delta in thoughts)


@pytest.mark.parametrize("shows", [True, False])
def test_usage_tells_how_many_tokens_are_reasoning(world: World, says: Says, shows: bool) -> None:
    says("<think>Hm.</think>Hi!")
    body = {"messages": [HELLO], "include_reasoning": shows}
    usage = world.ask(PATH, **body)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}
    *_, last = world.events(PATH, **body, stream_options={"include_usage": True})
    assert last["usage"] == usage


def test_reasoning_of_a_response(world: World, says: Says) -> None:
    says(f"<think>Hm.</think>I look.{CALL}")
    tools = [{"type": "function", "name": "now", "parameters": PERSON}]
    response = world.ask("/v1/responses", input="hello", tools=tools)
    assert [item["type"] for item in response["output"]] == [
        *("reasoning", "message", "function_call")
    ]
    assert response["output"][0]["content"][0]["text"] == "Hm."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 3


def test_a_continued_answer_may_be_in_its_reasoning(world: World, says: Says) -> None:
    says("so.</think>Hi!")
    body = {"continue_final_message": True, "add_generation_prompt": False}
    for content, answer in (("<think>Hm, ", ("so.", "Hi!")), ("I ", (None, "so.</think>Hi!"))):
        messages = [HELLO, {"role": "assistant", "content": content}]
        assert ask(world, messages=messages, **body)[:2] == answer


# -- grammars and budgets


@pytest.mark.parametrize("budget", [0, 4])
@pytest.mark.parametrize("template", [BEGUN, OVER, {}])
def test_a_format_holds_behind_the_reasoning(
    world: World, template: dict[str, Any], budget: int
) -> None:
    importlib.import_module("llguidance")
    body = {
        **template,
        "structured_outputs": {"json": PERSON, "disable_any_whitespace": True},
        "thinking_token_budget": budget,
        "temperature": 0,
        "max_tokens": 200,
    }
    reasoning, content, _, reason = ask(world, **body)
    assert reason == "stop" and content is not None
    jsonschema.validate(json.loads(content), PERSON)
    assert (reasoning is not None) == (template is BEGUN and budget > 0)


def test_a_format_holds_on_the_final_channel(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of answers in harmony, however their header is written."""
    importlib.import_module("llguidance")
    model = add_thinking_text(checkpoint("llama"), tmp_path / "model", "openai_gptoss")
    says = scripted_model.says(monkeypatch, mark_ids("openai_gptoss"))
    thought = "<|channel|>analysis<|message|>{no} JSON<|end|><|start|>assistant"
    with Engine(model, dtype="float32", max_model_len=256) as engine, serving(engine) as world:
        for header in ("final<|message|>", "final <|constrain|>json<|message|>"):
            says(f"{thought}<|channel|>{header}Ho?")
            for choice in ("Ho?", "x-y"):  # the script's answer, or the only one that is allowed
                body = {"structured_outputs": {"choice": [choice]}}
                assert ask(world, **body) == ("{no} JSON", choice, [], "stop")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_calls_are_forced_behind_the_reasoning(world: World, choice: Any) -> None:
    importlib.import_module("llguidance")
    body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    limits = {"thinking_token_budget": 6, "temperature": 0, "max_tokens": 300}
    reasoning, content, calls, _ = ask(world, **BEGUN, **body, **limits)
    assert reasoning and not content and [call["name"] for call in calls] == ["now"]
    jsonschema.validate(json.loads(calls[0]["arguments"]), PERSON)


def test_a_server_may_be_told_not_to_read_reasoning(world: World, says: Says) -> None:
    says("<think>Hm.</think>Hi!")
    with serving(world.engine, reasoning_parser="none") as other:
        assert ask(other) == (None, "<think>Hm.</think>Hi!", [], "stop")


def test_another_name_reads_reasoning_that_nothing_begins(world: World, says: Says) -> None:
    says("Hm.</think>Hi!")
    with serving(world.engine, reasoning_parser="deepseek_r1") as other:
        assert ask(other) == ("Hm.", "Hi!", [], "stop")


def test_budgets_of_completions(world: World) -> None:
    body: dict[str, Any] = {
        "prompt": "a<think>\n",
        "max_tokens": 12,
        "thinking_token_budget": 5,
        "return_token_ids": True,
        "temperature": 0,
        "ignore_eos": True,
        "logit_bias": {str(mark_ids("qwen3")["</think>"]): -100},
    }
    (choice,) = world.ask("/v1/completions", **body)["choices"]
    assert choice["token_ids"].index(mark_ids("qwen3")["</think>"]) == 5
    error = world.error("/v1/completions", **body | {"thinking_token_budget": -2})
    assert error["param"] == "thinking_token_budget"
