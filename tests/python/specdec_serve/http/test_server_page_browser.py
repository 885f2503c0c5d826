"""The chat page in Chromium against servers: sends, streams, stops, compares, restarts, keys."""

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from chat_page import (
    CHAT,
    NGRAM,
    PHONE,
    READABLE,
    SCREEN,
    ChatPage,
    answer_with,
    chunk,
    drafting_engine,
    opened,
)
from paced_engine import Pace, paced_engine
from server_life import living
from server_world import World, serving
from specdec_native import Engine
from tiny_text_model import add_byte_text, is_idle
from waiting import wait_until

QUESTION = "abcabcabc"


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return drafting_engine(model)


@pytest.fixture
def chat(browser: Browser, world: World) -> Iterator[ChatPage]:
    with opened(browser, world.url, **READABLE) as chat:
        yield chat


@pytest.fixture
def pace() -> Iterator[Pace]:
    pace = Pace()
    yield pace
    pace.gate.set()


@pytest.fixture
def paced(model: Path, pace: Pace) -> Engine:
    return paced_engine(model, pace)


def content(world: World, messages: list[dict[str, str]], **params: Any) -> str:
    """What the API answers by itself."""
    answer = world.ask("/v1/chat/completions", messages=messages, **READABLE, **params)
    text: str = answer["choices"][0]["message"]["content"]
    return text


def raw_text(chat: ChatPage) -> str:
    """The text of the last answer, as the page keeps it; Markdown shows less."""
    kept = chat.page.evaluate(
        """() => Object.entries(localStorage).filter(([name]) => name.includes("conversation:"))
            .map(([, text]) => JSON.parse(text)).sort((a, b) => b.changed - a.changed)[0]
            .turns.at(-1).answer.parts.map(({ text }) => text).join("")"""
    )
    assert isinstance(kept, str)
    return kept


def test_a_conversation_is_what_the_api_answers(chat: ChatPage, world: World) -> None:
    chat.setting("Temperature", "0.7")
    chat.setting("Max tokens", "12")
    chat.setting("System prompt", "be")
    chat.setting("Seed", "5")
    messages = [{"role": "system", "content": "be"}]
    for question in (QUESTION, "more"):
        chat.ask(question)
        messages.append({"role": "user", "content": question})
        expected = content(world, messages, temperature=0.7, max_tokens=12, seed=5)
        assert raw_text(chat) == expected
        messages.append({"role": "assistant", "content": expected})
    assert chat.asked[1]["messages"] == messages[:-1]
    assert "12 tokens" in str(chat.answer.text_content())
    chat.page.locator("#model").get_by_text("tiny").wait_for()


def test_text_shows_as_it_is_made(browser: Browser, paced: Engine, pace: Pace) -> None:
    with serving(paced) as world, opened(browser, world.url, **READABLE) as chat:
        chat.setting("Max tokens", "8")
        pace.gate.clear()
        chat.send("hello")
        expect(chat.answer.locator("> .body [data-token]").first).to_be_attached()
        assert chat.answer.get_attribute("aria-busy") == "true"
        assert chat.button("Stop").is_visible() and not chat.button("Send").is_visible()
        assert chat.answer.locator("> .body [data-token]").count() < 8
        pace.gate.set()
        chat.wait()
        assert "8 tokens" in str(chat.answer.text_content())


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_an_answer_can_be_stopped(browser: Browser, paced: Engine, pace: Pace, way: str) -> None:
    with serving(paced) as world, opened(browser, world.url, **READABLE) as chat:
        pace.seconds = 0.01
        chat.send("hello")
        chat.answer.locator("> .body [data-token]").nth(3).wait_for(state="attached")
        if way == "button":
            chat.button("Stop").focus()
            chat.page.keyboard.press("Enter")
        else:
            chat.page.keyboard.press("Escape")
        chat.wait()
        assert "Stopped." in str(chat.answer.text_content()) and len(raw_text(chat)) > 3
        expect(chat.prompt).to_be_focused()
        wait_until(lambda: is_idle(paced))
        # Compared with as many tokens, the text is the same.
        pace.seconds = 0
        chat.button("Compare").click()
        expect(chat.answer.locator(".verdict")).to_contain_text("The text is the same.")
        assert chat.asked[1]["max_tokens"] <= len(raw_text(chat))
        chat.setting("Max tokens", "4")
        chat.ask("again")
        assert "4 tokens" in str(chat.answer.text_content())


