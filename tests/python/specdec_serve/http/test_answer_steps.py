"""Answers do not depend on how their tokens come in steps: every endpoint, with calls of tools.

An answer is cut into steps in all ways, or in random ones where there are many, and is compared
item for item with the one whose tokens came one by one and with the whole one.
"""

import base64
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import jiter
import pytest
import tokenizers

from core_reports import apply, make_request, report
from specdec_native import RequestOutputKind
from specdec_native.requests.outputs import RequestOutput
from specdec_native.requests.structured_outputs import WrittenGrammar
from specdec_native.text.reasoning import ReasoningStart
from specdec_serve.http.anthropic import _Message
from specdec_serve.http.chat_choices import Deltas, Messages
from specdec_serve.http.completions import _Choices
from specdec_serve.http.protocol.anthropic import MessagesRequest
from specdec_serve.http.protocol.chat import ChatCompletionRequest
from specdec_serve.http.protocol.completions import CompletionRequest
from specdec_serve.http.protocol.responses import ResponsesRequest
from specdec_serve.http.responses import _Answer
from specdec_serve.http.server_options import ServerOptions
from specdec_serve.http.tools.parsers import AnswerFormat
from tiny_tokenizers import byte_level, sentencepiece_like

Steps: TypeAlias = list[list[int]]

KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "bytes": byte_level,
    "sentencepiece": sentencepiece_like,
}
END = {"bytes": 1, "sentencepiece": 2}  # a special token, which texts leave out
NEXT = "<|start|>assistant"
CALL = '<tool_call>{"name": "f", "arguments": {"x": [1, "😀"]}}</tool_call>'
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
# The text, the parser of calls, the text of the messages there are, and the status of the calls.
ANSWERS: dict[str, tuple[str, str, list[str], list[str]]] = {
    "text": ("a < b", "hermes", ["a < b"], []),
    "tags": ("a <to c <tool d", "hermes", ["a <to c <tool d"], []),
    "ends in a tag": ("x <tool_ca", "hermes", ["x <tool_ca"], []),
    "characters": ("😀😀é", "hermes", ["😀😀é"], []),
    "call": (CALL, "hermes", [], ["completed"]),
    "around": (f"Hi 日本{CALL} \n bye 😀", "hermes", ["Hi 日本", "bye 😀"], ["completed"]),
    "several": (f"a{CALL}b{CALL}{CALL}", "hermes", ["a", "b"], ["completed"] * 3),
    "two tags": (f"a <<{CALL} <<b", "hermes", ["a <<", "<<b"], ["completed"]),
    "space": (f"\n \n{CALL}\n", "hermes", [], ["completed"]),
    "only space": ("\n  \n", "hermes", ["\n  \n"], []),
    "empty": ("", "hermes", [""], []),
    "cut": (f"a{CALL[:-20]}", "hermes", ["a"], ["incomplete"]),
    "malformed": (
        '<tool_call>{"name": "f", "arguments": {"x": oops}} é',
        "hermes",
        ["oops}} é"],
        ["incomplete"],
    ),
    "no call": ('a<tool_call>{"x": "é"} b', "hermes", ['a<tool_call>{"x": "é"} b'], []),
    "llama": (
        'Hi {"name": "f", "parameters": {}}; {"a": 1} <|python é',
        "llama3_json",
        ["Hi ", '{"a": 1} <|python é'],
        ["completed"],
    ),
    "channels": (
        f"<|channel|>analysis<|message|>é 😀<|end|>{NEXT}<|channel|>commentary<|message|>Hi 日本"
        f'<|end|>{NEXT}<|channel|>commentary to=functions.f json<|message|>{{"x": "😀"}}<|call|>',
        "openai",
        ["Hi 日本"],
        ["completed"],
    ),
    "two messages": (
        f"<|channel|>commentary<|message|>a <|en<|end|>{NEXT}<|channel|>final<|message|>b <",
        "openai",
        ["a <|en", "b <"],
        [],
    ),
    "no channels": ("to be<|end|> or not", "openai", ["to be", "or not"], []),
    "a cut channel": (
        f'a<|end|>{NEXT}<|channel|>final to=functions.f<|message|>{{"x": 1',
        "openai",
        ["a"],
        ["incomplete"],
    ),
    "thinks": ("<think>\nHm 日本.\n</think>\n\nHi < 😀", "qwen3+hermes", ["Hi < 😀"], []),
    "thinks and calls": (
        f"<think>a <tool_call> b</think>Hi{CALL}\n bye",
        "qwen3+hermes",
        ["Hi", "bye"],
        ["completed"],
    ),
    "thinks in vain": ("<think>a </thin", "qwen3+hermes", [], []),
    "thinks nothing": ("<think>\n\n</think>\n\n a", "qwen3+hermes", ["a"], []),
    "does not think": (" <thin</think>", "qwen3+hermes", [" <thin</think>"], []),
    "required": ('[{"name": "f", "parameters": {"x": 1}}]', "required", [], ["completed"]),
    "named": ('{"x": "日"', "named", [], ["incomplete"]),
    "required in XML": (
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        "required=qwen3_coder",
        [],
        ["completed"],
    ),
    "named in Python": ('[f(x="日', "named=pythonic", [], ["incomplete"]),
}


