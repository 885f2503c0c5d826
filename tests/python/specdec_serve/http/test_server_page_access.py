"""The chat page on screens of any size, by keyboard, for screen readers and in every colour."""

from collections.abc import Iterator
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
    chat.button("Compare without speculation").click()
    verdict = chat.answer.locator(".verdict")
    expect(verdict).to_contain_text("The texts differ from character")
    chat.button("Send").wait_for()
    expect(verdict).to_be_in_viewport(ratio=1)


def test_a_phones_screen_is_for_the_messages(chat: ChatPage) -> None:
    chat.page.set_viewport_size(PHONE)
    answer_with(chat, *LONG, chunk(["end"], finish="stop"))
    chat.ask("go")
    heights = [
        chat.page.locator(each).evaluate("e => e.getBoundingClientRect().height")
        for each in ("#messages", "#composer")
    ]
    assert sum(heights) >= 0.75 * PHONE["height"] and heights[0] > heights[1]
    assert chat.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    hidden = [chat.page.locator(each) for each in ("#conversations", "#settings", "#strip")]
    assert not any(each.is_visible() for each in hidden)
    menu = chat.button("Menu")
    for way in (menu.click, chat.button("go").click, chat.button("New conversation").click):
        if menu.get_attribute("aria-expanded") == "false":
            menu.click()
        assert all(each.is_visible() for each in hidden)
        way()
        assert not any(each.is_visible() for each in hidden)
    chat.page.set_viewport_size(SCREEN)
    assert all(each.is_visible() for each in hidden) and not menu.is_visible()


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
    tab_to("Compare without speculation", "Shift+Tab")
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
    expect(focused).to_have_id("setting-system")
    keyboard.type("be brief")
    chat.page.on("dialog", lambda dialog: dialog.accept())
    tab_to("Delete numbers", "Shift+Tab")
    keyboard.press("Enter")
    expect(chat.page.locator("#conversations button.open")).to_have_text(["New conversation"])


def test_roles_and_names_say_what_is_there(chat: ChatPage) -> None:
    chat.setting("Greatest number of tokens", "4")
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
            """() => {
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
                    for (const kind of ["ngram", "suffix", "model", "head", "grammar"]) {
                        probe.dataset.kind = kind;
                        pairs.push([style.color, style.backgroundColor]);
                    }
                    pairs.push([style.color, pairs[0][1]]);
                }
                pre.remove();
                return pairs.map((pair) => pair.map(rgb));
            }"""
        )
    for text, background in colours:
        lighter, darker = sorted((luminance(text), luminance(background)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (scheme, text, background)
    assert (luminance(colours[0][1]) < 0.5) == (scheme == "dark")
    assert len({tuple(background) for _, background in colours}) == 6
    assert len({tuple(text) for text, _ in colours}) == 5


def luminance(colour: list[float]) -> float:
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
