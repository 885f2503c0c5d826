"""Agents of pydantic-ai and of OpenAI: their tools are called, and they see the reasoning."""

import asyncio
from typing import Any

import agents
import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ThinkingPart, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import scripted_model
from scripted_model import Says
from server_world import MODEL, World

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
THOUGHTS = ["I need the weather.", "Now I know."]
ANSWER = "It rains in Rome."
TURNS = (f"<think>{THOUGHTS[0]}</think>{CALL}", f"<think>{THOUGHTS[1]}</think>{ANSWER}")


@pytest.fixture(scope="module")
def world(thinking_world: World) -> World:
    return thinking_world


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, world: World) -> Says:
    """The clients' tools are strict, so the texts are tokens of their grammar."""
    tokenizer = world.engine.tokenizer
    return scripted_model.says(monkeypatch, encode=lambda text: tokenizer.encode(text, False))


def weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}."


def pydantic_agent(world: World) -> Agent[None, str]:
    provider = OpenAIProvider(base_url=f"{world.url}/v1", api_key="EMPTY")
    return Agent(OpenAIChatModel(MODEL, provider=provider), tools=[weather])


def told(messages: list[ModelMessage]) -> tuple[list[str], list[Any]]:
    """Thoughts and calls of a conversation."""
    parts = [part for m in messages if isinstance(m, ModelResponse) for part in m.parts]
    thoughts = [part.content for part in parts if isinstance(part, ThinkingPart)]
    calls = [(p.tool_name, p.args_as_dict()) for p in parts if isinstance(p, ToolCallPart)]
    return thoughts, calls


def test_an_agent_of_pydantic_ai(world: World, says: Says) -> None:
    says(*TURNS)
    result = asyncio.run(pydantic_agent(world).run("Does it rain in Rome?"))
    assert result.output == ANSWER
    assert told(result.all_messages()) == (THOUGHTS, [("weather", {"city": "Rome"})])


def test_a_stream_of_pydantic_ai(world: World, says: Says) -> None:
    says(*TURNS)

    async def run() -> tuple[str, list[ModelMessage]]:
        async with pydantic_agent(world).run_stream("Does it rain in Rome?") as result:
            texts = [text async for text in result.stream_text(delta=True)]
            return "".join(texts), result.all_messages()

    text, messages = asyncio.run(run())
    assert text == ANSWER
    assert told(messages) == (THOUGHTS, [("weather", {"city": "Rome"})])


@pytest.mark.parametrize("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_of_openai(world: World, says: Says, kind: Any, is_streamed: bool) -> None:
    agents.set_tracing_disabled(True)
    says(*TURNS)

    async def run() -> Any:
        client = AsyncOpenAI(base_url=f"{world.url}/v1", api_key="EMPTY", max_retries=0)
        agent = agents.Agent(
            name="Assistant",
            model=kind(model=MODEL, openai_client=client),
            tools=[agents.function_tool(weather)],
        )
        question = "Does it rain in Rome?"
        if not is_streamed:
            return await agents.Runner.run(agent, question)
        result = agents.Runner.run_streamed(agent, question)
        async for _ in result.stream_events():
            pass
        return result

    result = asyncio.run(run())
    assert result.final_output == ANSWER
    kinds = [type(item).__name__ for item in result.new_items]
    assert kinds == [
        *("ReasoningItem", "ToolCallItem", "ToolCallOutputItem"),
        *("ReasoningItem", "MessageOutputItem"),
    ]
    thoughts = []
    for item in result.new_items:
        if isinstance(item, agents.ReasoningItem):
            raw = item.raw_item
            thoughts += [part.text for part in (raw.content or raw.summary)]
    assert thoughts == THOUGHTS
    outputs = [i.output for i in result.new_items if isinstance(i, agents.ToolCallOutputItem)]
    assert outputs == ["Rain in Rome."]
