"""Markdown and code of the chat page in Chromium, against CommonMark and while they grow."""

import html.parser
import random
import re

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Dialog, Page

from chat_page import ChatPage, answer_with, chunk

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


def test_tasks_have_boxes_and_cells_have_lines(module_page: Page) -> None:
    shown = module_page.evaluate(
        MARKDOWN, "- [ ] to do\n- [x] **done**\n- [X]\n- [y] other\n1. [x] so"
    )
    assert shown == (
        '<ul><li class="todo">to do</li><li class="done"><strong>done</strong></li>'
        '<li>[X]</li><li>[y] other</li></ul><ol><li class="done">so</li></ol>'
    )
    shown = module_page.evaluate(MARKDOWN, "| a |\n|---|\n| one<br>two<BR/>`<br>` <brr> |")
    assert "<td>one<br>two<br><code>&lt;br&gt;</code> &lt;brr&gt;</td>" in shown


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


# The formulas of a text by their sources, in blocks and in lines, and what else it shows.
FORMULAS = """async (source) => {
    const { markdown } = await import("/page/markdown.js");
    const root = document.createElement("div");
    root.append(...markdown(source));
    const isDrawn = root.querySelector("math") !== null;
    const take = (selector) => [...root.querySelectorAll(selector)].map((each) => {
        each.remove();
        const latex = each.querySelector("annotation, pre") ?? each;
        return latex.textContent;
    });
    const [blocks, lines] = [take("figure"), take(".math")];
    const rest = [...root.children].map(({ textContent }) => textContent).join(" ");
    return { blocks, lines, rest, isDrawn, hasEmphasis: root.querySelector("em") !== null };
}"""


@pytest.mark.parametrize(
    ("source", "blocks", "rest"),
    [
        ("$$\nx_1 *\n  y_2\n$$\nbehind", ["x_1 *\n  y_2"], "behind"),
        ("The sum is:\n\\[\n\\sum_i a_i\n\\]\nso", ["\\sum_i a_i"], "The sum is: so"),
        ("$$ a $$", [" a "], ""),
        ("- in a list\n  \\[ b \\]", [" b "], "in a list"),
        ("$$\nnever closed", ["never closed"], ""),
        ("$$\n\\unheardof x\n$$", ["\\unheardof x"], ""),
        ("$$ is the shell's own\n\n# and", [], "$$ is the shell's own and"),
        ("\\[x\\](y)", [], "[x](y)"),
    ],
)
def test_formulas_are_blocks_of_their_source(
    module_page: Page, source: str, blocks: list[str], rest: str
) -> None:
    shown = module_page.evaluate(FORMULAS, source)
    assert shown["blocks"] == blocks and shown["lines"] == []
    assert shown["rest"].split() == rest.split()
    assert shown["isDrawn"] == (blocks not in ([], ["never closed"], ["\\unheardof x"]))


@pytest.mark.parametrize(
    ("source", "formulas"),
    [
        (r"where \(a_1 * b_2 * c\) and \(d\)", ["a_1 * b_2 * c", "d"]),
        ("$x^2$ and $$y_1$$, $\\frac{1}{2}$.", ["x^2", "y_1", "\\frac{1}{2}"]),
        (r"so \[ x = 1 \] holds", [" x = 1 "]),
        ("$5 and $6, $HOME/$USER, US$1$2, a$b$c, $ x $", []),
        (r"\(open and \[link\](x) and $open", []),
        (r"`$a$` and **$b_1$**", ["b_1"]),
        (r"$\unheardof_a * b_c$", [r"\unheardof_a * b_c"]),
    ],
)
def test_formulas_in_lines_keep_their_source(
    module_page: Page, source: str, formulas: list[str]
) -> None:
    shown = module_page.evaluate(FORMULAS, source)
    assert shown["lines"] == formulas and shown["blocks"] == []
    if formulas:
        assert not shown["hasEmphasis"]


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
    letters += ["$", "$$", "\\(", "\\)", "\\[", "\\]"]
    letters += ["[x] ", "[ ] ", "<br>"]
    letters += ["> ", "|", "|a|b|\n", "|-|:-|\n", "~~~", "```py\n", "\n    ", "if 'a' # 1\n"]
    sources = ["".join(draw.choices(letters, k=draw.randint(1, 30))) for _ in range(600)]
    for source, result in zip(sources, module_page.evaluate(PIECES, sources), strict=True):
        length = len(source.encode("utf-16-le")) // 2
        bounds = [0, *(bound for pair in sorted(result["ranges"]) for bound in pair), length]
        assert bounds == sorted(bounds), source
        assert result["isSame"], source
