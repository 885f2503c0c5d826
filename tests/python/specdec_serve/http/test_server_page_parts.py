"""The parts of the chat page in Chromium, with made-up streams."""

import html.parser
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, Dialog, Page

from chat_page import ChatPage, answer_with, chromium, chunk, node, opened
from server_world import World, serving
from specdec_native import Engine


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[World]:
    with serving(engine) as world:
        yield world


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def module_page(browser: Browser, world: World) -> Iterator[Page]:
    """A page whose modules tests call."""
    with opened(browser, world.url) as chat:
        yield chat.page


@pytest.fixture
def chat(browser: Browser, world: World) -> Iterator[ChatPage]:
    with opened(browser, world.url) as chat:
        yield chat


# -- Markdown

MARKDOWN = """async (source) => {
    const { markdown } = await import("/page/markdown.js");
    const root = document.createElement("div");
    root.append(...markdown(source));
    return root.innerHTML;
}"""


PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
PARSER.disable("entity")


class Canonical(html.parser.HTMLParser):
    """HTML as a list of tags and words, without what the page puts around code."""

    def __init__(self, text: str, shift: int = 0) -> None:
        super().__init__()
        self._shift = shift
        self._caption = False
        self.parts: list[str] = []
        self.feed(re.sub(r"</?span[^>]*>", "", text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "figcaption":
            self._caption = True
        self._add(tag, "", f" {values[key]}" if (key := self._shown(tag)) in values else "")

    def handle_endtag(self, tag: str) -> None:
        if tag != "hr":
            self._add(tag, "/", "")
        if tag == "figcaption":
            self._caption = False

    def handle_data(self, data: str) -> None:
        if not self._caption:
            self.parts += [*(" " if data[:1].isspace() else ""), *data.split()]

    def _add(self, tag: str, slash: str, more: str) -> None:
        if self._caption or tag in {"figure", "figcaption"}:
            return
        tag = "del" if tag == "s" else tag
        if re.fullmatch(r"h[1-6]", tag):
            tag = f"h{min(int(tag[1]) + self._shift, 6)}"
        while self.parts and self.parts[-1] == " ":
            self.parts.pop()
        self.parts.append(f"<{slash}{tag}{more}>")

    @staticmethod
    def _shown(tag: str) -> str:
        return {"a": "href", "ol": "start", "th": "class", "td": "class"}.get(tag, "none")


def words(parts: list[str]) -> list[str]:
    return [part for part in parts if part != " "]


@pytest.mark.parametrize(
    "source",
    [
        "One paragraph\nof two lines.\n\nAnother one.",
        "# One\n## Two ##\n### Three with `code` and *more*\n#### Four\n##### Five",
        "**strong** and *em* and __strong__ and _em_ and ***both*** and ~~gone~~",
        "snake_case_name and 2 * 3 * 4 and 5*6 and a*b*c and ** not ** and _ not _",
        "**bold *and em* in it** then *em **and bold** in it*",
        "`a *b* c` and ``a ` b`` and ` x ` and `open",
        r"\*not em\* and \`not code\` and \# and \a and \\",
        "- one\n- two\n- three",
        "* one\n* two\n\n+ another list\n+ of two",
        "1. one\n2. two\n3) another\n4) list",
        "7. seven\n8. eight",
        "- one\n  - nested\n  - twice\n    - deeper\n- two",
        "1. one\n   - nested\n   - again\n2. two\n\n   with a paragraph\n3. three",
        "- loose\n\n- list\n\n- of three",
        "- lazy\ngoes on\n- two",
        "- one\n\n  ```\n  code\n    more\n  ```\n- two",
        "Text before\n- a list\n1. and another\n\ntext behind",
        "```python\ndef f(x):\n    return x * 2  # *not em*\n\n\nf(1)\n```\nafter",
        "~~~\ntildes\n```\n~~~",
        "````\n```\ninner\n```\n````",
        "```\nnever closed\n\n# not a heading",
        "[a link](https://example.org/a?b=c&d=1) and [**bold**](http://example.org/x_(y))",
        '[titled](https://example.org/ "title") [not a link] (x) [no](',
        '[mail](mailto:a@example.org) ![picture](https://example.org/p.png "t")x',
        "above\n\n---\n\nbelow\n\n***\n",
        "<script>alert(1)</script> & <b>bold</b> &amp; 1 < 2 > 0",
        "a line with trailing spaces \nand\ttabs",
        "über *straße* 日本語 **テキスト** 😀 `🎉`",
        "",
        "\n\n\n",
        "#not a heading\n####### nor this",
        "-not a list\n1.nor this\n\n- \n- x",
        "| a | b |\n|---|---|\n| 1 | **2** |\n| 3 | `4` |\n\nbehind",
        "| l | c | r | n |\n|:-|:-:|-:|-|\n| 1 | 2 | 3 | 4 |",
        "text\na | b\n--- | ---\n1\n1 | 2 | 3\n# heading",
        "| a\\|b | `c\\|d` |\n|---|---|\n|  | \\\\ |\n\n| x |\n|---|\n\n| a | b |\n|---|",
        "- | a |\n  |---|\n  | 1 |\n\n> | a |\n> |---|\n> | 1 |",
        "> a quote\n> of *two* lines\n\n>tight\n>> nested\n> again\n\nbehind",
        "> lazy\ngoes on\n- not in it\n\n> # heading\nnot in it\n\n> ```\n> code\nnot in it",
        "> - a list\n>   - nested\n>\n>   more\n>\n> 1. one\n\n- > quoted\n  > item\n- x",
        "> **strong\n> across** `code\n> too` > no",
        "- a\n  - b\n\n  - c\n- d",
        "- one\n\n      code\n- two\n-     code\n\n  text",
        "para\n    goes on\n\n    code\n\n      more\n\npara",
        "-\tone\n\t- nested\n-\ttwo",
    ],
)
def test_markdown_is_what_commonmark_makes_of_it(module_page: Page, source: str) -> None:
    expected = PARSER.render(source)
    expected = re.sub(r'style="text-align:(\w+)"', r'class="\1"', expected)
    expected = re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', r'<a href="\1">\2</a>', expected)
    shown = module_page.evaluate(MARKDOWN, source)
    assert words(Canonical(shown).parts) == words(Canonical(expected, 2).parts)


def test_other_html_is_told_apart() -> None:
    """So that the test before can fail."""
    good = words(Canonical("<h3>a</h3><ul><li>b</li></ul>").parts)
    assert good == words(Canonical("<h1>a</h1>\n<ul>\n<li>b</li>\n</ul>", 2).parts)
    for bad in ("<h2>a</h2><ul><li>b</li></ul>", "<h1>a</h1><ul><li><p>b</p></li></ul>"):
        assert good != words(Canonical(bad, 2).parts)


# What pre elements show of each beginning of a source, as it grows.
GROWING_CODE = """async (source) => {
    const { MarkdownView } = await import("/page/markdown.js");
    const root = document.createElement("div");
    let shown = "";
    const view = new MarkdownView(root, (start, end) => [shown.slice(start, end)]);
    return Array.from({ length: source.length + 1 }, (_, length) => {
        shown = source.slice(0, length);
        view.show(shown);
        return [...root.querySelectorAll("pre")].map((each) => each.textContent);
    });
}"""
CODE = "def f(x):\n    if x:\n\n        return [\n\t\tx,  \n        ]\n\n\n    return None"


def code_of(source: str) -> list[str]:
    """What markdown-it-py finds of code."""
    kinds = {"fence", "code_block"}
    return [token.content for token in PARSER.parse(source) if token.type in kinds]


def around(before: str, margin: str, after: str) -> str:
    return before + "".join(f"{margin}{line}\n" for line in CODE.split("\n")) + after


@pytest.mark.parametrize(
    "source",
    [
        around("```python\n", "", "```\nbehind"),
        around("Text\n~~~ py ~ `x`\n", "", "~~~\n"),
        around("~~~~~\n", "", "~~~\n```\n~~~~\n~~~~~~\n"),
        around("`````js\n```\n", "", "````\n`````\n"),
        around("  ```\n", "  ", "  ```\n"),
        around("- one\n\n  ```\n", "  ", "  ```\n- two"),
        around("1. one:\n   ```python\n", "   ", "   ```\n2. two"),
        around("10. ten\n    - in it\n\n      ~~~\n", "      ", "      ~~~\n\n      text"),
        around("- ````\n  ~~~\n  ```\n", "  ", "  ````\n"),
        around("- one\n    ```\n", "    ", "    ```\n"),
        around("> ```\n", "> ", "> ```\n"),
        around("> 1. one\n>\n>    ```c\n", ">    ", ">    ```\n> 2. two"),
        around("Text\n\n", "    ", "\nbehind"),
    ],
)
def test_code_keeps_every_space_and_line(module_page: Page, source: str) -> None:
    growing = module_page.evaluate(GROWING_CODE, source)
    assert [f"{code}\n" for code in growing[-1]] == code_of(source)
    assert CODE.splitlines()[1] in growing[-1][0]
    for length, shown in enumerate(growing):
        expected = [code.rstrip() for code in code_of(source[:length])]
        assert [code.rstrip() for code in shown] == expected, source[:length]


def test_code_that_is_indented_less_than_what_is_around(module_page: Page) -> None:
    """As models write it; CommonMark would end the list, and move some of the lines."""
    assert module_page.evaluate(GROWING_CODE, around("   ```\n", "", "```\n"))[-1] == [CODE]
    source = around("1. one\n  ```\n", "  ", "  ```\n2. two")
    assert module_page.evaluate(GROWING_CODE, source)[-1] == [CODE]
    assert module_page.evaluate(MARKDOWN, source).count("<ol>") == 1


def test_code_outside_of_fences_shows_its_indentation(chat: ChatPage) -> None:
    source = "def f(x):\n    if x:\n        return x"
    answer_with(chat, chunk(list(source), finish="stop"))
    chat.ask("  indented\n    more")
    assert chat.answer.locator("p").first.inner_text() == source
    question = chat.page.get_by_role("article", name="You").locator("p")
    assert question.inner_text() == "  indented\n    more"
    assert chat.asked[0]["messages"][0]["content"] == "  indented\n    more"


COLOURS = """async ([code, language]) => {
    const { highlight } = await import("/page/highlight.js");
    const parts = highlight(code, language);
    return parts.map(({ start, end, kind }) => [kind, code.slice(start, end)]);
}"""


@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [
        (
            "Python",
            'def f(x1):  # if\n    return \'a # b\' + "\\"" + 1.5e3',
            'keyword def|comment # if|keyword return|string \'a # b\'|string "\\""|number 1.5e3',
        ),
        ("py", '"""a\n"b"""; None', 'string """a\n"b"""|keyword None'),
        ("py", "x = 'open\nif", "string 'open|keyword if"),
        (
            "js",
            "let a = `b\n${c}`; // d\n/* e\nf */ 0xFF",
            "keyword let|string `b\n${c}`|comment // d|comment /* e\nf */|number 0xFF",
        ),
        ("cpp", "int main() { return 'a'; }", "keyword int|keyword return|string 'a'"),
        ("rust", "fn f<'a>(x: &'a str) -> char { 'b' }", "keyword fn|keyword char|string 'b'"),
        ("bash", "if [ $# -gt 2 ]; then # c", "keyword if|number 2|keyword then|comment # c"),
        ("sql", "SELECT a FROM b -- c", "keyword SELECT|keyword FROM|comment -- c"),
        (
            "html",
            "<!-- a --><p class='b'>it's if</p>",
            "comment <!-- a -->|keyword <p|string 'b'|keyword >|keyword </p|keyword >",
        ),
        ("json", '{"a": [1, true]}', 'string "a"|number 1|keyword true'),
        ("unheard-of", "if 1", ""),
        ("", "if 1", ""),
    ],
)
def test_code_has_colours(module_page: Page, language: str, code: str, expected: str) -> None:
    found = module_page.evaluate(COLOURS, [code, language])
    assert "|".join(f"{kind} {text}" for kind, text in found) == expected


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1)) [y](data:text/html,x) [z](JaVaScRiPt:alert(1)) [w](vbscript:x)",
    "![x](https://elsewhere.example/pixel.png)",
    "<script>alert(1)</script>\n```html\n<script>alert(1)</script>\n```",
    '[x](https://a.example/"onmouseover="alert(1))',
    "`<iframe src=//a.example>`",
    "> <img src=x onerror=alert(1)>\n\n| <script>alert(1)</script> |\n|---|\n| [x](javascript:a) |",
]