def ways(ids: Sequence[int]) -> Iterator[Steps]:
    """Ways of cutting the tokens into steps; the first way has one token per step."""
    yield [[token] for token in ids] or [[]]
    cuts = range(1, len(ids))
    if len(ids) <= 9:
        chosen = [c for k in range(len(ids)) for c in itertools.combinations(cuts, k)]
    else:
        draw = random.Random(len(ids))
        chosen = [
            tuple(cut for cut in cuts if draw.random() < share)
            for share in (0, 0.1, 0.2, 0.5, 0.8)
            for _ in range(6)
        ]
    for cut in chosen:
        yield [list(ids[a:b]) for a, b in itertools.pairwise((0, *cut, len(ids)))]


class Generated:
    """Outputs of one answer, and what an endpoint needs to write it."""

    def __init__(
        self, kind: str, parser: str, *, stream: bool, stop: Sequence[str] = (), logprobs: bool
    ) -> None:
        self.request, self.tokenizer = make_request(
            "hello",
            KINDS[kind],
            logprobs=1 if logprobs else None,
            flat_logprobs=True,
            stop=[*stop],
            output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
        )
        reasoning, _, calls = parser.rpartition("+")
        syntax = parser.partition("=")[2]
        if syntax:  # calls are forced in it
            calls = syntax
            self.request.params.structured_outputs = WrittenGrammar(grammar="start: /x/")
        if reasoning:
            self.request.params.reasoning_start = ReasoningStart.OPTIONAL
        self.service: Any = SimpleNamespace(
            engine=SimpleNamespace(tokenizer=self.tokenizer, has_tokenizer=True),
            options=ServerOptions(model_names=("tiny",)),
            answer_format=AnswerFormat.of(
                "", tool_call_parser=calls, reasoning_parser=reasoning or None
            ),
            model_name="tiny",
            max_model_len=4096,
        )
        call = SimpleNamespace(request_id="resp_1", params=self.request.params)
        self.generation: Any = SimpleNamespace(call=call, requests=[self.request])

    def outputs(self, steps: Steps) -> Iterator[RequestOutput]:
        """The expected events after each step."""
        for i, step in enumerate(steps):
            apply(self.request, report((0, step, "length" if i == len(steps) - 1 else None)))
            if self.request.has_news():
                yield self.request.take_output()
            if self.request.finished:
                return


def tokens_of(kind: str, text: str) -> list[int]:
    return KINDS[kind]().encode(text, add_special_tokens=False).ids


def without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in ("id", "call_id")}
    return value


# -- responses


def response_body(parser: str, *, logprobs: bool, stream: bool) -> ResponsesRequest:
    choice: Any = {"required": "required", "named": {"type": "function", "name": "f"}}
    return ResponsesRequest.model_validate(
        {
            "input": "hi",
            "tools": [FUNCTION],
            "tool_choice": choice.get(parser.partition("=")[0], "auto"),
            "stream": stream,
            "include": ["message.output_text.logprobs"] if logprobs else [],
            "top_logprobs": 1 if logprobs else None,
        }
    )


