"""Tools and thoughts in /v1/messages: blocks of the content, whole and streamed.

scripted_model makes a tiny model write the texts; where a grammar or a budget is tested, the model
writes what it likes.
"""

import importlib
from typing import Any

import anthropic
import jsonschema
import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock

import scripted_model
from message_requests import HELLO, PATH, ask, client_of, refusal
from scripted_model import Says
from server_world import MODEL, World, serving
from structured_bodies import PERSON
from thinking import mark_ids

TOOLS: list[dict[str, Any]] = [
    {
        "name": "weather",
        "description": "The weather.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
        "cache_control": {"type": "ephemeral"},
    },
    {"name": "now", "input_schema": PERSON, "type": "custom", "strict": False},
]
ROME = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
BEGUN = {"chat_template_kwargs": {"is_begun": True}}
# What each block says: the text, or the name and the input of a tool.
Told = list[Any]


@pytest.fixture(scope="module")
def world(thinking_world: World) -> World:
    return thinking_world


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    return scripted_model.says(monkeypatch, mark_ids("qwen3"))


def told(message: Message) -> Told:
    return [
        (block.name, block.input)
        if isinstance(block, ToolUseBlock)
        else f"<{block.thinking}>"
        if isinstance(block, ThinkingBlock)
        else block.text
        for block in message.content
        if isinstance(block, (TextBlock, ThinkingBlock, ToolUseBlock))
    ]


@pytest.mark.parametrize(
    ("text", "body", "blocks", "reason"),
    [
        (f"Let me see. {ROME} {NOW}", {}, ["Let me see. ", "Rome", "now"], "tool_use"),
        (f"{ROME}\n and more", {}, ["Rome", "and more"], "tool_use"),
        (f"<think>Hm.</think>\n\n{ROME}", {}, ["<Hm.>", "Rome"], "tool_use"),
        ("<think>Hm, hm.</think>Hi!", {}, ["<Hm, hm.>", "Hi!"], "end_turn"),
        ("<think>Hm, hm.", {"max_tokens": 6}, ["<Hm, h>"], "max_tokens"),
        ("Hm.</think>Hi!", BEGUN, ["<Hm.>", "Hi!"], "end_turn"),
        (NOW, {"tool_choice": {"type": "none"}}, [NOW], "end_turn"),
        (
            f"{ROME}{NOW}",
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            ["Rome"],
            "tool_use",
        ),
        # An incomplete string at the end of an input is left out, as the client does.
        (f"a {ROME}", {"max_tokens": 60}, ["a ", ("weather", {})], "max_tokens"),
        (f"{ROME}{NOW} stop", {"stop_sequences": ["stop"]}, ["Rome", "now"], "tool_use"),
        (f"{NOW}{ROME}", {"stop_sequences": ["ome"]}, ["now", ("weather", {})], "stop_sequence"),
        (
            '<tool_call>{"name": "now", "arguments": {"x": [1, oops]}}</tool_call>',
            {},
            [("now", {"x": [1]}), "oops]}}</tool_call>"],
            "end_turn",
        ),
        (
            '<tool_call>{"name": "now", "arguments": [1, {"x": 2}]}</tool_call>',
            {},
            ["now"],
            "tool_use",
        ),
    ],
)
def test_the_blocks_of_a_message(
    world: World, says: Says, text: str, body: dict[str, Any], blocks: Told, reason: str
) -> None:
    says(text)
    message = ask(world, **{"tools": TOOLS, "max_tokens": 200, **body})
    names = {"Rome": ("weather", {"city": "Rome"}), "now": ("now", {})}
    assert told(message) == [names.get(b, b) if isinstance(b, str) else b for b in blocks]
    assert message.stop_reason == reason
    ids = [block.id for block in message.content if isinstance(block, ToolUseBlock)]
    assert len({*ids}) == len(ids)


def test_numbers_beyond_those_of_json_readers_are_null(world: World, says: Says) -> None:
    says('<tool_call>{"name": "now", "arguments": {"x": 1e999}}</tool_call>')
    (block,) = world.ask(PATH, messages=[HELLO], tools=TOOLS, max_tokens=200)["content"]
    assert block["input"] == {"x": None}


def test_thoughts_are_counted(world: World, says: Says) -> None:
    says("<think>Hm, hm.</think>Hi!")
    usage = ask(world).usage
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == len("Hm, hm.") - 1  # ", " is a token


