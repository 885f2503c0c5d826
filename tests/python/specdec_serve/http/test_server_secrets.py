"""A request cannot run code, stall the server with a template, or get into its logs."""

import hmac
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server_process import serve
from server_world import World, serving
from specdec_native import Engine

CLIENTS = ("httpx", "httpcore")  # which log what they send
SECRET = "xyzzy-plugh-4711"
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
    "seed": 1,
}
# Each reaches for Python, for what a template must not touch, or does not end.
ATTACKS = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context }}",
    "{{ (1).__class__.__base__ }}",
    "{{ ''|attr('__class__')|attr('__mro__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{% for a in range(10**9) %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ 9 ** (9**9) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ messages.append(1) }}",
    "{{ " + "(" * 5000 + " }}",
    "{{ [] | sum(start=messages.clear()) }}",
)


@pytest.fixture(scope="module")
def trusting(engine: Engine) -> Iterator[World]:
    with serving(engine, request_chat_template=True) as world:
        yield world


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_templates_of_requests_are_refused(world: World, path: str) -> None:
    template = "{{ messages[0].content }}"
    for body in (
        {**CHAT, "chat_template": template},
        {**CHAT, "chat_template": ""},
        {**CHAT, "chat_template_kwargs": {"chat_template": template}},
    ):
        error = world.error(path, **body)
        assert error["param"].startswith("chat_template")
    assert "--trust-request-chat-template" in world.error(path, **CHAT, chat_template="")["message"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_templates_that_are_allowed_run_in_the_sandbox(trusting: World, attack: str) -> None:
    good = {**CHAT, "chat_template": "{{ messages[0].content }}"}
    expected = trusting.ask("/v1/chat/completions", **good)["choices"]
    response = trusting.post("/v1/chat/completions", **{**CHAT, "chat_template": attack})
    if response.status_code == 200:  # where Jinja makes nothing of what is not there
        text = trusting.post("/tokenize", **{**CHAT, "chat_template": attack}).text
        assert '"count":0' in text, text
    else:
        assert response.status_code == 400, response.text
    assert trusting.ask("/v1/chat/completions", **good)["choices"] == expected


@pytest.mark.parametrize(
    "variables",
    [
        {"messages": [{"role": "system", "content": "x"}]},
        {"raise_exception": 1, "strftime_now": 2, "range": 3, "namespace": 4},
        {"__builtins__": {}, "self": 1, "loop": 2, "caller": 3},
        {"a": {"b": [1.5, None, {"c": "d" * 10_000}]}},
        {"": 0, "é": 1, "1": 2},
    ],
)
def test_variables_of_templates_are_only_values(world: World, variables: dict[str, Any]) -> None:
    expected = world.ask("/v1/chat/completions", **CHAT)["choices"]
    response = world.post("/v1/chat/completions", **CHAT, chat_template_kwargs=variables)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 200:
        assert response.json()["choices"] == expected
    assert world.ask("/v1/chat/completions", **CHAT)["choices"] == expected


def test_keys_are_compared_in_constant_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    real = hmac.compare_digest

    def compare(first: Any, second: Any) -> bool:
        compared.append((first, second))
        return real(first, second)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with serving(engine, api_keys=("one", "two")) as world:
        for key, status in (("one", 200), ("two", 200), ("on", 401), ("x", 401), ("ünö", 401)):
            compared.clear()
            value = f"Bearer {key}".encode()
            response = world.client.get("/v1/models", headers={b"authorization": value})
            assert response.status_code == status
            assert len(compared) == 2  # with every key, also after a match
            assert all(len(first) == len(second) for first, second in compared)


# -- logs

# Bodies that are answered, refused and broken, each with the secret in every place it could take.
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": SECRET, "max_tokens": 1, "user": SECRET}),
    ("/v1/completions", {"prompt": SECRET, "stop": [SECRET], "stream": True}),
    ("/v1/completions", {"prompt": SECRET * 40}),
    ("/v1/completions", {"prompt": {SECRET: 1}}),
    ("/v1/completions", {"prompt": SECRET, "temperature": SECRET}),
    ("/v1/completions", {"prompt": SECRET, "logit_bias": {SECRET: 1}}),
    ("/v1/completions", {"prompt": SECRET, "model": SECRET}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": SECRET, "content": [{"type": SECRET}]}]}),
    ("/v1/chat/completions", {**CHAT, "chat_template": SECRET}),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"messages": SECRET}}),
    ("/v1/responses", {"input": SECRET, "max_output_tokens": 1}),
    ("/v1/messages", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": SECRET}]}]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": SECRET}]}),
    ("/tokenize", {"prompt": SECRET}),
]


def send_all(url: str) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:
        for path, body in BODIES:
            client.post(path, json=body)
        client.post("/v1/completions", content=f'{{"prompt":"{SECRET}'.encode())
        client.post("/v1/completions", content=SECRET.encode())
        client.get("/v1/models", headers={"authorization": f"Bearer {SECRET}"})


def test_nothing_of_a_request_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    send_all(world.url)
    logged = [r.getMessage() for r in caplog.records if r.name.split(".")[0] not in CLIENTS]
    assert not [message for message in logged if SECRET in message]


@pytest.mark.parametrize("asked", [False, True])
def test_nothing_of_a_request_is_printed_unless_asked(model: Path, asked: bool) -> None:
    options = ["--uvicorn-log-level", "debug", "--max-model-len", 96]
    options += ["--enable-log-requests"] if asked else []
    with serve(model, "--served-model-name", "tiny", *options) as server:
        send_all(server.url)
        server.process.terminate()
        out, err = server.process.communicate(timeout=60)
    assert "POST /v1/completions" in out + err  # the log is on
    if asked:
        assert SECRET in out + err
    else:
        assert SECRET not in out + err
