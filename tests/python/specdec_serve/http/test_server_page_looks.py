"""The whole chat page on a screen and a phone, in both themes: nothing too wide, all readable."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from chat_page import CHAT, LOOKS, ChatPage, answer_with, chunk, node, opened
from colour_contrast import contrasts, luminance
from server_world import World

TEXT = (
    """# A title of several words

A `line of code` and a-word-without-end-"""
    + "x" * 120
    + """.

| a column | another column | a third column | a fourth column | a fifth column of many words |
|---|:-:|--:|---|---|
| 1 | 2 | 3 | 4 | 5 |

> a quote

$$ a_1 + b_2 $$

```python
# a comment that is longer than any phone is wide, and longer than that, and longer still, and more
def function(argument: str = "text") -> float:
    return 1.5
```

- [a link](https://example.org/)
- [x] done
"""
)
TREE = {
    "at": 0,
    "nodes": [
        node("drafted ", -1, 1, "ngram", 0.75, True),
        node("rejected", -1, 1, "suffix", 0.125, False),
    ],
}
CALL = {
    "delta": {
        "tool_calls": [
            {"index": 0, "id": "c", "function": {"name": "look_up", "arguments": '{"a": [1, 2]}'}}
        ]
    },
    "finish_reason": "tool_calls",
}
STREAM = (
    {"delta": {"reasoning": "Let me think."}},
    chunk(["drafted ", "text\n\n"], trees=[TREE]),
    chunk([TEXT]),
    CALL,
)


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest) -> dict[str, Any]:
    look: dict[str, Any] = request.param
    return look


@pytest.fixture
def chat(browser: Browser, world: World, look: dict[str, Any]) -> Iterator[ChatPage]:
    with opened(browser, world.url, look) as chat:
        yield chat


def check(chat: ChatPage, *texts: str) -> None:
    """Nothing is wider than the screen, and all texts, these among them, can be read."""
    width = chat.page.evaluate("document.documentElement.scrollWidth")
    assert width == chat.page.evaluate("window.innerWidth")
    messages = chat.page.locator("#messages").evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert messages[0] == messages[1]
    found = list(contrasts(chat.page))
    for text in texts:
        assert any(text in what for what, _ in found), text
    assert [each for each in found if each[1] < 4.5] == []


def in_sight(found: Locator) -> None:
    expect(found).to_be_in_viewport(ratio=1)


def test_an_empty_page(chat: ChatPage, look: dict[str, Any]) -> None:
    expect(chat.page.locator("#model")).to_have_text("tiny")
    check(chat, "What shall the model write?", "Make a table", "Message")
    paper = chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
    channels = [float(part) for part in paper[4:-1].split(",")]
    assert (luminance(channels) < 0.5) == (look["color_scheme"] == "dark")
    for name in ("Settings", "Send", "Attach text files"):
        in_sight(chat.button(name))
    header = chat.page.locator("header").evaluate("e => e.getBoundingClientRect().height")
    assert header <= 48  # one line


def test_all_parts_of_an_answer(chat: ChatPage) -> None:
    answer_with(chat, *STREAM)
    chat.page.locator("#attach-file").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"a line " * 40}
    )
    expect(chat.page.get_by_role("list", name="Attached files")).to_be_visible()
    check(chat, "notes.txt")
    chat.ask("go")
    chat.button("Again").click()
    chat.wait()
    for folded in ("notes.txt", "Reasoning"):
        chat.page.locator("summary").filter(has_text=folded).click()
    check(chat, "Let me think.", "a column", "# a comment", "look_up", "2 of 2", "ngram", "Delete")
    cell = chat.answer.get_by_role("columnheader", name="a fifth column of many words")
    assert cell.evaluate("e => e.getBoundingClientRect().height") < 80  # two lines at most
    chat.answer.locator("mark").first.hover()
    expect(chat.page.get_by_role("tooltip")).to_be_visible()
    check(chat, "rejected")
    chat.page.unroute(CHAT)
    answer_with(chat, chunk(["other"], finish="stop"))
    chat.button("Compare").click()
    expect(chat.answer.locator(".verdict")).to_contain_text("differ")
    chat.button("Send").wait_for()
    check(chat, "The texts differ", "Without speculation")
    chat.button("Edit").click()
    check(chat, "Send instead")
    chat.page.unroute(CHAT)
    error = {"error": {"message": "no room for this", "code": 400}}
    chat.page.route(CHAT, lambda route: route.fulfill(status=400, body=json.dumps(error)))
    chat.ask("more")
    check(chat, "no room for this")


def test_drawers(chat: ChatPage, look: dict[str, Any]) -> None:
    answer_with(chat, *STREAM)
    chat.ask("a first question that is longer than the column of the conversations is wide")
    chat.button("Settings").click()
    in_sight(chat.page.get_by_role("dialog", name="Settings"))
    check(chat, "System prompt", "Repetition penalty", "JSON schema of answers", "random")
    chat.page.keyboard.press("Escape")
    if chat.button("Conversations").is_visible():
        chat.button("Conversations").click()
    in_sight(chat.page.locator("#conversations-drawer"))
    check(chat, "a first question", "Export all", "Import")
    item = chat.page.locator("#conversations button.open")
    whole, own = (each.bounding_box() for each in (chat.page.locator("#conversations"), item))
    assert whole and own and own["width"] > 0.9 * whole["width"]
    chat.page.get_by_role("searchbox").fill("drafted")
    check(chat, "a first question", "drafted text")
    item.hover()
    for name in ("Rename", "Export", "Delete"):
        in_sight(chat.page.get_by_role("button", name=f"{name} a first question"))


def test_the_theme_can_be_chosen(chat: ChatPage, look: dict[str, Any]) -> None:
    """Whatever the system's is, and it is there before the first picture."""
    paper = "getComputedStyle(document.body).backgroundColor"
    own = chat.page.evaluate(paper)
    chosen = {}
    for theme in ("light", "dark"):
        chat.setting("Theme", theme)
        check(chat, "Make a table")
        chat.page.reload()
        chosen[theme] = chat.page.evaluate(paper)
    assert chosen["light"] != chosen["dark"] and chosen[look["color_scheme"]] == own
    chat.setting("Theme", "system")
    assert chat.page.evaluate(paper) == own


def test_text_that_cannot_be_read_would_be_found(chat: ChatPage) -> None:
    chat.page.evaluate(
        """() => {
            const sheet = new CSSStyleSheet();
            sheet.replaceSync(".example span { color: #888 } #messages { background: #999 }");
            document.adoptedStyleSheets = [sheet];
        }"""
    )
    with pytest.raises(AssertionError, match="What shall|Tokens that"):
        check(chat)
