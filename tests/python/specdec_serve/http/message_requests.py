"""Requests to /v1/messages by Anthropic's client, whole and streamed."""

import itertools
from typing import Any

import anthropic
import pydantic
from anthropic.types import Message, RawMessageStreamEvent

from server_world import MODEL, World
from tiny_text_model import TEXT_TOKEN_IDS

PATH = "/v1/messages"
HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
# Anthropic's API has no fields for these; extra fields of a body are vLLM's.
SAMPLING: dict[str, Any] = {"seed": 5, "allowed_token_ids": TEXT_TOKEN_IDS, "ignore_eos": True}

_EVENTS: Any = pydantic.TypeAdapter(RawMessageStreamEvent)
_TEXT_DELTAS = {"text_delta": "text", "thinking_delta": "thinking"}


def client_of(world: World, **options: Any) -> anthropic.Anthropic:
    """A client that asks once; `options` are those of the client."""
    given = {"api_key": "EMPTY", "max_retries": 0, **options}
    return anthropic.Anthropic(base_url=world.url, **given)


def ask(world: World, **body: Any) -> Message:
    """The message, which has the form that the client declares, and is the same streamed."""
    body = {"model": MODEL, "max_tokens": 24, "messages": [HELLO], **body}
    whole = Message.model_validate(world.ask(PATH, **body), strict=True)
    assert whole.id.startswith("msg_") and (whole.type, whole.role) == ("message", "assistant")
    extra = {
        key: body.pop(key) for key in [*body] if key not in ("model", "max_tokens", "messages")
    }
    with client_of(world) as client:
        with client.messages.stream(**body, extra_body=extra) as stream:
            events = [event.to_dict() for event in stream._raw_stream]
        check_events(events)
        with client.messages.stream(**body, extra_body=extra) as stream:
            final = stream.get_final_message()
    assert comparable(final) == comparable(whole)
    assert put_together(events) == [
        {key: value for key, value in block.items() if key not in ("input", "id")}
        for block in comparable(whole)["content"]
    ]
    return whole


def check_events(events: list[dict[str, Any]]) -> None:
    """Raises unless the events have the client's form and Anthropic's order."""
    for event in events:
        _EVENTS.validate_python(event)
    first, *middle, delta, last = events
    assert first["type"] == "message_start" and first["message"]["content"] == []
    assert (delta["type"], last["type"]) == ("message_delta", "message_stop")
    assert delta["delta"]["stop_reason"] is not None
    of_blocks = [
        (index, [event["type"].removeprefix("content_block_") for event in group])
        for index, group in itertools.groupby(middle, key=lambda event: event["index"])
    ]
    assert [index for index, _ in of_blocks] == [*range(len(of_blocks))]  # one after the other
    for _, (start, *deltas, stop) in of_blocks:
        assert (start, {*deltas} <= {"delta"}, stop) == ("start", True, "stop")


def put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks by their deltas alone, but for the input of tools."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            block = {**event["content_block"]}
            block.pop("input", None)
            block.pop("id", None)
            blocks.append(block)
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if (name := _TEXT_DELTAS.get(delta["type"])) is not None:
                blocks[event["index"]][name] += delta[name]
            elif delta["type"] == "signature_delta":
                blocks[event["index"]]["signature"] = delta["signature"]
    return blocks


def comparable(message: Message) -> dict[str, Any]:
    """What two answers to one request have in common: not ids, and not what the cache had."""
    told = message.to_dict(exclude_none=True, mode="json")
    content = [
        {key: value for key, value in block.items() if key != "id"}
        for block in told["content"]  # type: ignore[attr-defined]
    ]
    usage = message.usage
    num_input = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    return {
        "content": content,
        "stop": (message.stop_reason, message.stop_sequence),
        "model": message.model,
        "tokens": (num_input, usage.output_tokens, usage.output_tokens_details),
    }


def text_of(message: Message) -> str:
    """The text of a message of one text."""
    (block,) = message.content
    assert block.type == "text"
    return block.text


def refusal(world: World, status: int = 400, path: str = PATH, **body: Any) -> str:
    """The message of the error, which has Anthropic's form and is the same for a stream."""
    given = {"model": MODEL, "max_tokens": 24, "messages": [HELLO], **body}
    if path != PATH:
        del given["max_tokens"]
    messages = []
    for stream in (False, True):
        response = world.post(path, **given, **({"stream": True} if stream else {}))
        assert response.status_code == status, response.text
        error = response.json()
        assert set(error) == {"type", "error", "request_id"} and error["type"] == "error"
        assert set(error["error"]) == {"type", "message"}
        assert error["request_id"] == response.headers["request-id"]
        messages.append(error["error"]["message"])
    assert messages[0] == messages[1]
    return str(messages[0])