def test_thoughts_that_are_not_shown_come_back_in_the_signature(
    world: World, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does what a client sends back that shows them."""
    says(f"<think>Hm.</think>{NOW}")
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}|{{ m.content }}"
        "{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %};{% endfor %}"
    )
    counts = []
    for display in ("summarized", "omitted"):
        thinking = {"type": "adaptive", "display": display}
        message = ask(world, tools=TOOLS, thinking=thinking, max_tokens=80)
        shown = "<Hm.>" if display == "summarized" else "<>"
        assert told(message) == [shown, ("now", {})]
        content = [block.to_dict() for block in message.content]
        turns: list[Any] = [HELLO, {"role": "assistant", "content": content}]
        result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "x"}
        turns.append({"role": "user", "content": [result]})
        with monkeypatch.context() as patch:
            patch.setitem(world.engine.tokenizer._chat_templates, "default", template)
            count = world.ask(f"{PATH}/count_tokens", messages=turns, tools=TOOLS)
            expected = world.ask("/tokenize", prompt="user:|hello;assistant:Hm.|[now];tool:|x;")
        counts.append(count["input_tokens"])
        assert counts[-1] == expected["count"]
    assert counts[0] == counts[1]


def test_a_signature_of_another_server_is_nothing(world: World) -> None:
    def count(*blocks: dict[str, Any]) -> int:
        content = [*blocks, {"type": "text", "text": "So "}]
        turns = [HELLO, {"role": "assistant", "content": content}]
        number: int = world.ask(f"{PATH}/count_tokens", messages=turns)["input_tokens"]
        return number

    thinking = {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM\xff"}
    assert count(thinking) == count({"type": "redacted_thinking", "data": "x"}) == count()


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
        ({"type": "enabled", "budget_tokens": 9}, {"enable_thinking": True}),
        (None, {}),
    ],
)
def test_thinking_is_the_templates_switch(
    world: World, thinking: Any, variables: dict[str, Any]
) -> None:
    counted = world.ask(f"{PATH}/count_tokens", messages=[HELLO], thinking=thinking)
    chat = world.ask("/tokenize", messages=[HELLO], chat_template_kwargs=variables)
    assert counted["input_tokens"] == chat["count"]
    shorter = world.ask("/tokenize", messages=[HELLO])["count"]
    assert (chat["count"] > shorter) == (variables.get("enable_thinking") is False)


def test_a_budget_ends_the_thoughts(world: World) -> None:
    importlib.import_module("llguidance")
    body = {**BEGUN, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    end = {str(mark_ids("qwen3")["</think>"]): -100}  # the model would never end them
    for budget in (1, 7):
        thinking = {"type": "enabled", "budget_tokens": budget}
        message = ask(world, **body, logit_bias=end, thinking=thinking)
        assert [block.type for block in message.content] == ["thinking", "text"]
        details = message.usage.output_tokens_details
        assert details is not None and details.thinking_tokens <= budget


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "now"}])
def test_calls_are_forced(world: World, choice: dict[str, Any]) -> None:
    importlib.import_module("llguidance")
    body = {"temperature": 0, "max_tokens": 300, "thinking": {"type": "disabled"}}
    choice = {**choice, "disable_parallel_tool_use": True}
    message = ask(world, tools=TOOLS[1:], tool_choice=choice, **body)
    (block,) = message.content
    assert block.type == "tool_use" and block.name == "now"
    assert message.stop_reason == "tool_use"
    jsonschema.validate(block.input, PERSON)


def test_the_clients_loop_runs_tools(world: World, says: Says) -> None:
    """The client runs what the model calls and sends the results until there are no calls."""
    asked: list[str] = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        says(f"<think>Rain.</think>It rains in {city}.")
        return "Rain."

    says(f"<think>Hm.</think>I look.{ROME}")
    with client_of(world) as client:
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=200,
            tools=[weather],
            messages=[{"role": "user", "content": "a"}],
        )
        last = runner.until_done()
    assert asked == ["Rome"]
    assert [block.type for block in last.content] == ["thinking", "text"]
    assert last.content[1].text == "It rains in Rome."  # type: ignore[union-attr]


def test_what_a_coding_agent_sends(world: World, says: Says) -> None:
    """The shape of the second request of Anthropic's own agent, after it has run a tool."""
    says("<think>I know.</think>42.")
    cached = {"cache_control": {"type": "ephemeral"}}
    call = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Rome"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "SG0u"}
    body = {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2;"},
            {"type": "text", "text": "You help.", **cached},
        ],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "system", "content": "There are agents."},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, call]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "Rain.", **cached}
                ],
            },
        ],
        "tools": TOOLS,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "{}"},
        "max_tokens": 32_000,
    }
    message = ask(world, **body)
    assert told(message) == ["<I know.>", "42."]
    shown = "system:You help.;user:a\nb;system:There are agents.;assistant:I look.;tool:Rain.;"
    usage = message.usage
    counted = world.ask("/tokenize", prompt=f"{shown}assistant:")["count"]
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_tools_that_nobody_could_read_are_refused(world: World) -> None:
    """In the words of Anthropic's API."""
    with serving(world.engine) as bare:
        message = refusal(bare, tools=TOOLS)
    assert "--tool-call-parser" in message
    assert 'set tool_choice.type to "any", to "tool" with its name, or to "none"' in message
