"""Requests whose answers must be the same on several replicas, and streams put together."""

from typing import Any

from server_world import World

MESSAGES = [{"role": "user", "content": "Tell me of the sea"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAMPLED = {"temperature": 1.0, "seed": 7}

# By name: the path, and the body but for max_tokens.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": "abc", "temperature": 0, "ignore_eos": True}),
    "sampled": (COMPLETIONS, {"prompt": "abc", **SAMPLED, "ignore_eos": True}),
    "n": (COMPLETIONS, {"prompt": "abc", **SAMPLED, "n": 2, "ignore_eos": True}),
    "prompts": (
        COMPLETIONS,
        {"prompt": ["ab", "xyz"], **SAMPLED, "echo": True, "ignore_eos": True},
    ),
    "logprobs": (COMPLETIONS, {"prompt": "abc", **SAMPLED, "logprobs": 2, "ignore_eos": True}),
    "ids": (COMPLETIONS, {"prompt": "abc", **SAMPLED, "return_token_ids": True}),
    "chat": (
        CHAT,
        {"messages": MESSAGES, **SAMPLED, "stop": ["qq", "zx", "Q!"], "ignore_eos": True},
    ),
    "chat logprobs": (
        CHAT,
        {"messages": MESSAGES, **SAMPLED, "logprobs": True, "top_logprobs": 2, "n": 2},
    ),
    "tools": (CHAT, {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", **SAMPLED}),
}


def streamed(world: World, name: str, max_tokens: int) -> list[dict[str, Any]]:
    """The choices of a request's stream."""
    path, body = REQUESTS[name]
    more = {"stream_options": {"include_usage": True}}
    events = world.events(path, **body, **more, model="tiny", max_tokens=max_tokens)
    return together(events)


def together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Everything that the chunks of each choice say, in one, and the usage."""
    assert len({event["id"] for event in events}) == 1
    assert len({event["created"] for event in events}) == 1
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for chunk in event["choices"]:
            whole = choices.setdefault(chunk["index"], {"ended": 0, "calls": [], "roles": 0})
            delta = chunk.get("delta", {})
            whole["roles"] += "role" in delta
            text = chunk.get("text") or delta.get("content") or ""
            whole["text"] = whole.get("text", "") + text
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    whole["calls"].append({"name": call["function"]["name"], "arguments": ""})
                whole["calls"][-1]["arguments"] += call["function"].get("arguments") or ""
            for key, values in (chunk.get("logprobs") or {}).items():
                whole.setdefault(key, []).extend(values or [])
            whole.setdefault("token_ids", []).extend(chunk.get("token_ids") or [])
            if chunk["finish_reason"] is not None:
                whole["ended"] += 1
                whole["end"] = (chunk["finish_reason"], chunk.get("stop_reason"))
    usage = events[-1]["usage"]
    return [*(choices[index] for index in sorted(choices)), usage]
