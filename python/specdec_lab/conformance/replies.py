"""What servers answer, in one form for completions and chats, whole and streamed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

_LEAST_LOGPROB = -9999.0  # what OpenAI's API writes for minus infinity
_SHOWN_CHARS = 24  # of a text around its first difference
_ID = "token_id:"  # before the id in a token's key


class Unreadable(Exception):
    """An answer that is not one of OpenAI's API."""


@dataclasses.dataclass(frozen=True)
class Token:
    """A generated token with its logprobs.

    Attributes:
        key: the id where the server says it, otherwise the text.
        logprob: of the token, in nats.
        top: the most likely tokens at this position by key, with their logprobs.
    """

    key: str
    logprob: float
    top: Mapping[str, float]


@dataclasses.dataclass
class Completion:
    """One completion of an answer.

    Attributes:
        text: the content.
        tokens: the tokens with their logprobs; None where the server sent none.
        token_ids: None where the server sent none.
        finish_reason: stop, length, tool_calls, ...
        calls: the tool calls as (name, arguments).
    """

    text: str = ""
    tokens: list[Token] | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    calls: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def ids(self) -> list[int] | None:
        """The token ids, also those that logprobs tell; None where the server sent none."""
        if self.token_ids is not None or self.tokens is None:
            return self.token_ids
        keys = [token.key for token in self.tokens]
        if not all(key.startswith(_ID) for key in keys):
            return None
        return [int(key.removeprefix(_ID)) for key in keys]


@dataclasses.dataclass
class Reply:
    """An answer to one request.

    Attributes:
        status: the HTTP status; 0 where the connection broke.
        error: what went wrong; None for a whole answer.
        completions: by index.
        pieces: the texts of the events of a streamed answer whose index is 0.
        num_output_tokens: as the server counts them; None where it does not.
        num_accepted: accepted draft tokens, where the answer says so.
        seconds: from the call to the end of the answer.
        has_done: whether a stream ended with [DONE].
    """

    status: int = 0
    error: str | None = None
    completions: list[Completion] = dataclasses.field(default_factory=list)
    pieces: list[str] = dataclasses.field(default_factory=list)
    num_output_tokens: int | None = None
    num_accepted: int | None = None
    seconds: float = 0.0
    has_done: bool = False

    @property
    def first(self) -> Completion:
        """The completion of index 0."""
        return self.completions[0]

    def take(self, event: Any) -> None:
        """Adds a whole answer, or an event of a streamed one. Raises Unreadable."""
        if not isinstance(event, Mapping):
            raise Unreadable(f"an answer that is no object: {json.dumps(event)[:80]}")
        if error := event.get("error"):
            raise Unreadable(str(error.get("message") if isinstance(error, Mapping) else error))
        try:
            for choice in event.get("choices") or ():
                self._take_choice(choice)
            usage = event.get("usage")
            if usage and usage.get("completion_tokens") is not None:
                self.num_output_tokens = int(usage["completion_tokens"])
            self._take_drafts(event)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise Unreadable(f"an answer that is not one of OpenAI's API: {error!r}") from error

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        index = int(choice.get("index") or 0)
        while len(self.completions) <= index:
            self.completions.append(Completion())
        completion = self.completions[index]
        message = choice.get("message") or choice.get("delta") or {}
        text = str(choice.get("text") or message.get("content") or "")
        completion.text += text
        if index == 0 and text:
            self.pieces.append(text)
        for call in message.get("tool_calls") or ():
            _take_call(completion, call)
        if (tokens := _tokens(choice.get("logprobs"))) is not None:
            completion.tokens = [*(completion.tokens or ()), *tokens]
        if (ids := choice.get("token_ids")) is not None:
            completion.token_ids = [*(completion.token_ids or ()), *map(int, ids)]
        completion.finish_reason = choice.get("finish_reason") or completion.finish_reason

    def _take_drafts(self, event: Mapping[str, Any]) -> None:
        drafts = (event.get("metrics") or {}).get("speculative_decoding") or {}
        accepted = drafts.get("num_accepted_draft_tokens")
        if accepted is None:  # llama-server's
            accepted = (event.get("timings") or {}).get("draft_n_accepted")
        if accepted is not None:
            self.num_accepted = int(accepted)