def response_of(
    kind: str, parser: str, steps: Steps, *, logprobs: bool, stream: bool, stop: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """The items of a response, and the events that tell of them."""
    generated = Generated(kind, parser, stream=stream, stop=stop, logprobs=logprobs)
    body = response_body(parser, logprobs=logprobs, stream=stream)
    answer = _Answer(body, body.tool_use(), generated.generation, generated.service)
    written = []
    for output in generated.outputs(steps):
        written += answer.add(output.outputs[0], output.num_cached_tokens)
    written += answer.end()
    return without_ids(answer.response()["output"]), written


def streamed_items(written: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The items as a client puts them together from the deltas."""
    items: list[dict[str, Any]] = []
    for kind, members in written:
        match kind.removeprefix("response."):
            case "output_item.added":
                items.append({"type": members["item"]["type"], "said": "", "logprobs": []})
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                items[members["output_index"]]["said"] += members["delta"]
                items[members["output_index"]]["logprobs"] += members.get("logprobs", [])
    return items


@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANSWERS)
def test_items_of_a_response(name: str, kind: str, logprobs: bool) -> None:
    text, parser, messages, calls = ANSWERS[name]
    ids = [*tokens_of(kind, text), END[kind]]
    whole, _ = response_of(kind, parser, [ids], logprobs=logprobs, stream=False)
    for steps in ways(ids):
        items, written = response_of(kind, parser, steps, logprobs=logprobs, stream=True)
        assert items == whole
        for item, streamed in zip(items, streamed_items(written), strict=True):
            content = item["content"][0] if item["type"] != "function_call" else {}
            said = content["text"] if content else item["arguments"]
            assert streamed["said"] == said
            assert streamed["logprobs"] == content.get("logprobs", [])
            if item["type"] == "message" and logprobs:
                assert content["logprobs"] or not said
    shown = [item["content"][0] for item in whole if item["type"] == "message"]
    assert [content["text"].lstrip(" ") for content in shown] == [m.lstrip(" ") for m in messages]
    assert [item["status"] for item in whole if item["type"] == "function_call"] == calls
    for content in shown if logprobs else ():
        joined = b"".join(bytes(entry["bytes"]) for entry in content["logprobs"])
        assert joined == content["text"].encode()


@pytest.mark.parametrize("stop", [["zz", "b <"], ["never"], ["</tool_call>"]])
def test_items_of_a_response_with_stop_strings(stop: list[str]) -> None:
    """Text that waits for a stop string comes later than its tokens."""
    ids = tokens_of("bytes", f"z a zb {CALL} 😀 b < c")
    whole, _ = response_of("bytes", "hermes", [ids], logprobs=True, stream=False, stop=stop)
    assert whole
    for steps in ways(ids):
        items, _ = response_of("bytes", "hermes", steps, logprobs=True, stream=True, stop=stop)
        assert items == whole


# -- messages


def message_of(
    kind: str, parser: str, steps: Steps, *, stream: bool, stop: Sequence[str] = ()
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """A message in Anthropic's form without ids, and the events that tell of it."""
    choice = {"required": {"type": "any"}, "named": {"type": "tool", "name": "f"}}
    body = MessagesRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4096,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": choice.get(parser.partition("=")[0], {"type": "auto"}),
            "stream": stream,
        }
    )
    generated = Generated(kind, parser, stream=stream, stop=stop, logprobs=False)
    message = _Message(body, body.tool_use(), generated.generation, generated.service)
    written = []
    for output in generated.outputs(steps):
        written += message.add(output.outputs[0], output.num_cached_tokens)
    told: dict[str, Any] = without_ids(message.json())
    return told, written