def test_compare_runs_the_request_without_drafts(chat: ChatPage, world: World) -> None:
    chat.setting("Max tokens", "16")
    chat.setting("Temperature", "0")
    chat.ask(QUESTION)
    chat.button("Compare").click()
    chat.answer.locator('.verdict[data-same="true"]').wait_for()
    first, second = chat.asked
    assert isinstance(first["seed"], int) and "num_speculative_tokens" not in first
    assert second == {**first, "num_speculative_tokens": 0}
    drafts = world.engine.stats().speculative_decoding
    assert drafts is not None and drafts.num_draft_tokens > 0
    columns = chat.answer.locator(".columns .body")
    assert columns.nth(0).text_content() == columns.nth(1).text_content() == chat.text
    assert columns.nth(1).locator("mark").count() == 0


def test_tinted_tokens_are_the_accepted_drafts(chat: ChatPage, world: World) -> None:
    """As many as the engine counts, and none without drafts."""

    def counts() -> tuple[int, int]:
        drafts = world.engine.stats().speculative_decoding
        assert drafts is not None
        return drafts.num_accepted_draft_tokens, drafts.num_draft_tokens

    chat.setting("Temperature", "0")
    before = counts()
    chat.ask("ab" * 20)
    accepted, proposed = (now - then for now, then in zip(counts(), before, strict=True))
    legend = chat.answer.get_by_role("list", name="Drafters")
    expect(legend).to_have_text(f"ngram {accepted} of {proposed} drafts accepted")
    assert 0 < accepted < proposed
    tinted = chat.answer.locator('> .body mark[data-kind="ngram"]')
    tokens = {token.get_attribute("data-token") for token in tinted.all()}
    assert 0 < len(tokens) <= accepted  # Markdown may show fewer
    drawn = chat.answer.locator("> .body [data-token]")
    assert len(tokens) < len({token.get_attribute("data-token") for token in drawn.all()})


