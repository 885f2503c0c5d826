"""Deleting and searching on the chat page in Chromium, and answers in JSON."""

import json
from typing import Any

import pytest
from playwright.sync_api import Dialog, ViewportSize, expect

from chat_page import CHAT, PHONE, SCREEN, ChatPage, answer_with, chunk, node


def answer(chat: ChatPage, text: str) -> None:
    """Every further answer is this text."""
    chat.page.unroute(CHAT)
    answer_with(chat, chunk([text], finish="stop"))


def delete(chat: ChatPage, what: str, place: int = -1, *, agrees: bool = True) -> str:
    """Clicks on one of the buttons; returns the question that the page has asked."""
    asked = []

    def say(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept() if agrees else dialog.dismiss()

    chat.page.once("dialog", say)
    chat.button(f"Delete {what}").nth(place).click()
    return asked[0]


def kept(chat: ChatPage) -> list[dict[str, Any]]:
    """The conversations in the browser's storage."""
    texts = chat.page.evaluate(
        """() => Object.entries(localStorage).filter(([name]) => name.includes("conversation:"))
            .map(([, text]) => text)"""
    )
    return [json.loads(text) for text in texts]


def test_a_message_is_deleted_with_what_follows(chat: ChatPage) -> None:
    articles = chat.page.get_by_role("article")
    for question in ("one", "two", "three"):
        answer(chat, f"to {question}")
        chat.ask(question)
    assert delete(chat, "message", 1, agrees=False) == "Delete this message and all that follows?"
    expect(articles).to_have_count(6)
    delete(chat, "message", 1)
    for _ in range(2):  # as it is kept, too
        expect(articles).to_have_count(2)
        assert [len(each["turns"]) for each in kept(chat)] == [2]
        chat.page.reload()
    chat.ask("four")
    contents = [each["content"] for each in chat.asked[-1]["messages"]]
    assert contents == ["one", "to one", "four"]
    expect(chat.prompt).to_be_focused()
    # Without its first message there is no conversation.
    delete(chat, "message", 0)
    expect(chat.page.get_by_role("region", name="Examples")).to_be_visible()
    expect(chat.page.locator("#conversations li")).to_have_count(0)
    assert kept(chat) == []


def test_a_version_of_an_answer_is_deleted(chat: ChatPage) -> None:
    for i, text in enumerate(["first", "second", "third"]):
        answer(chat, text)
        if i == 0:
            chat.ask("go")
            expect(chat.button("Delete answer")).not_to_be_visible()  # the only one
        else:
            chat.button("Again").click()
            chat.wait()
    versions = chat.page.get_by_role("group", name="Versions")
    chat.button("Version before").click()
    assert delete(chat, "answer") == "Delete this answer?"
    expect(versions).to_contain_text("2 of 2")
    assert chat.text == "third"
    delete(chat, "answer")
    for _ in range(2):
        assert chat.text == "first"
        expect(versions).to_have_count(0)
        expect(chat.button("Delete answer")).not_to_be_visible()
        chat.page.reload()


def test_a_version_of_a_message_is_deleted(chat: ChatPage) -> None:
    answer(chat, "yes")
    chat.ask("old")
    chat.button("Edit").click()
    chat.page.get_by_label("Changed message").fill("new")
    chat.button("Send instead").click()
    chat.wait()
    delete(chat, "message")
    question = chat.page.get_by_role("article", name="You").locator("p")
    expect(question).to_have_text(["old"])
    chat.ask("more")
    assert [each["content"] for each in chat.asked[-1]["messages"]] == ["old", "yes", "more"]


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
def test_conversations_are_searched(chat: ChatPage, size: ViewportSize) -> None:
    chat.page.set_viewport_size(size)
    search = chat.page.get_by_role("searchbox", name="Search in conversations")
    expect(search).not_to_be_visible()
    for question, text in [
        ("Who wrote Faust?", "It was Goethe, in Weimar."),
        ("Where is Weimar?", "In Thuringia."),
        ("Add one and two", "three"),
    ]:
        answer(chat, text)
        chat.page.locator("#new-conversation").click()
        chat.ask(question)
    answer(
        chat, "It was\n\nFOUR **of old**, and here is more of it than a line can ever hold, by far."
    )
    chat.button("Again").click()
    chat.wait()
    chat.button("Version before").click()
    if size == PHONE:
        chat.button("Conversations").click()
    names = chat.page.locator("#conversations button.open")
    expect(names).to_have_count(3)

    def found(words: str) -> list[str]:
        search.fill(words)
        return [each.inner_text() for each in names.all()]

    assert found("weimar") == [
        "Where is Weimar?",
        "Who wrote Faust?\n\u2026Goethe, in Weimar.",
    ]
    assert found("thuringia WHERE") == ["Where is Weimar?\nIn Thuringia."]
    (name,) = found("four of")  # in another version
    assert name.startswith("Add one and two\nIt was FOUR **of old**, and here is more")
    assert found("  ") == ["Add one and two", "Where is Weimar?", "Who wrote Faust?"]
    assert found("faust two") == []
    expect(chat.page.get_by_text("No conversation has these words.")).to_be_visible()
    search.press("Escape")
    expect(search).to_have_value("")
    expect(names).to_have_count(3)
    found("goethe")
    names.first.click()
    assert chat.text == "It was Goethe, in Weimar."


def test_an_answer_in_json_is_code(chat: ChatPage) -> None:
    chat.setting("JSON schema of answers", "{}")
    text = '\n\n{"a": "*1*",\n\n    "b": 2}\n'
    tree = {"at": 1, "nodes": [node('"a"', -1, 1, "grammar", 0.5, True)]}
    pieces = ["\n\n{", '"a"', ': "*1*",\n\n    "b": 2}\n']
    answer_with(chat, chunk(pieces, trees=[tree], finish="stop"))
    chat.ask("go")
    for _ in range(2):
        assert chat.answer.locator("pre").text_content() == text.strip()
        assert chat.answer.locator("figcaption .language").text_content() == "json"
        assert chat.answer.locator("mark").all_text_contents() == ['"a"', "grammar"]
        chat.page.reload()


def test_a_tip_waits_for_the_mouse_to_move(chat: ChatPage) -> None:
    """Not for text that comes to lie below the mouse."""
    tip = chat.page.get_by_role("tooltip")
    answer(chat, "word " * 200)
    chat.ask("go")
    box = chat.answer.locator("[data-token]").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 40
    chat.page.locator("#new-conversation").click()
    chat.page.mouse.move(x, y)
    chat.page.keyboard.type("go")
    chat.page.keyboard.press("Enter")
    chat.wait()
    # Frames in which the browser could tell the page what is below the mouse.
    chat.page.evaluate("() => new Promise((done) => setTimeout(done, 300))")
    assert chat.page.evaluate("([x, y]) => document.elementFromPoint(x, y).dataset.token", [x, y])
    expect(tip).not_to_be_visible()
    chat.page.mouse.move(x + 1, y)
    expect(tip).to_be_visible()
