"""Pictures of the chat page for docs/images: python page_screenshots.py [FOLDER].

SmolLM2-135M-Instruct answers with drafts of n-grams, suffixes and a head, once for each colour
scheme.
"""

import json
import sys
from pathlib import Path

from playwright.sync_api import Browser

from chat_page import ChatPage, chromium
from server_process import serve

FOLDER = Path(__file__).parents[3] / "docs" / "images"
MAX_BYTES = 200 << 10
MIN_REJECTED = 2  # drafts of the tree that is shown, where the answer has one
SIZE = {"width": 1180, "height": 820}
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


def picture(browser: Browser, url: str, scheme: str, path: Path) -> None:
    """Asks, compares, and shows the panel of an accepted draft."""
    context = browser.new_context(color_scheme=scheme, viewport=SIZE)  # type: ignore[arg-type]
    chat = ChatPage(context.new_page(), url)
    chat.setting("Temperature", "0")
    chat.setting("Max tokens", "160")
    chat.page.get_by_text("Settings", exact=True).click()
    chat.ask(QUESTION)
    chat.page.locator("#messages").evaluate("e => e.scrollTop = 0")
    rejected = chat.page.locator("#tip .rejected")
    for token in reversed(chat.answer.locator("> .body mark").all()):
        token.hover()
        if rejected.count() >= MIN_REJECTED:
            break
    chat.page.screenshot(path=path)
    assert path.stat().st_size <= MAX_BYTES
    context.close()


def main() -> None:
    """Writes chat-page-light.png and chat-page-dark.png."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    arguments = ("SmolLM2-135M-Instruct", "--speculative-config", json.dumps(SPECULATION))
    with chromium() as browser:
        for scheme in ("light", "dark"):
            # A server each: suffixes are those of answers before.
            with serve(*arguments, "--max-model-len", 2048) as server:
                picture(browser, server.url, scheme, folder / f"chat-page-{scheme}.png")


if __name__ == "__main__":
    main()
