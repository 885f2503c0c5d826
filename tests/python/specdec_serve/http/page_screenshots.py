"""Pictures of the chat page for docs/images: python page_screenshots.py [FOLDER].

SmolLM2-135M-Instruct answers with drafts of n-grams, suffixes and a head, on a screen and on a
phone, once for each colour scheme.
"""

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from chat_page import PHONE, SCREEN, ChatPage, chromium
from server_process import serve

FOLDER = Path(__file__).parents[4] / "docs" / "images"
MAX_BYTES = 150_000
MIN_REJECTED = 2  # drafts of the tree that is shown, where the answer has one
SPECULATION = {
    "drafters": [
        {"method": "ngram"},
        {"method": "suffix"},
        {"model": "SmolLM2-135M-Instruct-eagle3"},
    ],
    "merge_drafters": True,
    "num_speculative_tokens": 6,
    "tree_width": 3,
}
QUESTION = """Write this Python class again, with a method `area` added, and then explain each line:

class Rectangle:
    def __init__(self, width, height):
        self.width = width
        self.height = height"""

TABLE = "Make a table of the planets with their diameters and numbers of moons."


def opened(browser: Browser, url: str, **look: Any) -> ChatPage:
    chat = ChatPage(browser.new_context(**look).new_page(), url)
    chat.setting("Temperature", "0")
    chat.setting("Max tokens", "160")
    return chat


def saved(chat: ChatPage, path: Path) -> None:
    chat.page.screenshot(path=path)
    assert path.stat().st_size <= MAX_BYTES, path
    chat.page.context.close()


def on_a_screen(browser: Browser, url: str, scheme: str, path: Path) -> None:
    """Asks, and shows the panel of an accepted draft."""
    chat = opened(browser, url, color_scheme=scheme, viewport=SCREEN)
    chat.ask(QUESTION)
    rejected = chat.page.locator("#tip .rejected")
    for token in reversed(chat.answer.locator("> .body mark").all()):
        token.hover()
        if rejected.count() >= MIN_REJECTED:
            break
    saved(chat, path)


def on_a_phone(browser: Browser, url: str, scheme: str, path: Path) -> None:
    """Asks for a table, has it made again, and compares."""
    chat = opened(browser, url, color_scheme=scheme, viewport=PHONE, has_touch=True, is_mobile=True)
    chat.ask(TABLE)
    chat.button("Again").click()
    chat.wait()
    chat.button("Compare").click()
    chat.answer.locator(".verdict[data-same]").wait_for()
    chat.button("Send").wait_for()
    chat.page.mouse.move(0, 0)  # off the tokens
    chat.answer.locator("> .buttons").evaluate("e => e.scrollIntoView({ block: 'center' })")
    saved(chat, path)


def main() -> None:
    """Writes chat-page-light.png, chat-page-dark.png and those of a phone, chat-phone-*.png."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    arguments = ("SmolLM2-135M-Instruct", "--speculative-config", json.dumps(SPECULATION))
    with chromium() as browser:
        for scheme in ("light", "dark"):
            # A server each: suffixes are those of answers before.
            with serve(*arguments, "--max-model-len", 2048) as server:
                on_a_screen(browser, server.url, scheme, folder / f"chat-page-{scheme}.png")
                on_a_phone(browser, server.url, scheme, folder / f"chat-phone-{scheme}.png")


if __name__ == "__main__":
    main()
