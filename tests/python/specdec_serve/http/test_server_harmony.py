"""Answers in harmony, gpt-oss's format: chats and responses, whole and streamed, and LLM.chat.

scripted_model makes a tiny model write them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import scripted_model
from harmony import MARKS, add_harmony_text
from scripted_model import Says
from server_world import MODEL, World, serving
from specdec_native import LLM, Engine, SamplingParams
from specdec_serve.http.tools.parsers import AnswerFormat

PATH = "/v1/chat/completions"
HELLO = {"role": "user", "content": "hello"}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "now", "description": "The time."}}
]
FUNCTIONS: list[dict[str, Any]] = [{"type": "function", "name": "now"}]
NEXT = "<|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>Hm, hm.<|end|>{NEXT}"
ANSWER = f"{THOUGHT}<|channel|>final<|message|>Hi!"
CALL = f'{THOUGHT}<|channel|>commentary to=functions.now <|constrain|>json<|message|>{{"x": 1}}'
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 1024,
    "hf_overrides": {"max_position_embeddings": 1024},
}


@pytest.fixture(scope="module")
def harmony_model(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return add_harmony_text(checkpoint("llama"), tmp_path_factory.mktemp("harmony") / "llama")


@pytest.fixture(scope="module")
def engine(harmony_model: Path) -> Iterator[Engine]:
    with Engine(harmony_model, **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    with serving(engine, reasoning_parser="openai_gptoss") as world:
        yield world


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    return scripted_model.says(monkeypatch, MARKS, MARKS["<|return|>"])


def ask(world: World, **body: Any) -> tuple[str | None, str | None, list[Any], str]:
    """Reasoning, content, calls and finish_reason, which are the same streamed."""
    body = {"messages": [HELLO], **body}
    (choice,) = world.ask(PATH, **body)["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    reasoning = content = ""
    streamed: list[dict[str, str]] = []
    reason = None
    for event in world.events(PATH, **body):
        (part,) = event["choices"]
        delta, reason = part["delta"], part["finish_reason"]
        reasoning += delta.get("reasoning") or ""
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(streamed):
                streamed.append({"name": call["function"]["name"], "arguments": ""})
            streamed[call["index"]]["arguments"] += call["function"]["arguments"]
    assert (reasoning, content) == (message["reasoning"] or "", message["content"] or "")
    assert (streamed, reason) == (calls, choice["finish_reason"])
    return message["reasoning"], message["content"], calls, choice["finish_reason"]


NOW = {"name": "now", "arguments": '{"x": 1}'}
CUT = {"name": "now", "arguments": '{"x"'}


@pytest.mark.parametrize(
    ("text", "body", "answer"),
    [
        (ANSWER, {}, ("Hm, hm.", "Hi!", [], "stop")),
        (ANSWER, {"include_reasoning": False}, (None, "Hi!", [], "stop")),
        (ANSWER, {"max_tokens": 13}, ("Hm,", None, [], "length")),
        (f"{CALL}<|call|>", {"tools": TOOLS}, ("Hm, hm.", None, [NOW], "tool_calls")),
        (CALL, {"tools": TOOLS, "max_tokens": 50}, ("Hm, hm.", None, [], "length")),
        (CALL, {"tools": TOOLS, "max_tokens": 67}, ("Hm, hm.", None, [CUT], "length")),
        (CALL, {"tools": TOOLS, "tool_choice": "none"}, ("Hm, hm.", '{"x": 1}', [], "stop")),
        (CALL, {}, ("Hm, hm.", '{"x": 1}', [], "stop")),
        (
            f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}<|call|>",
            {"tools": TOOLS},
            ("Hm, hm.", "I look.", [NOW], "tool_calls"),
        ),
        (
            f"<|channel|>commentary<|message|>So.<|end|>{NEXT}{ANSWER}",
            {},
            ("Hm, hm.", "So.\nHi!", [], "stop"),
        ),
        ("plain", {}, (None, "plain", [], "stop")),
        ("", {}, (None, "", [], "stop")),
    ],
)
def test_channels_of_a_chat(
    world: World, says: Says, text: str, body: dict[str, Any], answer: tuple[Any, ...]
) -> None:
    says(text)
    assert ask(world, **body) == answer


def test_several_choices_have_readers_of_their_own(world: World, says: Says) -> None:
    says(ANSWER)
    choices = world.ask(PATH, messages=[HELLO], n=2)["choices"]
    assert [choice["message"]["reasoning"] for choice in choices] == ["Hm, hm."] * 2
    assert [choice["message"]["content"] for choice in choices] == ["Hi!"] * 2


def test_an_answer_goes_on_after_a_part_of_it(world: World, says: Says) -> None:
    says("to be")
    body = {
        "messages": [HELLO, {"role": "assistant", "content": "or not "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert ask(world, **body) == (None, "to be", [], "stop")


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        (PATH, "thinking_token_budget", {"thinking_token_budget": 4}),
        (PATH, "reasoning_effort", {"reasoning_effort": "none"}),
        (PATH, "reasoning_effort", {"reasoning_effort": "much"}),
        ("/v1/responses", "reasoning_effort", {"reasoning": {"effort": "max"}}),
    ],
)
def test_what_channels_do_not_allow(
    world: World, path: str, param: str, body: dict[str, Any]
) -> None:
    asked = {"messages": [HELLO]} if path == PATH else {"input": "hello"}
    error = world.error(path, **asked, **body)
    assert error["param"] in (param, f"body.{param}") and param in error["message"]


def test_the_effort_reaches_the_template(world: World, engine: Engine, says: Says) -> None:
    says(ANSWER)
    for body, effort in (
        ({}, "medium"),
        ({"reasoning_effort": "low"}, "low"),
        ({"chat_template_kwargs": {"reasoning_effort": "high"}}, "high"),
    ):
        answer = world.ask(PATH, messages=[HELLO], return_token_ids=True, **body)
        prompt = engine.tokenizer.decode(answer["prompt_token_ids"], skip_special_tokens=False)
        assert f"Reasoning: {effort}\n" in prompt
        assert prompt.startswith("<|start|>system") and prompt.endswith("<|end|>" + NEXT)
    given = {"input": "hello", "reasoning": {"effort": "high"}}
    response = world.ask("/v1/responses", **given)
    assert response["reasoning"] == {"effort": "high"}
    longer = response["usage"]["input_tokens"]
    assert longer == world.ask("/v1/responses", input="hello")["usage"]["input_tokens"] - 2


def test_reasoning_is_an_item_of_a_response(world: World, says: Says) -> None:
    says(f"{CALL}<|call|>")
    body: Any = {"model": MODEL, "input": "hello", "tools": FUNCTIONS}
    with openai.OpenAI(base_url=f"{world.url}/v1", api_key="EMPTY") as client:
        response: Any = client.responses.create(**body)
        with client.responses.stream(**body) as stream:
            kinds = [event.type for event in stream]
            streamed: Any = stream.get_final_response()
    for reasoning, call in (response.output, streamed.output):
        assert reasoning.type == "reasoning" and reasoning.status == "completed"
        assert [part.text for part in reasoning.content or []] == ["Hm, hm."]
        assert call.type == "function_call" and call.status == "completed"
        assert (call.name, call.arguments) == ("now", '{"x": 1}')
    assert response.usage.output_tokens_details.reasoning_tokens == len("Hm, hm.")
    shown = [kind.removeprefix("response.") for kind in dict.fromkeys(kinds)]
    assert shown[2:7] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done"),
    ]
    # All of it can be sent back: the thought belongs to the call.
    says(f"{THOUGHT}<|channel|>final<|message|>Ten.")
    items = [{"role": "user", "content": "a"}, *(item.to_dict() for item in response.output)]
    call_id = response.output[1].call_id
    items.append({"type": "function_call_output", "call_id": call_id, "output": "10"})
    answer = world.ask("/v1/responses", input=items, tools=FUNCTIONS)
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    without = [item for item in items if item.get("type") != "reasoning"]
    shorter = world.ask("/v1/responses", input=without, tools=FUNCTIONS)
    num_tokens = [each["usage"]["input_tokens"] for each in (answer, shorter)]
    # <|start|>assistant<|channel|>analysis<|message|>Hm, hm.<|end|>
    assert num_tokens[0] - num_tokens[1] == 4 + len("assistantanalysisHm, hm.")


def test_reasoning_that_is_cut_is_incomplete(world: World, says: Says) -> None:
    says(ANSWER)
    answer = world.ask("/v1/responses", input="hello", max_output_tokens=14)
    assert answer["status"] == "incomplete"
    (item,) = answer["output"]
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")


def test_reasoning_that_nothing_follows_is_left_out(world: World, says: Says) -> None:
    says(ANSWER)
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    items = [thought, {"role": "user", "content": "hello"}]
    usage = [world.ask("/v1/responses", input=given)["usage"] for given in (items, items[1:])]
    assert usage[0]["input_tokens"] == usage[1]["input_tokens"]


def test_completions_are_text(world: World, says: Says) -> None:
    says(ANSWER)
    body = {"prompt": "a", "max_tokens": 64}
    (choice,) = world.ask("/v1/completions", **body)["choices"]
    assert choice["text"] == "analysisHm, hm.assistantfinalHi!"


def test_a_server_may_be_told_not_to_read_channels(engine: Engine, says: Says) -> None:
    says(ANSWER)
    with serving(engine, reasoning_parser="none") as world:
        assert ask(world)[:2] == (None, "analysisHm, hm.assistantfinalHi!")


@pytest.mark.parametrize(
    ("architecture", "calls", "reasoning", "is_harmony"),
    [
        ("GptOssForCausalLM", None, None, True),
        ("GptOssForCausalLM", "hermes", None, False),  # a fine-tune with another template
        ("LlamaForCausalLM", None, None, False),
        ("LlamaForCausalLM", "openai", None, True),
        ("LlamaForCausalLM", None, "openai_gptoss", True),
    ],
)
def test_which_answers_are_harmony(
    architecture: str, calls: str | None, reasoning: str | None, is_harmony: bool
) -> None:
    made = AnswerFormat.of(architecture, tool_call_parser=calls, reasoning_parser=reasoning)
    assert made.is_harmony == is_harmony
    assert made.reads_calls == (is_harmony or calls is not None)


def test_llm_chat_gives_the_text_of_all_channels(harmony_model: Path) -> None:
    """As in vLLM; the marks are there on wish."""
    llm = LLM(harmony_model, **OPTIONS)
    ids = [MARKS[part] for part in ("<|channel|>", "<|message|>", "<|end|>", "<|call|>")]
    for token in (MARKS["<|return|>"], MARKS["<|call|>"]):
        params = SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=[token])
        (output,) = llm.chat([HELLO], params, use_tqdm=False)
        assert output.outputs[0].finish_reason == "stop" and output.outputs[0].text == ""
    params = SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=ids[2:3])
    (output,) = llm.chat(
        [HELLO], params, use_tqdm=False, chat_template_kwargs={"reasoning_effort": "low"}
    )
    assert output.outputs[0].finish_reason == "length" and output.outputs[0].text == ""
    assert "Reasoning: low\n" in (output.prompt or "")
    params.skip_special_tokens = False
    (output,) = llm.chat([HELLO], params, use_tqdm=False)
    assert output.outputs[0].text == "<|end|>" * 4