def test_what_a_grammar_forces_is_tinted(
    browser: Browser, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Keys and punctuation of JSON, and no token that the model chose."""
    importlib.import_module("llguidance")
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["main", "other"]}, "size": {"type": "boolean"}},
        "required": ["name", "size"],
        "additionalProperties": False,
    }
    model = add_byte_text(checkpoint("llama"), tmp_path / "llama")
    # No drafts of n-grams, and room for all that is forced.
    drafts = {**NGRAM, "prompt_lookup_min": 32, "prompt_lookup_max": 32}
    drafts["num_speculative_tokens"] = 16
    grammar = {"json": schema, "disable_any_whitespace": True}
    with (
        Engine(
            model,
            dtype="float32",
            max_model_len=256,
            speculative_config={**drafts, "draft_length_policy": "fixed"},
        ) as engine,
        serving(engine) as world,
        opened(browser, world.url, structured_outputs=grammar) as chat,
    ):
        jsonschema.validate(json.loads(chat.ask(QUESTION)), schema)
        (forced,) = [d for d in engine.stats().drafters if d.name == "grammar"]
        legend = chat.answer.get_by_role("list", name="Drafters")
        accepted, proposed = forced.num_accepted_tokens, forced.num_draft_tokens
        expect(legend).to_have_text(f"grammar {accepted} of {proposed} drafts accepted")
        tinted = chat.answer.locator('> .body mark[data-kind="grammar"]')
        assert len({token.get_attribute("data-token") for token in tinted.all()}) == accepted
        plain = chat.answer.locator("> .body [data-token]:not(mark)").all_inner_texts()
        assert '","size":' in "".join(tinted.all_inner_texts())
        assert not any(char in "".join(plain[1:]) for char in "{}:,")


def test_a_forced_call_of_a_server_is_shown_and_answered(
    browser: Browser, thinking_world: World
) -> None:
    importlib.import_module("llguidance")
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}, "now": {"type": "boolean"}},
        "required": ["city", "now"],
        "additionalProperties": False,
    }
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name in ("weather", "time")
    ]
    forced = {"tool_choice": "required", "parallel_tool_calls": False}
    with opened(browser, thinking_world.url) as chat:
        chat.setting("Tools that the model may call", json.dumps(tools))
        chat.setting("Other fields of requests", json.dumps(forced))
        chat.ask("go")
        call = chat.answer.get_by_role("figure", name="Call of a tool")
        name = call.locator(".name").inner_text()
        arguments = json.loads(call.locator("code").inner_text())
        assert name in ("weather", "time")
        jsonschema.validate(arguments, parameters)
        chat.setting("Other fields of requests", '{"tool_choice": "none", "ignore_eos": true}')
        chat.setting("Max tokens", "8")
        chat.page.get_by_label(f"Result of {name}").fill("Rain.")
        chat.button("Send results").click()
        expect(chat.page.get_by_role("article", name="Answer")).to_have_count(2)
        chat.wait()
        assert "8 tokens" in str(chat.answer.text_content())
        _, called, result = chat.asked[-1]["messages"]
        (told,) = called["tool_calls"]
        assert json.loads(told["function"]["arguments"]) == arguments
        assert result == {"role": "tool", "tool_call_id": told["id"], "content": "Rain."}


def test_compare_tells_texts_apart(chat: ChatPage) -> None:
    answer_with(chat, chunk(["The ", "cat"]), chunk([" sat"], finish="stop"))
    chat.ask("go")
    chat.page.unroute(CHAT)
    answer_with(chat, chunk(["The ", "car"]), chunk([" sat"], finish="stop"))
    chat.button("Compare").click()
    chat.answer.locator('.verdict[data-same="false"]').wait_for()
    assert "The texts differ from character 7 on." in str(chat.answer.text_content())


def test_the_page_survives_a_restart(browser: Browser, paced: Engine, pace: Pace) -> None:
    with living(paced, {}) as life:
        url = life.url
        context = opened(browser, url, **READABLE)
        chat = context.__enter__()
        chat.setting("Max tokens", "6")
        chat.ask("before")
        before = raw_text(chat)
        chat.setting("Max tokens", "1000")
        pace.seconds = 0.02
        chat.send("during")
        chat.answer.locator("> .body [data-token]").nth(2).wait_for(state="attached")
        life.server.end()
        chat.wait()
        assert chat.answer.get_by_role("alert").inner_text() in {
            "The server ended the answer.",
            "The connection ended before the answer did.",
        }
        assert life.ended()
    pace.seconds = 0
    chat.setting("Max tokens", "6")
    chat.ask("while it is down")
    assert chat.answer.get_by_role("alert").inner_text() == "The server cannot be reached."
    expect(chat.page.locator("#connection")).to_have_text("server not reachable")
    with living(paced, {"port": int(url.rpartition(":")[2])}):
        chat.button("Again").last.click()
        expect(chat.answer.locator("> .body [data-token]").first).to_be_attached()
        chat.wait()
        assert "6 tokens" in str(chat.answer.text_content())
        expect(chat.page.locator("#connection")).to_have_text("connected")
        messages = chat.asked[-1]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
        assert messages[1]["content"] == before and messages[3]["content"]
        context.__exit__(None, None, None)


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
def test_keys(browser: Browser, engine: Engine, size: ViewportSize) -> None:
    with (
        serving(engine, api_keys=("secret",)) as world,
        opened(browser, world.url, **READABLE, max_tokens=4) as chat,
    ):
        chat.page.set_viewport_size(size)
        chat.page.reload()  # the key gets the focus in a page of this size
        connection = chat.page.locator("#connection")
        key = chat.page.get_by_label("API key")
        expect(connection).not_to_be_empty()
        assert connection.text_content() == "API key needed"
        expect(chat.page.get_by_role("status")).to_contain_text("This server needs an API key")
        expect(key).to_be_focused()
        expect(key).to_be_in_viewport()
        chat.page.keyboard.type("wrong")
        chat.page.keyboard.press("Enter")
        expect(connection).to_have_text("API key refused")
        chat.page.keyboard.press("Escape")  # which closes the settings
        chat.ask("hello")
        assert "API key" in chat.answer.get_by_role("alert").inner_text()
        expect(key).to_be_focused()
        key.fill("secret")
        chat.page.keyboard.press("Enter")
        expect(connection).to_have_text("connected")
        expect(chat.page.locator("#model")).to_have_text("tiny")
        chat.button("Again").click()
        chat.answer.locator("> .body [data-token]").first.wait_for(state="attached")
        chat.wait()
        chat.page.reload()
        chat.ask("with the key that was kept")
        assert not chat.answer.get_by_role("alert").is_visible()
        expect(connection).to_have_text("connected")


def test_a_message_is_changed_and_both_versions_stay(chat: ChatPage, world: World) -> None:
    chat.setting("Max tokens", "4")
    chat.setting("Seed", "3")
    for question in ("one", "two", "three"):
        chat.ask(question)
    articles = chat.page.get_by_role("article")
    questions = chat.page.get_by_role("article", name="You").locator("p")
    first = chat.asked[1]["messages"][1]
    chat.button("Edit").nth(1).click()
    field = chat.page.get_by_label("Changed message")
    expect(field).to_be_focused()
    assert field.input_value() == "two"
    chat.page.keyboard.press("Escape")
    expect(articles).to_have_count(6)
    chat.button("Edit").nth(1).click()
    field.fill("another")
    chat.page.keyboard.press("Enter")
    expect(articles).to_have_count(4)
    chat.wait()
    messages = [{"role": "user", "content": "one"}, first, {"role": "user", "content": "another"}]
    assert chat.asked[-1]["messages"] == messages
    assert raw_text(chat) == content(world, messages, max_tokens=4, seed=3)
    for _ in range(2):  # as it is kept, too
        expect(questions).to_have_text(["one", "another"])
        expect(articles.nth(2).get_by_role("group", name="Versions")).to_contain_text("2 of 2")
        chat.button("Version before").click()
        expect(questions).to_have_text(["one", "two", "three"])
        expect(chat.button("Version after")).to_be_focused()
        chat.page.reload()
        expect(questions).to_have_text(["one", "two", "three"])
        chat.button("Version after").click()
        chat.page.reload()
    chat.ask("behind it")
    contents = [each["content"] for each in chat.asked[-1]["messages"]]
    assert contents[2::2] == ["another", "behind it"]
    chat.button("Edit").first.click()
    field.fill("first of all")
    chat.button("Send instead").click()
    expect(articles).to_have_count(2)
    chat.wait()
    assert chat.asked[-1]["messages"] == [{"role": "user", "content": "first of all"}]
    expect(chat.page.locator("#conversations button.open")).to_have_text(["first of all"])


def test_an_answer_is_made_again_and_both_stay(chat: ChatPage) -> None:
    chat.setting("Max tokens", "4")
    for question in ("one", "two"):
        chat.ask(question)
    old = chat.text
    articles = chat.page.get_by_role("article")
    chat.button("Again").last.click()
    expect(chat.prompt).to_be_focused()
    chat.wait()
    before, after = chat.asked[1:]
    assert after["messages"] == before["messages"] and after["seed"] != before["seed"]
    expect(articles).to_have_count(4)
    new = chat.text
    chat.page.reload()
    expect(articles).to_have_count(4)
    assert chat.text == new
    chat.button("Version before").click()
    assert chat.text == old
    # What comes behind the first answer is not lost by another.
    chat.button("Again").first.click()
    expect(articles).to_have_count(2)
    chat.wait()
    assert chat.asked[-1]["messages"] == [{"role": "user", "content": "one"}]
    chat.button("Version before").click()
    expect(articles).to_have_count(4)
    assert chat.text == old


def test_a_continued_answer_is_that_of_the_api(chat: ChatPage, world: World) -> None:
    chat.setting("Max tokens", "4")
    chat.setting("Temperature", "0")
    messages = [{"role": "user", "content": QUESTION}]
    chat.ask(QUESTION)
    first = raw_text(chat)
    chat.button("Continue").click()
    expect(chat.answer.locator(".figures")).to_contain_text("8 tokens")
    messages.append({"role": "assistant", "content": first})
    more = {"continue_final_message": True, "add_generation_prompt": False}
    expected = first + content(world, messages, max_tokens=4, temperature=0, **more)
    assert raw_text(chat) == expected


def test_nothing_is_changed_while_an_answer_comes(
    browser: Browser, paced: Engine, pace: Pace
) -> None:
    with serving(paced) as world, opened(browser, world.url, **READABLE, max_tokens=8) as chat:
        pace.gate.clear()
        chat.send("slow")
        chat.button("Delete message").click()  # which asks nothing
        expect(chat.page.get_by_role("status").first).to_contain_text("stop it first")
        expect(chat.page.get_by_role("article")).to_have_count(2)
        chat.button("Edit").click()
        chat.button("Send instead").click()
        expect(chat.page.get_by_role("status").first).to_contain_text("stop it first")
        pace.gate.set()
        chat.wait()
        assert len(chat.asked) == 1
        chat.button("Send instead").click()
        chat.wait()
        assert len(chat.asked) == 2


def test_what_the_server_refuses_is_shown(chat: ChatPage) -> None:
    chat.setting("Temperature", "0")
    chat.ask("x" * 200)
    assert "96" in chat.answer.get_by_role("alert").inner_text()  # tokens that fit
    expect(chat.button("Again")).to_be_visible()
    expect(chat.button("Copy answer")).not_to_be_visible()  # there is no text
    chat.setting("Temperature", "-1")
    chat.send("y")
    assert chat.prompt.input_value() == "y" and len(chat.asked) == 1  # the field says why
    chat.setting("Temperature", "0")
    chat.setting("Max tokens", "4")
    chat.send("y")
    chat.wait()
    assert chat.asked[-1]["messages"] == [{"role": "user", "content": "y"}]


def test_conversations_are_kept_renamed_and_deleted(chat: ChatPage) -> None:
    chat.setting("Max tokens", "4")
    chat.ask("first question")
    first = chat.text
    chat.button("New conversation").click()
    expect(chat.page.get_by_role("article")).to_have_count(0)
    chat.ask("second question")
    chat.page.reload()
    names = chat.page.locator("#conversations button.open")
    assert names.all_text_contents() == ["second question", "first question"]
    assert len(chat.asked[1]["messages"]) == 1
    chat.button("first question").click()
    assert chat.text == first
    chat.button("first question").hover()
    chat.button("Rename first question").click()
    chat.page.keyboard.type("a name")
    chat.page.keyboard.press("Enter")
    chat.page.reload()
    assert names.all_text_contents() == ["a name", "second question"]
    chat.page.once("dialog", lambda dialog: dialog.dismiss())
    chat.button("a name").hover()
    chat.button("Delete a name").click()
    assert names.count() == 2
    chat.page.once("dialog", lambda dialog: dialog.accept())
    chat.button("Delete a name").click()
    chat.page.reload()
    assert names.all_text_contents() == ["second question"]


def test_another_conversation_may_be_read_meanwhile(
    browser: Browser, paced: Engine, pace: Pace
) -> None:
    with serving(paced) as world, opened(browser, world.url, **READABLE, max_tokens=8) as chat:
        pace.gate.clear()
        chat.send("slow")
        chat.button("New conversation").click()
        expect(chat.page.get_by_role("article")).to_have_count(0)
        pace.gate.set()
        chat.button("Send").wait_for()
        chat.button("slow").click()
        assert "8 tokens" in str(chat.answer.text_content())
