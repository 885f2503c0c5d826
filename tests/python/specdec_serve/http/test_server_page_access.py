"""The chat page on screens of any size, by keyboard, for screen readers and in every colour."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, ViewportSize, expect

from chat_page import (
    CHAT,
    PHONE,
    READABLE,
    SCREEN,
    ChatPage,
    answer_with,
    chunk,
    drafting_engine,
    fulfill,
    opened,
)
from colour_contrast import contrast, luminance
from server_world import World
from specdec_native import Engine

LONG = [chunk([f"Line {i}.\n\n"]) for i in range(100)]


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return drafting_engine(model)


@pytest.fixture
def chat(browser: Browser, world: World) -> Iterator[ChatPage]:
    with opened(browser, world.url, **READABLE) as chat:
        yield chat


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
@pytest.mark.parametrize("reader", ["waits", "scrolls"])
def test_the_verdict_is_in_sight(chat: ChatPage, size: ViewportSize, reader: str) -> None:
    """When the comparison of a long answer ends, wherever its reader is by then."""
    chat.page.set_viewport_size(size)
    answer_with(chat, *LONG, chunk(["end"], finish="stop"))
    chat.ask("go")

    def compared(route: Route) -> None:
        if reader == "scrolls":
            chat.page.locator("#messages").evaluate("e => e.scrollTop = 0")
        fulfill(route, *LONG)

    chat.page.unroute(CHAT)
    chat.page.route(CHAT, compared)
    chat.button("Compare").click()
    verdict = chat.answer.locator(".verdict")
    expect(verdict).to_contain_text("The texts differ from character")
    chat.button("Send").wait_for()
    expect(verdict).to_be_in_viewport(ratio=1)


def test_a_phones_screen_is_for_the_messages(chat: ChatPage) -> None:
    chat.page.set_viewport_size(PHONE)
    answer_with(chat, *LONG, chunk(["end"], finish="stop"))
    chat.ask("go")
    heights = {
        each: chat.page.locator(each).evaluate("e => e.getBoundingClientRect().height")
        for each in ("header", "#messages", "#composer")
    }
    assert heights["#messages"] >= 0.8 * PHONE["height"]
    assert heights["header"] <= 48 and heights["#composer"] <= 64  # a line each


def test_conversations_are_a_drawer_on_a_phone_and_a_column_beside(chat: ChatPage) -> None:
    chat.page.set_viewport_size(PHONE)
    drawer, opener = chat.page.locator("#conversations"), chat.button("Conversations")
    answer_with(chat, chunk(["end"], finish="stop"))
    chat.ask("go")
    ways: list[Callable[[], None]] = [
        chat.button("Close the conversations").click,
        drawer.get_by_role("button", name="go", exact=True).click,
        lambda: chat.page.keyboard.press("Escape"),
        lambda: chat.page.mouse.click(PHONE["width"] - 5, 400),  # beside it
    ]
    for close in ways:
        assert not drawer.is_visible()
        opener.click()
        expect(drawer).to_be_visible()
        close()
        expect(drawer).not_to_be_visible()
    chat.page.set_viewport_size(SCREEN)
    expect(drawer).to_be_visible()
    assert not opener.is_visible()


@pytest.mark.parametrize("size", [SCREEN, PHONE], ids=["screen", "phone"])
def test_the_settings_are_a_drawer(chat: ChatPage, size: ViewportSize) -> None:
    chat.page.set_viewport_size(size)
    opener = chat.button("Settings")
    opener.focus()
    chat.page.keyboard.press("Enter")
    drawer = chat.page.get_by_role("dialog", name="Settings")
    expect(drawer).to_be_in_viewport(ratio=1)
    expect(chat.button("Close the settings")).to_be_focused()
    chat.page.keyboard.press("Tab")
    expect(chat.page.get_by_label("System prompt")).to_be_focused()
    chat.page.keyboard.press("Escape")
    expect(drawer).not_to_be_visible()
    expect(opener).to_be_focused()


def test_the_keyboard_is_enough(chat: ChatPage) -> None:
    keyboard = chat.page.keyboard
    focused = chat.page.locator(":focus")

    def tab_to(name: str, key: str = "Tab") -> None:
        for _ in range(40):
            if (focused.get_attribute("aria-label") or focused.text_content()) == name:
                return
            keyboard.press(key)
        raise AssertionError(f"{key} does not come to {name!r}")

    expect(chat.prompt).to_be_focused()
    keyboard.type("one")
    keyboard.press("Shift+Enter")
    keyboard.type("two")
    keyboard.press("Enter")
    chat.wait()
    assert chat.asked[0]["messages"][0]["content"] == "one\ntwo"
    expect(chat.prompt).to_be_focused()
    tab_to("Compare", "Shift+Tab")
    keyboard.press("Enter")
    chat.answer.locator('.verdict[data-same="true"]').wait_for()
    tab_to("Rename one", "Shift+Tab")
    keyboard.press("Enter")
    keyboard.type("numbers")
    keyboard.press("Enter")
    expect(focused).to_have_text("numbers")
    tab_to("New conversation", "Shift+Tab")
    keyboard.press("Enter")
    expect(chat.prompt).to_be_focused()
    tab_to("Settings", "Shift+Tab")
    keyboard.press("Enter")
    keyboard.press("Tab")
    expect(focused).to_have_attribute("name", "system")
    keyboard.type("be brief")
    keyboard.press("Escape")
    chat.page.on("dialog", lambda dialog: dialog.accept())
    tab_to("numbers")
    tab_to("Delete numbers")
    keyboard.press("Enter")
    expect(chat.page.locator("#conversations button.open")).to_have_count(0)


def test_roles_and_names_say_what_is_there(chat: ChatPage) -> None:
    chat.setting("Max tokens", "4")
    chat.ask("hello")
    log = chat.page.get_by_role("log", name="Conversation")
    assert log.get_attribute("aria-live") == "polite"
    expect(log.get_by_role("article", name="You").locator("p")).to_have_text("hello")
    expect(log.get_by_role("article", name="Answer")).to_have_attribute("aria-busy", "false")
    for button in chat.page.get_by_role("button").all():
        assert (button.get_attribute("aria-label") or button.inner_text()).strip()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_every_tint(browser: Browser, world: World, scheme: Any) -> None:
    """Contrast of at least 4.5, as WCAG's level AA has it; colours of code, too."""
    with opened(browser, world.url) as chat:
        chat.page.emulate_media(color_scheme=scheme)
        colours = chat.page.evaluate(
            """(kinds) => {
                const probe = document.createElement("mark");
                const around = document.createElement("span");
                const pre = document.createElement("pre");
                around.append(probe);
                pre.append(around);
                document.body.append(pre);
                const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
                const style = getComputedStyle(probe);
                const pairs = [[getComputedStyle(document.body).color,
                    getComputedStyle(document.body).backgroundColor]];
                for (const part of ["", "comment", "string", "number", "keyword"]) {
                    around.className = part;
                    for (const kind of kinds) {
                        probe.dataset.kind = kind;
                        pairs.push([style.color, style.backgroundColor]);
                    }
                    pairs.push([style.color, pairs[0][1]]);
                }
                pre.remove();
                return pairs.map((pair) => pair.map(rgb));
            }""",
            ["ngram", "suffix", "model", "head", "grammar", "prediction"],
        )
    for text, background in colours:
        assert contrast(text, background) >= 4.5, (scheme, text, background)
    assert (luminance(colours[0][1]) < 0.5) == (scheme == "dark")
    assert len({tuple(background) for _, background in colours}) == 7
    assert len({tuple(text) for text, _ in colours}) == 5