def streamed_blocks(written: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The blocks as a client puts them together from the deltas."""
    blocks: list[dict[str, Any]] = []
    for kind, members in written:
        if kind == "content_block_start":
            blocks.append({**without_ids(members["content_block"]), "json": ""})
        elif kind == "content_block_delta":
            block, delta = blocks[members["index"]], members["delta"]
            assert members["index"] == len(blocks) - 1
            match delta["type"]:
                case "text_delta":
                    block["text"] += delta["text"]
                case "thinking_delta":
                    block["thinking"] += delta["thinking"]
                case "signature_delta":
                    block["signature"] = delta["signature"]
                case "input_json_delta":
                    block["json"] += delta["partial_json"]
    for block in blocks:
        if text := block.pop("json"):
            block["input"] = jiter.from_json(text.encode(), partial_mode=True)
    return blocks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANSWERS)
def test_blocks_of_a_message(name: str, kind: str) -> None:
    text, parser, messages, calls = ANSWERS[name]
    ids = [*tokens_of(kind, text), END[kind]]
    whole, _ = message_of(kind, parser, [ids], stream=False)
    for steps in ways(ids):
        message, written = message_of(kind, parser, steps, stream=True)
        assert message == whole
        assert streamed_blocks(written) == whole["content"]
    shown = [block["text"] for block in whole["content"] if block["type"] == "text"]
    assert [text.lstrip(" ") for text in shown] == [text.lstrip(" ") for text in messages]
    inputs = [block["input"] for block in whole["content"] if block["type"] == "tool_use"]
    assert len(inputs) == len(calls)
    thoughts = [block for block in whole["content"] if block["type"] == "thinking"]
    assert bool(thoughts) == ("thinks" in name.split() and name != "thinks nothing") or (
        name == "channels"
    )
    assert all(base64.b64decode(b["signature"]).decode() == b["thinking"] for b in thoughts)


@pytest.mark.parametrize("stop", [["zz", "b <"], ["never"], ["</tool_call>"]])
def test_blocks_of_a_message_with_stop_strings(stop: list[str]) -> None:
    ids = tokens_of("bytes", f"z a zb {CALL} 😀 b < c")
    whole, _ = message_of("bytes", "hermes", [ids], stream=False, stop=stop)
    for steps in ways(ids):
        message, written = message_of("bytes", "hermes", steps, stream=True, stop=stop)
        assert message == whole
        assert streamed_blocks(written) == whole["content"]


# -- chats


def chat_body(parser: str, *, logprobs: bool, stream: bool) -> ChatCompletionRequest:
    function = {"type": "function", "function": {"name": "f"}}
    choice: Any = {"required": "required", "named": function}
    return ChatCompletionRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [function],
            "tool_choice": choice.get(parser.partition("=")[0], "auto"),
            "stream": stream,
            "logprobs": logprobs,
            "top_logprobs": 1 if logprobs else None,
        }
    )


def chat_of(kind: str, parser: str, steps: Steps, *, logprobs: bool, stream: bool) -> Any:
    """Content, calls by index, reasoning, logprobs and finish_reason of a chat's choice."""
    generated = Generated(kind, parser, stream=stream, logprobs=logprobs)
    body = chat_body(parser, logprobs=logprobs, stream=stream)
    make = Deltas if stream else Messages
    writer: Any = make(
        body,
        [{"role": "user", "content": "hi"}],
        body.tool_use(),
        generated.generation,
        generated.service,
    )
    content = reasoning = ""
    reason = None
    calls: dict[int, list[str]] = {}
    entries: list[Any] = []
    for output in generated.outputs(steps):
        (part,) = output.outputs
        news = writer.news(0, part, output) if stream else [writer.choice(0, part, output)]
        for choice in map(json.loads, news):
            said = choice["delta"] if stream else choice["message"]
            content += said.get("content") or ""
            reasoning += said.get("reasoning") or ""
            for i, call in enumerate(said.get("tool_calls", [])):
                function = call["function"]
                known = calls.setdefault(call.get("index", i), [function.get("name"), ""])
                known[1] += function["arguments"]
            entries += (choice["logprobs"] or {"content": []})["content"]
            reason = choice["finish_reason"]
    return content, calls, entries, reason, reasoning


@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANSWERS)
def test_choices_of_a_chat(name: str, kind: str, logprobs: bool) -> None:
    text, parser, _, calls = ANSWERS[name]
    ids = [*tokens_of(kind, text), END[kind]]
    whole = chat_of(kind, parser, [ids], logprobs=logprobs, stream=False)
    one_by_one = chat_of(
        kind, parser, [[token] for token in ids] or [[]], logprobs=logprobs, stream=True
    )
    if "incomplete" not in calls:  # else the stream has shown a part of a call
        assert (one_by_one[0] if whole[0] else one_by_one[0].strip()) == whole[0]
        assert one_by_one[1] == whole[1]
    assert one_by_one[2:] == whole[2:]
    for steps in ways(ids):
        assert chat_of(kind, parser, steps, logprobs=logprobs, stream=True) == one_by_one
    if logprobs:
        joined = b"".join(bytes(entry["bytes"]) for entry in whole[2])
        assert joined.decode() == KINDS[kind]().decode([*tokens_of(kind, "hello"), *ids])[5:]


# -- completions


def completion_of(
    kind: str, steps: Steps, *, stream: bool, stop: Sequence[str], echo: bool
) -> dict[str, Any]:
    generated = Generated(kind, "hermes", stream=stream, stop=stop, logprobs=True)
    body = CompletionRequest.model_validate(
        {"prompt": "hello", "logprobs": 1, "stream": stream, "echo": echo}
    )
    writer = _Choices(body, generated.service, [generated.request])
    shown: dict[str, Any] = {"text": ""}
    for output in generated.outputs(steps):
        choice = json.loads(writer.choice(0, output.outputs[0], output))
        shown["text"] += choice["text"]
        shown["finish_reason"] = choice["finish_reason"]
        for name, values in choice["logprobs"].items():
            shown.setdefault(name, []).extend(values)
    return shown


@pytest.mark.parametrize("echo", [True, False])
@pytest.mark.parametrize("stop", [(), ("é!", "b <to c <tool x")])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["😀😀é", "a < b <to c <tool d", "naïve 日本 é! x"])
def test_choices_of_a_completion(kind: str, text: str, stop: Sequence[str], echo: bool) -> None:
    ids = tokens_of(kind, text)
    whole = completion_of(kind, [ids], stream=False, stop=stop, echo=echo)
    for steps in ways(ids):
        assert completion_of(kind, steps, stream=True, stop=stop, echo=echo) == whole
    for begin, token in zip(whole["text_offset"], whole["tokens"], strict=True):
        if whole["finish_reason"] == "length" or begin + len(token) <= len(whole["text"]):
            assert whole["text"][begin : begin + len(token)] in (token, token.lstrip(" "))
