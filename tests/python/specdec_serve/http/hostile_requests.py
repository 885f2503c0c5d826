"""Seeded random requests that are almost right, or not at all, and how answers must look."""

import dataclasses
import json
import random
import string
from typing import Any

import pydantic

from asgi_caller import JSON_HEADERS, Answer, Headers
from specdec_serve.http.errors import is_anthropic
from specdec_serve.http.protocol.anthropic import CountTokensRequest, MessagesRequest
from specdec_serve.http.protocol.chat import ChatCompletionRequest
from specdec_serve.http.protocol.completions import CompletionRequest
from specdec_serve.http.protocol.infill import InfillRequest
from specdec_serve.http.protocol.responses import ResponsesRequest
from specdec_serve.http.protocol.tokenize import DetokenizeRequest, TokenizeRequest

# Written as JSON by Python's encoder, which also writes NaN and Infinity.
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 1.5, -0.0, 1e-320, 1e308, 2**31, -(2**31) - 1, 2**53 + 1),
    *(2**63, -(2**63), 2**64, 10**30, float("nan"), float("inf"), float("-inf")),
    *("", "a", "1", "nan", "\x00", "\ud800", "\udfff\ud800", "\U0001f600", "é" * 300, " " * 2000),
    *([], [None], [[]], [[1], []], [1, 2, 3], [-1], [2**70], ["a"], ["\ud83d"], [1.5], [True]),
    *({}, {"a": 1}, {"type": "x"}, {"role": "user", "content": "a"}, {"1": 1e400}, {"0": []}),
    *({"": ""}, [{}], [{"role": "user"}], [{"role": 1, "content": 2}], [["a"], 1], {"text": None}),
]
# Beginnings of what structured output and tools ask for, mixed with the others.
STRUCTURES: list[Any] = [
    *("auto", "required", "none", {"type": "function", "function": {"name": "f"}}),
    *({"type": "function", "name": "f"}, {"type": "json_object"}, {"json_object": True}),
    *({"regex": "["}, {"regex": "a{1,99999999}"}, {"choice": ["a"]}, {"grammar": "start: start"}),
    *({"format": {"type": "json_object"}}, {"json": {"$ref": "#"}}, {"json": "{"}),
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}},
    {"type": "structural_tag", "structures": [{"begin": "a", "end": 1}], "triggers": ["a"]},
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "thing"}}}],
    [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    *([{"name": "f", "input_schema": {"type": "object"}}], {"type": "any"}, {"type": "tool"}),
]
STRUCTURED_FIELDS = (
    *("tools", "tool_choice", "response_format", "structured_outputs", "text", "output_format"),
)
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/v1/models/tiny",
    "/health",
    "/ping",
    "/version",
    "/load",
    "/tokenize",
    "/detokenize",
    "/v1/responses",
    "/v1/embeddings",
    "/infill",
    "/server_info",
    "/reset_prefix_cache",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/metrics",
    "/tokenizer_info",
    "/openapi.json",
    "/",
    "/page/main.js",
)
BODIES: dict[str, type[pydantic.BaseModel]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/infill": InfillRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW", "get", "")
CONTENT_TYPES = (
    *(b"", b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data", b"*/*"),
    *(b"application/json; charset=utf-16", b"application/json;;;", b"\xff\xfe", b"a" * 5000),
    b"multipart/form-data; boundary=x",
)


@dataclasses.dataclass
class HostileRequest:
    """One request."""

    method: str
    path: str
    headers: Headers
    body: bytes
    query: bytes = b""


class RequestMaker:
    """Makes requests from a seed: the same ones every time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def make(self) -> HostileRequest:
        """The next request."""
        draw = self._random
        kinds = [self._odd_fields, self._broken_text, self._elsewhere, self._odd_headers]
        return draw.choices(kinds, weights=[6, 3, 1, 1])[0]()

    def good_body(self) -> tuple[str, dict[str, Any]]:
        """A path and a body that is right."""
        draw = self._random
        body: dict[str, Any] = {
            "model": "tiny",
            "max_tokens": draw.randint(1, 3),
            "temperature": draw.choice([0, 0.5, 1]),
            "seed": draw.randrange(1000),
            "stream": draw.random() < 0.3,
        }
        if draw.random() < 0.4:
            return "/v1/completions", {**body, "prompt": draw.choice(["abc", [5, 6], ["a", "b"]])}
        if draw.random() < 0.1:
            body = {"model": "tiny", "prompt": "abc", "tokens": [5, 6]}
            return draw.choice(["/tokenize", "/detokenize"]), body
        if draw.random() < 0.1:
            body["n_predict"] = body.pop("max_tokens")
            extra = draw.choice([[], [{"filename": "a", "text": "b"}]])
            gap = {"input_prefix": "ab", "input_suffix": "c", "input_extra": extra}
            return "/infill", {**body, **gap}
        if draw.random() < 0.2:
            body["max_output_tokens"] = body.pop("max_tokens")
            return "/v1/responses", {
                **body,
                "input": draw.choice(["hi", [{"role": "user", "content": "hi"}]]),
            }
        content: Any = draw.choice(["hello", [{"type": "text", "text": "hello"}]])
        body["messages"] = [{"role": "user", "content": content}]
        if draw.random() < 0.2:
            return draw.choice(["/v1/messages", "/v1/messages/count_tokens"]), body
        return "/v1/chat/completions", body

    def _odd_fields(self) -> HostileRequest:
        draw = self._random
        path, body = self.good_body()
        fields = [*BODIES[path].model_fields, "best_of", "guided_json", "extra"]
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            body[draw.choice(fields)] = self._value(draw.choice([0, 0, 1, 2]))
        while draw.random() < 0.3:
            body[draw.choice(STRUCTURED_FIELDS)] = draw.choice(STRUCTURES)
        if draw.random() < 0.2 and "messages" in body and body["messages"]:
            body["messages"] = self._inside(body["messages"])
        if draw.random() < 0.03:  # deep, but perhaps not too deep for anything
            body[draw.choice(fields)] = self._nested(draw.choice([50, 200, 400, 900]))
        return HostileRequest("POST", path, JSON_HEADERS, _json(body))

    def _value(self, depth: int) -> Any:
        draw = self._random
        if depth == 0:
            return draw.choice(ODD_VALUES)
        if draw.random() < 0.5:
            return [self._value(depth - 1) for _ in range(draw.randint(0, 3))]
        return {str(draw.choice(ODD_VALUES)): self._value(depth - 1)}

    def _inside(self, messages: Any) -> Any:
        draw = self._random
        if not isinstance(messages, list) or not isinstance(messages[0], dict):
            return messages
        key = draw.choice([*messages[0], "tool_calls", "name", "tool_call_id", "refusal"])
        return [{**messages[0], key: self._value(draw.randint(0, 2))}]

    def _nested(self, depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value] if self._random.random() < 0.5 else {"a": value}
        return value

    def _broken_text(self) -> HostileRequest:
        draw = self._random
        path, body = self.good_body()
        text = _json(body)
        kind = draw.randrange(8)
        if kind == 0:
            text = text[: draw.randrange(len(text))]
        elif kind == 1:
            changed = bytearray(text)
            for _ in range(draw.randint(1, 4)):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            text = bytes(changed)
        elif kind == 2:
            at = draw.randrange(len(text))
            text = text[:at] + draw.randbytes(draw.randint(1, 8)) + text[at:]
        elif kind == 3:
            codec = draw.choice(["utf-16", "utf-32", "utf-8-sig", "utf-16-be", "cp037", "utf-7"])
            text = text.decode().encode(codec)
        elif kind == 4:  # the same key twice
            key, value = draw.choice(list(body)), json.dumps(draw.choice(ODD_VALUES))
            text = text[:-1] + f',"{key}":{value}}}'.encode()
        elif kind == 5:
            depth = draw.choice([10, 1000, 100_000])
            opening, closing = draw.choice([(b"[", b"]"), (b'{"a":', b"}")])
            inner = opening * depth + b"1" + (closing * depth if draw.random() < 0.5 else b"")
            text = draw.choice([inner, b'{"prompt":' + inner + b"}", text[:-1] + b',"x":' + inner])
        elif kind == 6:
            digits = draw.choice([b"1" * 5000, b"1e99999", b"-1e-99999", b"0x10", b"01", b"1_0"])
            field = draw.choice([b"max_tokens", b"seed", b"temperature", b"n", b"logit_bias"])
            text = text[:-1] + b',"' + field + b'":' + digits + b"}"
        else:
            text = draw.choice([b"", b"null", b"3", b'"x"', b"[]", b"{}", draw.randbytes(40)])
        return HostileRequest("POST", path, JSON_HEADERS, text)

    def _elsewhere(self) -> HostileRequest:
        draw = self._random
        path = draw.choice(PATHS)
        if draw.random() < 0.5:
            letters = string.printable + "é\udcff\x00%"
            path += "/" + "".join(draw.choice(letters) for _ in range(draw.randint(0, 12)))
        body = draw.choice([b"", b"{}", _json(self.good_body()[1]), draw.randbytes(20)])
        query = draw.choice([b"", b"a=b&a", b"\xff=%zz", b"stream=true&" * 300])
        return HostileRequest(draw.choice(METHODS), path, JSON_HEADERS, body, query)

    def _odd_headers(self) -> HostileRequest:
        draw = self._random
        path, body = self.good_body()
        headers: Headers = [(b"host", b"test"), (b"content-type", draw.choice(CONTENT_TYPES))]
        if draw.random() < 0.5:
            headers[1] = (b"content-type", b"application/json")
            odd = draw.choice(
                [b"", b"\xff\x80", b"a" * 3000, b"1", b"-1", b"a, b", b"Bearer", b"*", b"identity"]
            )
            names = (
                *(b"x-request-id", b"authorization", b"accept", b"accept-encoding", b"origin"),
                *(b"content-encoding", b"expect", b"range", b"cookie", b"x-forwarded-for"),
                *(b"access-control-request-method", b"if-none-match", b"content-length"),
            )
            headers.append((draw.choice(names), odd))
        return HostileRequest("POST", path, headers, _json(body))


def check_answer(request: HostileRequest, answer: Answer) -> None:
    """Raises AssertionError unless the answer is a good one or an error of the client's."""
    assert 200 <= answer.status < 300 or 400 <= answer.status < 500, "the server blames itself"
    kind = answer.headers.get("content-type", "")
    if request.method.upper() == "HEAD":
        return
    if answer.status >= 400 and is_anthropic(request.path):
        told = json.loads(answer.body)
        assert set(told) == {"type", "error", "request_id"} and told["error"]["message"]
    elif answer.status >= 400:
        check_error(json.loads(answer.body)["error"], answer.status)
    elif kind.startswith("text/event-stream"):
        events = answer.body.split(b"\n\n")
        if request.path in ("/v1/responses", "/v1/messages"):  # whose last event says the end
            assert answer.body.rstrip().endswith(b"}")
            return
        assert events[-2:] == [b"data: [DONE]", b""], "a stream ends with [DONE]"
        for event in events[:-2]:
            assert event.startswith(b"data: ")
            chunk = _parse(event.removeprefix(b"data: "))
            if "error" in chunk:
                assert chunk["error"]["code"] < 500, "the server blames itself"
    elif kind.startswith("application/json"):
        _parse(answer.body)


def check_error(error: Any, status: int) -> None:
    """Raises AssertionError unless this is an error as OpenAI's clients read them."""
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and isinstance(error["message"], str)
    assert len(error["message"]) < 2000, "what a client sent is cut"
    assert isinstance(error["type"], str) and error["code"] == status
    assert error["param"] is None or isinstance(error["param"], str)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _parse(text: bytes) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text.decode("utf-8", "strict"), parse_constant=refuse)
