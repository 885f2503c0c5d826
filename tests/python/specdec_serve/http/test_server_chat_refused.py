"""What /v1/chat/completions refuses, and what it takes without need."""

import json
from typing import Any

import pytest

from chat_requests import MESSAGES, PATH, SAMPLING, refusal
from server_world import World
from specdec_native import Engine
from tiny_text_model import only, text_params


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("top_logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": -2}),
        ("logprobs", {"logprobs": 5}),
        ("temperature", {"temperature": 2.5}),
        ("n", {"n": 16385}),
        ("n", {"n": 2, "temperature": 0}),
        ("min_tokens", {"min_tokens": 5, "max_tokens": 2}),
        ("logit_bias", {"logit_bias": {"99999": 1}}),
        ("logit_bias", {"logit_bias": {"no_token": 1}}),
        ("logit_bias", {"logit_bias": {"1": "no number"}}),
        ("stop_token_ids", {"stop_token_ids": [99999]}),
        ("stop_token_ids", {"stop_token_ids": [-1]}),
        ("stop_token_ids", {"stop_token_ids": ["1_0"]}),
        ("allowed_token_ids", {"allowed_token_ids": ["1_0"]}),
        ("max_tokens", {"max_tokens": "1_0"}),
        ("n", {"n": True}),
        ("temperature", {"temperature": "0_1"}),
        ("logit_bias", {"logit_bias": {"1": "1_0"}}),
        ("seed", {"seed": 2**63}),
        ("seed", {"seed": -(2**63) - 1}),
    ],
)
def test_what_cannot_be_served_is_named(world: World, param: str, body: dict[str, Any]) -> None:
    error = refusal(world, **body)
    assert (error["param"], error["type"]) == (param, "BadRequestError")
    assert param in error["message"]


def test_more_logprobs_than_allowed_are_refused(world: World) -> None:
    errors = [
        refusal(world, logprobs=True, top_logprobs=21),
        world.error(PATH, messages=MESSAGES, prompt_logprobs=-1),
    ]
    for error in errors:
        assert "logprobs" in error["message"] and "20" in error["message"]
    assert errors[0]["param"] == "top_logprobs" and errors[0]["message"].startswith("top_logprobs=")


def test_errors_name_what_the_client_sent(world: World) -> None:
    long = "x" * 200
    error = refusal(world, messages=[{"role": "user", "content": long}])
    assert error["param"] == "messages" and error["message"].startswith("messages: the prompt")
    error = world.error("/v1/responses", input=long)
    assert error["param"] == "input" and error["message"].startswith("input: the prompt")
    logprobs: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 21}
    error = world.error("/v1/responses", input="a", **logprobs)
    assert error["param"] == "top_logprobs" and error["message"].startswith("top_logprobs=")
    error = refusal(world, response_format={"type": "json_schema", "json_schema": {}})
    assert error["param"] == "response_format"
    assert error["message"].startswith("response_format.json_schema.name: ")
    error = refusal(world, messages=[*MESSAGES, 7], tool_choice=7)
    assert error["message"].startswith("messages[1]: ")
    assert refusal(world, tool_choice=7)["message"].startswith("tool_choice: ")
    error = world.error("/v1/responses", input=[{"type": "function_call", "arguments": "{}"}])
    assert error["param"] == "input" and error["message"].startswith("input[0] needs")
    error = world.error("/v1/completions", prompt=["a", long])
    assert error["param"] == "prompt" and error["message"].startswith("prompt[1]: has")
    error = refusal(world, min_tokens=5, max_tokens=None, max_completion_tokens=2)
    assert error["param"] == "min_tokens" and "max_completion_tokens=2" in error["message"]
    error = world.error("/v1/responses", input="a", min_tokens=5, max_output_tokens=2)
    assert error["param"] == "min_tokens" and "max_output_tokens=2" in error["message"]
    body = {"continue_final_message": True, "add_generation_prompt": False}
    error = refusal(world, messages=[{**MESSAGES[0], "content": ""}], **body)
    assert error["param"] == "continue_final_message"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9999}},
        {"type": "input_image", "image_url": "https://localhost/a.png"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "https://localhost/a.mp4"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"image_url": "https://localhost/a.png"},
        {"type": "text", "text": "a", "image_url": {"url": "https://localhost/a.png"}},
    ],
)
def test_images_and_sound_are_refused_where_they_are(world: World, part: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    message = {"role": "user", "content": content}
    kind = next(name for name in (part.get("type"), *part) if name not in ("type", "text", None))
    for path, field, error in (
        ("messages[1].content[1]", "messages", refusal(world, messages=[*MESSAGES, message])),
        ("messages[0].content[1]", "messages", world.error("/tokenize", messages=[message])),
        ("input[0].content[1]", "input", world.error("/v1/responses", input=[message])),
    ):
        assert (error["param"], error["type"], error["code"]) == (field, "BadRequestError", 400)
        assert error["message"].startswith(f"{path} is of the type '{kind}'")
        assert "text only" in error["message"] and len(error["message"]) < 300


def test_fields_that_ask_for_what_is_there_are_taken(world: World, engine: Engine) -> None:
    text = only(engine.chat(MESSAGES, text_params(), use_tqdm=False)).text
    harmless = {
        "response_format": {"type": "text"},
        "tools": None,
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "user": "me",
        "store": True,
        "best_of": 3,
        "guided_json": {"type": "object"},
        "guided_regex": "[0-9]+",
        "stop": None,
        "n": None,
        "priority": 0,
        "unknown": {"a": [1]},
    }
    messages = [{**MESSAGES[0], "unknown": "a"}]
    whole = world.ask(PATH, messages=messages, **SAMPLING, **harmless)
    assert whole["choices"][0]["message"]["content"] == text
    assert json.dumps(whole).isascii()
