"""Tokens and drafts of the chat page in Chromium, with made-up streams."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from chat_page import ChatPage, answer_with, chunk, node

# -- Tokens and drafts

TREE = {
    "at": 1,
    "nodes": [
        node(" quick", -1, 1, "ngram", 0.75, True),
        node(" slow", -1, 1, "suffix", 0.125, False),
        node(" brown", 0, 2, "eagle3", 0.5, True),
        node(" red", 0, 2, "suffix", 0.03, False),
    ],
}
STREAM = (
    chunk(["The"]),
    chunk([" quick", " brown", " fox"], trees=[TREE]),
    chunk([" **runs", "**", ".", "<|end|>"], content=" **runs**.", finish="stop"),
)


def test_accepted_drafts_are_tinted_by_their_drafter(chat: ChatPage) -> None:
    answer_with(chat, *STREAM)
    assert chat.ask("go") == "The quick brown fox runs."
    marks = chat.answer.locator("> .body mark")
    assert [(each.text_content(), each.get_attribute("data-kind")) for each in marks.all()] == [
        (" quick", "ngram"),
        (" brown", "head"),
    ]
    assert chat.answer.locator("strong").text_content() == "runs"
    tints = {each.evaluate("e => getComputedStyle(e).backgroundColor") for each in marks.all()}
    assert len(tints) == 2
    legend = chat.answer.get_by_role("list", name="Drafters").get_by_role("listitem")
    assert legend.all_text_contents() == [
        "ngram 1 of 1 drafts accepted",
        "suffix 0 of 2 drafts accepted",
        "eagle3 1 of 1 drafts accepted",
    ]
    assert "8 tokens" in str(chat.answer.text_content())
    assert f"{8 / 6:.2f} tokens a step" in str(chat.answer.text_content())


def test_a_token_tells_of_its_step(chat: ChatPage) -> None:
    answer_with(chat, *STREAM)
    chat.ask("go")
    tip = chat.page.get_by_role("tooltip")
    body = chat.answer.locator("> .body")
    body.get_by_text("brown").hover()
    said = tip.inner_text()
    assert "␣brown proposed by eagle3, accepted" in said
    assert re.search(r"Depth\s+2 of 2", said)
    assert re.search(r"Model's probability\s+61%", said)  # exp(-0.5)
    assert re.search(r"Drafter's probability\s+50%", said)
    nodes = tip.locator(".tree li").all_inner_texts()
    assert nodes[0].startswith("␣quick ngram 75% accepted")
    assert nodes[0].splitlines()[-1] == "␣red suffix 3.0% not accepted"  # a child of " quick"
    assert nodes[-1] == "␣slow suffix 13% not accepted"
    assert tip.locator('[aria-current="true"] > mark').inner_text() == "␣brown"
    body.get_by_text("fox").hover()
    assert "the model's own, behind the accepted drafts" in tip.inner_text()
    assert "␣red" in tip.inner_text()
    body.get_by_text("The").hover()
    assert "nothing was drafted" in tip.inner_text()
    chat.prompt.hover()
    assert not tip.is_visible()


def test_arrow_keys_go_from_token_to_token(chat: ChatPage) -> None:
    answer_with(chat, *STREAM)
    chat.ask("go")
    tip = chat.page.get_by_role("tooltip")
    chat.button("Delete message").focus()
    chat.page.keyboard.press("Tab")
    assert "␣quick" in tip.inner_text()  # the first draft
    focused = chat.page.locator(":focus")
    assert focused.get_attribute("aria-describedby") == tip.get_attribute("id")
    for key, expected in (("ArrowRight", "brown"), ("ArrowLeft", "quick"), ("Home", "The")):
        chat.page.keyboard.press(key)
        assert focused.text_content() == expected or focused.text_content() == f" {expected}"
        assert f"{expected}" in tip.inner_text()
    chat.page.keyboard.press("Escape")
    assert not tip.is_visible()
    chat.page.keyboard.press("Tab")
    assert focused.text_content() == "Again"


def test_text_that_is_held_back_finds_its_tokens(chat: ChatPage) -> None:
    """Halves of characters have no text, and stop strings hold text back."""
    tree = {"at": 2, "nodes": [node("é", -1, 1, "ngram", 0.5, True)]}
    answer_with(
        chat,
        chunk(["a", ""], content="a"),
        chunk(["é", " b"], content="", trees=[tree]),
        chunk([" c"], content="é b c", finish="length"),
    )
    assert chat.ask("go") == "aé b c"
    assert chat.answer.locator("> .body mark").all_text_contents() == ["é"]
    assert chat.answer.locator("> .body span").all_text_contents() == ["a", " b", " c"]
    assert "greatest length" in str(chat.answer.text_content())


def test_a_server_without_logprobs_and_drafts_will_do(chat: ChatPage) -> None:
    choice: dict[str, Any] = {"delta": {"content": "hello"}, "logprobs": None}
    answer_with(chat, choice, {"delta": {}, "finish_reason": "stop"})
    assert chat.ask("go") == "hello"
    assert chat.answer.locator("mark").count() == 0


VERDICT = """async ([texts, milliseconds, finish]) => {
    const { Answer } = await import("/page/answer.js");
    const { verdict } = await import("/page/compare.js");
    const [drafted, plain] = texts.map((text, i) => new Answer({
        parts: [{ kind: "content", text, start: 0 }],
        tokens: [...text].map((each) => ({ text: each, logprob: 0 })),
        finish: i === 0 ? finish : "stop",
        times: { first: 100, last: 100 + milliseconds[i], numFirst: 2 },
    }));
    return verdict(drafted, plain);
}"""


@pytest.mark.parametrize(
    ("texts", "milliseconds", "finish", "same", "said"),
    [
        (
            ["a" * 12, "a" * 12],
            [500, 1000],  # ten tokens behind the first two
            "stop",
            True,
            "The text is the same. 20.0 tokens/s with speculation, 10.0 without: 2.00 times as "
            "fast.",
        ),
        (["abcd", "abcd"], [0, 1000], "length", True, "The text is the same."),
        (["abcd", "abcx"], [0, 0], "stop", False, "The texts differ from character 4 on."),
        (["abc", "abcd"], [0, 0], "stop", False, "The texts differ from character 4 on."),
        (["abc", "abcd"], [0, 0], "stopped", True, "The text is the same."),
        (["abx", "abcd"], [0, 0], "stopped", False, "The texts differ from character 3 on."),
    ],
)
def test_what_is_said_of_two_answers(
    module_page: Page,
    texts: list[str],
    milliseconds: list[int],
    finish: str,
    same: bool,
    said: str,
) -> None:
    verdict = module_page.evaluate(VERDICT, [texts, milliseconds, finish])
    assert verdict["isSame"] == same and verdict["text"] == said
    assert verdict["factor"] == (2 if "2.00 times" in said else None)


def test_tints_survive_a_reload(chat: ChatPage) -> None:
    answer_with(chat, *STREAM)
    chat.ask("go")
    chat.page.reload()
    assert chat.text == "The quick brown fox runs."
    assert chat.answer.locator("> .body mark").all_text_contents() == [" quick", " brown"]
    chat.answer.locator("> .body").get_by_text("brown").hover()
    assert "proposed by eagle3" in chat.page.get_by_role("tooltip").inner_text()


def test_a_full_browser_keeps_texts_rather_than_drafts(chat: ChatPage) -> None:
    answer_with(chat, *STREAM)
    chat.ask("first")
    chat.page.evaluate(
        """() => {
            let size = 1 << 22;
            while (size > 64) {
                try { localStorage.setItem(`filler${size}-${Math.random()}`, "x".repeat(size)); }
                catch { size >>= 1; }
            }
        }"""
    )
    chat.button("New conversation").click()
    chat.ask("second")
    chat.page.reload()
    names = chat.page.locator("#conversations button.open").all_text_contents()
    assert names == ["second", "first"]
    assert chat.text == "The quick brown fox runs."
    chat.button("first").click()
    assert chat.text == "The quick brown fox runs."
    assert chat.answer.locator("> .body mark").count() == 0


def test_the_strip_shows_the_servers_metrics(chat: ChatPage) -> None:
    lengths = [(10, 4), (40, 10)]  # sums and counts of two looks
    looks = iter([*lengths, *[lengths[-1]] * 1000])

    def page_of_metrics(route: Any) -> None:
        total, count = next(looks)
        route.fulfill(
            body=f'vllm:kv_cache_usage_perc{{engine="0"}} 0.375\n'
            f'specdec_native:draft_length_sum{{engine="0"}} {total}.0\n'
            f'specdec_native:draft_length_count{{engine="0"}} {count}.0\n'
        )

    chat.page.route("**/metrics", page_of_metrics)
    chat.page.reload()
    strip = chat.page.locator("#strip")
    expect(strip.locator("#strip-kv")).to_have_text("37.5%")
    assert not strip.is_visible()  # there is no answer yet
    answer_with(chat, *STREAM)
    chat.ask("go")
    strip.get_by_text("5.0", exact=True).wait_for()  # (40 - 10) / (10 - 4)
    assert strip.locator("#strip-step").inner_text() == f"{8 / 6:.2f}"
