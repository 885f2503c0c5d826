"""`specdec-native verify`: our server keeps every promise, and a doctored one is found out."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from doctored import Body, Doctored, Fault, Traffic
from server_world import serving
from specdec_lab.conformance.experiments import NAMES, all_questions
from specdec_lab.conformance.experiments.base import Subjects
from specdec_lab.conformance.rows import Row, Verdict
from specdec_lab.conformance.run import run
from specdec_lab.conformance.server import Server, meet_all
from specdec_native import Engine
from tiny_text_model import add_byte_text, lengthen

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "draft_length_policy": "fixed"}
NUM_TOKENS = 24
# Questions of speed are asked by a clock, and not in tests.
UNTIMED = tuple(name for name in NAMES if name != "speed")


@pytest.fixture(scope="module")
def long_model(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lengthen(add_byte_text(checkpoint("llama"), tmp_path_factory.mktemp("long") / "llama"))


@pytest.fixture(scope="module")
def engines(long_model: Path) -> Iterator[tuple[Engine, Engine]]:
    """A tiny model with drafts and without."""
    with (
        Engine(long_model, dtype="float32", speculative_config=DRAFTS) as drafted,
        Engine(long_model, dtype="float32") as plain,
    ):
        yield drafted, plain


def ask(
    engines: tuple[Engine, Engine],
    names: tuple[str, ...] = UNTIMED,
    *,
    wrap: Callable[[ASGIApp], ASGIApp] | None = None,
    with_plain: bool = True,
) -> list[Row]:
    """The rows of one round, from a server that is wrapped and one without drafts."""
    with contextlib.ExitStack() as stack:
        urls = [
            stack.enter_context(serving(engine, made)).url
            for engine, made in zip(engines, (wrap, None), strict=True)
        ]

        async def work() -> list[Row]:
            servers = [Server(url) for url in urls]
            await meet_all(servers)
            plain = servers[1] if with_plain else None
            rows = await run(all_questions(Subjects(servers[0], plain, NUM_TOKENS), names), 0.0)
            for server in servers:
                await server.close()
            return rows

        return asyncio.run(work())


def broken(rows: list[Row]) -> set[str]:
    return {f"{row.subject}: {row.name}" for row in rows if row.num_broken}


def test_our_server_keeps_every_promise(engines: tuple[Engine, Engine]) -> None:
    rows = ask(engines)
    assert {f"{row.subject}: {row.name}": row.detail for row in rows if row.num_broken} == {}
    assert [row.name for row in rows if row.verdict is Verdict.NOT_ASKED] == []


def test_a_server_of_chats_alone_is_asked_by_chats(engines: tuple[Engine, Engine]) -> None:
    rows = ask(engines, wrap=without_completions)
    assert {f"{row.subject}: {row.name}": row.detail for row in rows if row.num_broken} == {}
    assert [row.name for row in rows if row.verdict is Verdict.NOT_ASKED] == []


def without_completions(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/v1/completions":
            scope = {**scope, "path": "/nothing"}
        await app(scope, receive, send)

    return serve


def test_without_a_plain_server_rows_say_what_is_missing(engines: tuple[Engine, Engine]) -> None:
    rows = ask(engines, ("drafts", "structure"), with_plain=False)
    missing = {row.name: row.detail for row in rows if row.verdict is Verdict.NOT_ASKED}
    assert set(missing) == {
        "same text",
        "same token ids",
        "logprobs within 0.001",
        "logprobs to the last bit",
        "response_format: with drafts as without",
        "named tool: with drafts as without",
    }
    assert all("without drafts" in why for why in missing.values())


# -- planted faults


OBJECTS = ("logit_bias", "response_format", "stream_options")  # whose right values are objects


def drop(*names: str) -> Callable[[Body, Traffic], None]:
    """Ignores members of requests. Values of a wrong type are refused, as by a server that reads
    the field and does nothing with it."""

    def change(body: Body, _traffic: Traffic) -> None:
        for name in names:
            if not isinstance(body.get(name), dict) or name in OBJECTS:
                body.pop(name, None)

    return change


def other_text(condition: Callable[[Body, Traffic], bool]) -> Callable[[Body, Traffic], None]:
    """Answers with a penalty that nobody asked for, where a condition holds."""

    def change(body: Body, traffic: Traffic) -> None:
        if condition(body, traffic):
            body["presence_penalty"] = 2.0

    return change


def each_choice(change: Callable[[dict[str, Any]], None]) -> Callable[[Body, Body], None]:
    def answer(body: Body, _request: Body) -> None:
        for choice in body["choices"]:
            change(choice)

    return answer


def drop_logprob(choice: dict[str, Any]) -> None:
    logprobs = choice.get("logprobs") or {}
    if len(logprobs.get("tokens") or ()) < 2:
        return
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        logprobs[name] = logprobs[name][1:]


def drop_alternatives(choice: dict[str, Any]) -> None:
    logprobs = choice.get("logprobs") or {}
    if logprobs.get("top_logprobs"):  # the first token keeps its own
        first, *others = logprobs["top_logprobs"]
        logprobs["top_logprobs"] = [first, *({} for _ in others)]


def drop_streamed_logprobs(answer: Body, request: Body) -> None:
    for choice in answer["choices"] if request.get("stream") else ():
        if choice.get("finish_reason"):
            choice["logprobs"] = None


def no_logprobs_and_other_text(body: Body, _traffic: Traffic) -> None:
    body.pop("logprobs", None)
    body["presence_penalty"] = 2.0


def shift_logprobs(nats: float) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        logprobs = choice.get("logprobs") or {}
        if logprobs.get("token_logprobs"):
            logprobs["token_logprobs"] = [value - nats for value in logprobs["token_logprobs"]]

    return change


def longer(body: Body, _traffic: Traffic) -> None:
    body["max_tokens"] = body.get("max_tokens", 16) + 1


def share_seed(body: Body, _traffic: Traffic) -> None:
    if not isinstance(body.get("seed"), dict):
        body["seed"] = 1


def ignore_seed(body: Body, traffic: Traffic) -> None:
    if "seed" in body:
        traffic.num_seeds = getattr(traffic, "num_seeds", 0) + 1  # type: ignore[attr-defined]
        body["seed"] = traffic.num_seeds  # type: ignore[attr-defined]


def keep_stop(body: Body, _traffic: Traffic) -> None:
    if body.get("stop"):
        body["include_stop_str_in_output"] = True


def sharpen(body: Body, _traffic: Traffic) -> None:
    if body.get("temperature") == 1:
        body["temperature"] = 0.7


def one_completion(body: Body, _traffic: Traffic) -> None:
    body.pop("n", None)


def lose_last_event(answer: Body, request: Body) -> None:
    for choice in answer["choices"] if request.get("stream") else ():
        if choice.get("finish_reason") and choice.get("text"):
            choice["text"] = choice["text"][:-1]


def cut_character(answer: Body, request: Body) -> None:
    for choice in answer["choices"] if request.get("stream") else ():
        if choice.get("text"):
            choice["text"] = "\ufffd" + choice["text"][1:]


def half_arguments(choice: dict[str, Any]) -> None:
    for call in (choice.get("message") or {}).get("tool_calls") or ():
        call["function"]["arguments"] = call["function"]["arguments"][:-1]


def first_seen(body: Body, traffic: Traffic) -> bool:
    return json.dumps(body.get("prompt")) not in traffic.seen and bool(body.get("logprobs"))


FAULTS: dict[str, tuple[str, Fault, str]] = {
    # What is planted: the subject that is asked, the fault, a row that must break.
    "drafts change answers": (
        "drafts",
        Fault(other_text(lambda body, _: body.get("temperature") == 0)),
        "drafts on and off, greedy: same text",
    ),
    "drafts change logprobs a bit": (
        "drafts",
        Fault(answer=each_choice(shift_logprobs(1e-6))),
        "drafts on and off, greedy: logprobs to the last bit",
    ),
    "drafts change logprobs much": (
        "drafts",
        Fault(answer=each_choice(shift_logprobs(1e-2))),
        "drafts on and off, greedy: logprobs within 0.001",
    ),
    "a batch changes answers": (
        "neighbours",
        Fault(other_text(lambda _, traffic: traffic.num_running > 1)),
        "alone and in a batch: same text",
    ),
    "streams beside it change an answer": (
        "neighbours",
        Fault(other_text(lambda body, traffic: traffic.num_streams > 0 and not body.get("stream"))),
        "beside cancelled requests: same text",
    ),
    "a warm cache changes answers": (
        "neighbours",
        Fault(other_text(first_seen)),
        "prefix cache cold and warm: same text",
    ),
    "a stream loses its end": (
        "streams",
        Fault(answer=lose_last_event),
        "streamed and whole: same text",
    ),
    "a stream cuts a character": (
        "streams",
        Fault(answer=cut_character),
        "streamed and whole: no event cuts a character",
    ),
    "a token too many": ("limits", Fault(longer), "limits: max_tokens is exact"),
    "a stop string is kept": (
        "limits",
        Fault(keep_stop),
        "limits: stop: the text ends before the string",
    ),
    "stop is ignored": ("limits", Fault(drop("stop")), "limits: stop, streamed"),
    "stop_token_ids is ignored": (
        "limits",
        Fault(drop("stop_token_ids")),
        "limits: stop_token_ids ends the answer at the token",
    ),
    "min_tokens is ignored": ("limits", Fault(drop("min_tokens")), "limits: min_tokens is kept"),
    "logprobs are ignored": (
        "parameters",
        Fault(drop("logprobs")),
        "parameters: logprobs come when they are asked for",
    ),
    "alternatives are dropped": (
        "parameters",
        Fault(answer=each_choice(drop_alternatives)),
        "parameters: each token has its most likely alternatives",
    ),
    "a stream drops logprobs": (
        "streams",
        Fault(answer=drop_streamed_logprobs),
        "streamed and whole: as many logprobs streamed as whole",
    ),
    "usage is not streamed": (
        "streams",
        Fault(drop("stream_options")),
        "streamed and whole: usage comes, with the same count of tokens",
    ),
    "drafts change answers of a server without logprobs": (
        "drafts",
        Fault(no_logprobs_and_other_text),
        "drafts on and off, greedy: same text",
    ),
    "a logprob is dropped": (
        "parameters",
        Fault(answer=each_choice(drop_logprob)),
        "parameters: logprobs have one entry per token",
    ),
    "penalties are ignored": (
        "parameters",
        Fault(drop("presence_penalty", "frequency_penalty")),
        "parameters: frequency_penalty changes a repetitive answer",
    ),
    "one penalty is ignored": (
        "parameters",
        Fault(drop("presence_penalty")),
        "parameters: penalties: each token is the best after its penalty",
    ),
    "logit_bias is ignored": (
        "parameters",
        Fault(drop("logit_bias")),
        "parameters: logit_bias of 100 forces the token",
    ),
    "greedy draws": (
        "parameters",
        Fault(lambda body, _: body.update(temperature=1.0)),
        "parameters: greedy takes the most likely token",
    ),
    "seeds are shared": ("seeds", Fault(share_seed), "seeds: other seeds give other answers"),
    "seeds are shared by requests without": (
        "seeds",
        Fault(lambda body, _: body.setdefault("seed", 7)),
        "seeds: requests without a seed differ",
    ),
    "seeds are ignored": (
        "seeds",
        Fault(ignore_seed),
        "seeds: one seed gives one answer, alone and in a batch",
    ),
    "n is ignored": ("seeds", Fault(one_completion), "seeds: n completions of one seed differ"),
    "a draw is biased": (
        "sampling",
        Fault(sharpen),
        "sampling: temperature 1: tokens follow the logprobs",
    ),
    "top_p is ignored": (
        "sampling",
        Fault(drop("top_p")),
        "sampling: top_p 0.8: tokens follow the logprobs",
    ),
    "top_k is ignored": (
        "sampling",
        Fault(drop("top_k")),
        "sampling: top_k 5: tokens follow the logprobs",
    ),
    "response_format is ignored": (
        "structure",
        Fault(drop("response_format")),
        "structure: response_format: valid",
    ),
    "arguments lose their end": (
        "structure",
        Fault(answer=each_choice(half_arguments)),
        "structure: named tool: valid",
    ),
}


def test_a_stream_without_done_is_read_and_said(engines: tuple[Engine, Engine]) -> None:
    names = broken(ask(engines, ("streams",), wrap=without_done))
    assert names == {"streamed and whole: a stream ends with [DONE]"}


def without_done(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            if b"data: [DONE]" in message.get("body", b""):
                kept = message["body"].replace(b"data: [DONE]\n\n", b"")
                message = {**message, "body": kept}
            await send(message)

        await app(scope, receive, pass_on)

    return serve


def test_a_server_that_refuses_other_fields_than_openais_is_asked_the_rest(
    engines: tuple[Engine, Engine],
) -> None:
    rows = ask(engines, ("limits", "parameters"), wrap=lambda app: Doctored(app, Fault(strict)))
    assert broken(rows) == set()
    missing = {row.name: row.detail for row in rows if row.verdict is Verdict.NOT_ASKED}
    assert missing["min_tokens is kept"] == "the server has no stop_token_ids"
    assert "logit_bias of 100 forces the token" not in missing


def strict(body: Body, _traffic: Traffic) -> None:
    """Makes the server refuse a request with a field that OpenAI's API lacks."""
    if body.keys() & {"stop_token_ids", "min_tokens", "top_k", "return_token_ids", "min_p"}:
        body["max_tokens"] = "refused"


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_breaks_its_row(name: str, engines: tuple[Engine, Engine]) -> None:
    subject, fault, row = FAULTS[name]
    assert row in broken(ask(engines, (subject,), wrap=lambda app: Doctored(app, fault)))
