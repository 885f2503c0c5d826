"""LangChain's agents: tools bound to a model, their outputs sent back, answers as models."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from scripted_model import Says
from server_world import MODEL, World, serving
from specdec_native import Engine
from tiny_text_model import CHARS, FIRST_CHAR, add_byte_text

TWO_CALLS = (
    "Let me see. "
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call> '
    '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
)
NO_SPACE = {str(token): -100 for token in (FIRST_CHAR, FIRST_CHAR + len(CHARS))}


@tool
def weather(city: Literal["Rome", "Bonn"]) -> str:
    """The weather of a city."""
    return f"Rain in {city}."


@tool
def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


TOOLS = {"weather": weather, "add": add}


class Step(pydantic.BaseModel, extra="forbid"):
    """What is to be done."""

    kind: Literal["a", "b"]
    done: bool


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("langchain") / "llama")


@pytest.fixture(scope="module")
def world(model: Path) -> Iterator[World]:
    with (
        Engine(model, dtype="float32", max_model_len=256) as engine,
        serving(engine, tool_call_parser="hermes") as world,
    ):
        yield world


def chat_model(world: World, **options: Any) -> ChatOpenAI:
    base: dict[str, Any] = {"base_url": f"{world.url}/v1", "api_key": "EMPTY", "model": MODEL}
    return ChatOpenAI(**base, max_retries=0, **options)


def test_tools_are_called_and_their_outputs_go_back(world: World, says: Says) -> None:
    chat = chat_model(world).bind_tools(list(TOOLS.values()))
    conversation: list[Any] = [HumanMessage("hello")]
    says(TWO_CALLS)
    answer = chat.invoke(conversation)
    assert isinstance(answer, AIMessage) and answer.content == "Let me see. "
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
        ("weather", {"city": "Rome"}),
        ("add", {"a": 2, "b": 3}),
    ]
    conversation.append(answer)
    conversation += [TOOLS[call["name"]].invoke(call) for call in answer.tool_calls]
    assert [message.content for message in conversation[-2:]] == ["Rain in Rome.", "5"]
    assert all(isinstance(message, ToolMessage) for message in conversation[-2:])
    says("It rains, and it is 5.")
    last = chat.invoke(conversation)
    assert last.content == "It rains, and it is 5." and not last.tool_calls
    shown = "user:hello;assistant:Let me see. ;tool:Rain in Rome.;tool:5;assistant:"
    tokenizer = world.engine.tokenizer
    assert last.usage_metadata is not None
    assert last.usage_metadata["input_tokens"] == len(tokenizer.encode(shown, False))


def test_streamed_calls_are_put_together(world: World, says: Says) -> None:
    says(TWO_CALLS)
    whole: AIMessageChunk | None = None
    number = 0
    for chunk in chat_model(world).bind_tools(list(TOOLS.values())).stream("hello"):
        assert isinstance(chunk, AIMessageChunk)
        number += bool(chunk.tool_call_chunks)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None and whole.content == "Let me see. "
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [
        ("weather", {"city": "Rome"}),
        ("add", {"a": 2, "b": 3}),
    ]
    assert number > 5, "arguments come as they are written"


@pytest.mark.parametrize("choice", ["any", "weather"])
def test_a_call_that_is_required(world: World, choice: str) -> None:
    chat = chat_model(world, temperature=0, logit_bias=NO_SPACE)
    bound = chat.bind_tools([weather], tool_choice=choice, parallel_tool_calls=False)
    answer = bound.invoke("hello")
    (call,) = answer.tool_calls
    assert call["name"] == "weather" and call["args"]["city"] in ("Rome", "Bonn")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_answers_are_models(world: World, method: Any) -> None:
    chat = chat_model(world, temperature=0, logit_bias=NO_SPACE)
    assert isinstance(chat.with_structured_output(Step, method=method).invoke("hello"), Step)
