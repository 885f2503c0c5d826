"""The chat page in headless Chromium, and streams that no engine has made."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    Locator,
    Page,
    Route,
    ViewportSize,
    expect,
    sync_playwright,
)

from specdec_native import Engine
from tiny_text_model import OPTIONS, TEXT_TOKEN_IDS

CHROMIUM = "/usr/bin/chromium"  # Debian's
CHAT = "**/v1/chat/completions"
PATIENCE_MS = 60_000
# So that a random model writes text, to its end.
READABLE: dict[str, Any] = {"ignore_eos": True, "allowed_token_ids": TEXT_TOKEN_IDS}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
SCREEN: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
LOOKS = [
    pytest.param({"viewport": size, "color_scheme": scheme}, id=f"{name}-{scheme}")
    for name, size in (("screen", SCREEN), ("phone", PHONE))
    for scheme in ("light", "dark")
]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test where there is none."""
    if not Path(CHROMIUM).exists():
        pytest.skip("needs Debian's chromium: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class ChatPage:
    """The page of a server as a user has it before them."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.asked: list[dict[str, Any]] = []  # bodies of the requests for chats
        self.hosts: set[str] = set()
        self.complaints: list[str] = []  # errors of scripts, and what the browser refused
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self._note(request.url, request.post_data))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.goto(url)

    def _note(self, url: str, body: str | None) -> None:
        self.hosts.add(urlsplit(url).netloc)
        if url.endswith("/chat/completions") and body is not None:
            self.asked.append(json.loads(body))

    def _hear(self, kind: str, text: str) -> None:
        # The browser tells of every answer that is an error; the page shows them.
        if kind == "error" and not text.startswith("Failed to load resource"):
            self.complaints.append(text)

    @property
    def prompt(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.page.get_by_role("article", name="Answer").last

    @property
    def text(self) -> str:
        """The text of the last answer as its tokens have it."""
        text = self.answer.locator("> .body").text_content()
        assert text is not None
        return text

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def send(self, text: str) -> None:
        """Sends a message, without waiting."""
        self.prompt.fill(text)
        self.button("Send").click()

    def wait(self) -> None:
        """Waits until the last answer is over."""
        self.answer.and_(self.page.locator('[aria-busy="false"]')).wait_for()
        self.button("Send").wait_for()

    def ask(self, text: str) -> str:
        """Sends a message and waits for the answer."""
        self.send(text)
        self.wait()
        return self.text

    def setting(self, label: str, value: str) -> None:
        """Fills in a setting, or chooses one of a list."""
        drawer = self.page.get_by_role("dialog", name="Settings")
        if not drawer.is_visible():
            self.button("Settings").click()
        chosen = drawer.get_by_role("combobox", name=label, exact=True)
        field = drawer.get_by_label(label, exact=True).or_(chosen)
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
        self.page.keyboard.press("Escape")
        expect(field).not_to_be_visible()


def drafting_engine(model: Path) -> Engine:
    """One that drafts the same number of tokens in every step."""
    return Engine(model, **OPTIONS, speculative_config={**NGRAM, "draft_length_policy": "fixed"})


@contextlib.contextmanager
def opened(
    browser: Browser, url: str, look: dict[str, Any] | None = None, **more: Any
) -> Iterator[ChatPage]:
    """The page of the server at `url`, in a browser that has seen nothing before.

    `look` are options of its context, and `more` goes into every request for a chat. In the end
    nothing has been loaded from another host and the browser has no complaint.
    """
    context = browser.new_context(**(look or {}))
    page = context.new_page()
    if more:

        def add(route: Route) -> None:
            body = json.loads(route.request.post_data or "")
            route.continue_(post_data=json.dumps({**body, **more}))

        page.route(CHAT, add)
    try:
        chat = ChatPage(page, url)
        yield chat
        assert chat.hosts == {urlsplit(url).netloc}
        assert chat.complaints == []
    finally:
        context.close()


def fulfill(route: Route, *choices: dict[str, Any]) -> None:
    """Answers a request for a chat with these choices, a chunk each."""
    events = [json.dumps({"choices": [{"index": 0, **choice}]}) for choice in choices]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    route.fulfill(body=body, content_type="text/event-stream")


def answer_with(chat: ChatPage, *choices: dict[str, Any]) -> None:
    """Answers every chat with these choices."""
    chat.page.route(CHAT, lambda route: fulfill(route, *choices))


def chunk(
    tokens: Sequence[str],
    *,
    content: str | None = None,
    trees: Sequence[dict[str, Any]] = (),
    finish: str | None = None,
) -> dict[str, Any]:
    """A choice of a chunk with these tokens; `content` is what it shows of them."""
    entry = {"logprob": -0.5, "bytes": [], "top_logprobs": []}
    entries = [{"token": token, **entry} for token in tokens]
    return {
        "delta": {"content": "".join(tokens) if content is None else content},
        "logprobs": {"content": entries},
        "draft_trees": list(trees),
        "finish_reason": finish,
    }


def node(
    text: str, parent: int, depth: int, drafter: str, probability: float, accepted: bool
) -> dict[str, Any]:
    """A node of a draft tree."""
    return {
        "token_id": 7,
        "text": text,
        "parent": parent,
        "depth": depth,
        "drafter": drafter,
        "probability": probability,
        "accepted": accepted,
    }