def _take_call(completion: Completion, call: Mapping[str, Any]) -> None:
    """Adds a call, or a piece of one that a stream tells by its index."""
    index = int(call.get("index", len(completion.calls)))
    while len(completion.calls) <= index:
        completion.calls.append(("", ""))
    name, arguments = completion.calls[index]
    function = call["function"]
    completion.calls[index] = (
        name + str(function.get("name") or ""),
        arguments + str(function.get("arguments") or ""),
    )


def _tokens(logprobs: Mapping[str, Any] | None) -> list[Token] | None:
    """The tokens of a choice's logprobs, in the form of chats or of completions."""
    if not logprobs:
        return None
    content = logprobs.get("content")
    if content is not None:
        return [
            Token(
                _key_of(entry),
                _number(entry["logprob"]),
                _merged((_key_of(top), top["logprob"]) for top in entry.get("top_logprobs") or ()),
            )
            for entry in content
        ]
    names = logprobs.get("tokens")
    if names is None:
        return None
    tops = logprobs.get("top_logprobs") or [None] * len(names)
    values = logprobs["token_logprobs"]
    return [
        Token(str(name), _number(value), _merged((top or {}).items()))
        for name, value, top in zip(names, values, tops, strict=True)
    ]


def _key_of(entry: Mapping[str, Any]) -> str:
    """What tells a token from others: its id, or its bytes where they are more than its text."""
    if "id" in entry:
        return f"{_ID}{entry['id']}"
    token = str(entry["token"])
    return token if "\ufffd" not in token else f"{token}{entry.get('bytes')}"


def _merged(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Logprobs by key. The probabilities of tokens that the answer does not tell apart add up."""
    merged: dict[str, float] = {}
    for key, value in pairs:
        number = _number(value)
        if key in merged:
            number = math.log(math.exp(merged[key]) + math.exp(number))
        merged[key] = number
    return merged


def _number(value: Any) -> float:
    """A logprob; null, which JSON has for minus infinity, is the least."""
    return _LEAST_LOGPROB if value is None else float(value)


def text_difference(a: Completion, b: Completion) -> str | None:
    """Where two completions' texts, calls or ends differ; None where they do not."""
    if a.text != b.text:
        at = next(
            (i for i, (x, y) in enumerate(zip(a.text, b.text, strict=False)) if x != y),
            min(len(a.text), len(b.text)),
        )
        begin = max(at - _SHOWN_CHARS // 2, 0)
        shown = [repr(c.text[begin : begin + _SHOWN_CHARS]) for c in (a, b)]
        return f"texts differ from character {at}: {shown[0]} / {shown[1]}{_near_tie(a, b)}"
    if a.calls != b.calls:
        return f"calls differ: {a.calls!r} / {b.calls!r}"
    if a.finish_reason != b.finish_reason:
        return f"finish_reason differs: {a.finish_reason} / {b.finish_reason}"
    return None


def _near_tie(a: Completion, b: Completion) -> str:
    """How near the two tokens were where two completions part, if their logprobs say so."""
    for x, y in zip(a.tokens or (), b.tokens or (), strict=False):
        if x.key != y.key:
            other = x.top.get(y.key)
            if other is None:
                return ""
            return f"; the tokens' logprobs are {x.logprob:.6g} and {other:.6g} in the first answer"
    return ""


def id_difference(a: Completion, b: Completion) -> str | None:
    """Where two completions' token ids differ; both must have some."""
    ours, others = a.ids or [], b.ids or []
    if ours == others:
        return None
    at = next(
        (i for i, (x, y) in enumerate(zip(ours, others, strict=False)) if x != y),
        min(len(ours), len(others)),
    )
    return f"token ids differ from token {at}: {ours[at : at + 3]} / {others[at : at + 3]}"


def logprob_difference(a: Completion, b: Completion, tolerance: float) -> str | None:
    """Where the logprobs of the tokens that two completions share differ by more than `tolerance`.

    The comparison ends with the first token that differs: what follows has another context.
    """
    for index, (x, y) in enumerate(zip(a.tokens or (), b.tokens or (), strict=False)):
        shared = [(x.logprob, y.logprob)] if x.key == y.key else []
        shared += [(value, y.top[key]) for key, value in x.top.items() if key in y.top]
        for ours, other in shared:
            if abs(ours - other) > tolerance:
                return (
                    f"logprobs of token {index} differ by {abs(ours - other):.3g}: "
                    f"{ours!r} / {other!r}"
                )
        if x.key != y.key:
            return None
    if tolerance == 0 and len(a.tokens or ()) != len(b.tokens or ()):
        return f"{len(a.tokens or ())} logprobs / {len(b.tokens or ())}"
    return None