def test_what_a_model_writes_is_only_text(chat: ChatPage) -> None:
    dialogs: list[str] = []

    def note(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    chat.page.on("dialog", note)
    answer_with(chat, chunk(list("\n\n".join(HOSTILE)), finish="stop"))
    chat.ask("hello")
    for tag in ("script", "img", "iframe"):
        assert chat.answer.locator(tag).count() == 0
    for link in chat.answer.locator("a").all():
        href = link.get_attribute("href")
        assert href is not None and href.startswith("https://")
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"
        assert link.get_attribute("onmouseover") is None
    assert "<img src=x onerror=alert(1)>" in chat.text
    assert dialogs == []


PIECES = """async (sources) => {
    const { markdown, MarkdownView } = await import("/page/markdown.js");
    return sources.map((source) => {
        const ranges = [];
        const text = (start, end) => (ranges.push([start, end]), [source.slice(start, end)]);
        const once = document.createElement("div");
        once.append(...markdown(source, text));
        const root = document.createElement("div");
        let shown = "";
        const view = new MarkdownView(root, (start, end) => [shown.slice(start, end)]);
        for (let i = 0; i <= source.length; i += 1) {
            shown = source.slice(0, i);
            view.show(shown);
        }
        return { ranges, isSame: root.innerHTML === once.innerHTML };
    });
}"""


def test_pieces_of_text_keep_their_order_and_growing_ends_the_same(module_page: Page) -> None:
    draw = random.Random(5)
    letters = ["*", "**", "_", "`", "```", "~~", "[", "](", ")", "\n", "\n\n", " ", "  ", "- "]
    letters += ["1. ", "# ", "a", "b ", "\\", "http://a", "<b>", "😀", "---", "\t"]
    letters += ["> ", "|", "|a|b|\n", "|-|:-|\n", "~~~", "```py\n", "\n    ", "if 'a' # 1\n"]
    sources = ["".join(draw.choices(letters, k=draw.randint(1, 30))) for _ in range(600)]
    for source, result in zip(sources, module_page.evaluate(PIECES, sources), strict=True):
        length = len(source.encode("utf-16-le")) // 2
        places = [0, *(place for pair in sorted(result["ranges"]) for place in pair), length]
        assert places == sorted(places), source
        assert result["isSame"], source


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
    chat.button("Edit").focus()
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
        text,
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
    assert verdict == {"isSame": same, "text": said}


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
    strip.get_by_text("37.5%").wait_for()
    answer_with(chat, *STREAM)
    chat.ask("go")
    strip.get_by_text("5.0", exact=True).wait_for()  # (40 - 10) / (10 - 4)
    assert strip.locator("#strip-step").inner_text() == f"{8 / 6:.2f}"
