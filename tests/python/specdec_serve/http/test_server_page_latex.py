"""LaTeX of the chat page as MathML in Chromium: what is written, and where the browser draws it."""

# ruff: noqa: RUF001 (signs that look like others are what is tested)

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from chat_page import ChatPage, answer_with, chunk, node

MATH = """async ([source, isBlock]) => {
    const { mathOf } = await import("/page/latex.js");
    const math = mathOf(source, isBlock);
    return math && [math.querySelector("annotation").textContent,
                    math.querySelector("semantics").firstElementChild.innerHTML];
}"""


def mathml(page: Page, source: str) -> str | None:
    """What a formula becomes, without attributes; None where it stays LaTeX."""
    found = page.evaluate(MATH, [source, True])
    if found is None:
        return None
    assert found[0] == source
    return re.sub(r"<(\w+) [^>]*>", r"<\1>", found[1])


def short(text: str) -> str:
    """Elements of one letter or sign as that sign, in brackets where it is an operator."""
    text = re.sub(r"<(?:mi|mn)>([^<]*)</(?:mi|mn)>", r"\1", text)
    return re.sub(r"<mo>([^<]*)</mo>", r"(\1)", text).replace("mrow>", "r>")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("E = mc^2", "E(=)m<msup>c2</msup>"),
        ("x_1^{10} - x^10", "<msubsup>x110</msubsup>(−)<msup>x1</msup>0"),
        ("f''(x) + g'^2", "<msup>f<r>(′)(′)</r></msup>(()x())(+)<msup>g<r>(′)2</r></msup>"),
        (r"\frac{a+b}2 \dfrac12", "<mfrac><r>a(+)b</r>2</mfrac><mfrac>12</mfrac>"),
        (r"\sqrt{x} \sqrt[3]{x}", "<msqrt>x</msqrt><mroot>x3</mroot>"),
        (r"\sum_{i=1}^n i", "<munderover>(∑)<r>i(=)1</r>n</munderover>i"),
        (r"\int_0^\infty", "<msubsup>(∫)0∞</msubsup>"),
        (r"\lim_{x \to 0} \sin x", "<munder>(lim)<r>x(→)0</r></munder>(sin)x"),
        (r"\operatorname*{argmax}_x", "<munder>(argmax)x</munder>"),
        (r"\left( \frac ab \right]", "<r>(()<mfrac>ab</mfrac>(])</r>"),
        (r"\left. x \right|_0", "<msub><r>()x(|)</r>0</msub>"),
        (r"\binom{n}{k}", "<r>(()<mfrac>nk</mfrac>())</r>"),
        (r"\hat{x} \overline{ab}", "<mover>x(^)</mover><mover><r>ab</r>(¯)</mover>"),
        (r"\underbrace{a}_{n}", "<munder><munder>a(⏟)</munder>n</munder>"),
        (r"\mathbb{R} \mathbb Z \mathcal{L} \mathbf{x}", "ℝℤℒ𝐱"),
        (r"\boldsymbol{\alpha} \mathrm{d}x", "αdx"),
        (r"x \text{ if } y", "x<mtext>&nbsp;if&nbsp;</mtext>y"),
        (r"50\% \{ a \} \$", "50(%)({)a(})($)"),
        (r"\alpha*2 \leq \neq \not=", "α(*)2(≤)(≠)(=\u0338)"),
        (r"a \pmod{n}", "a<r>((mod )n())</r>"),
        (
            r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}",
            "<r>(()<mtable><mtr><mtd>a</mtd><mtd>b</mtd></mtr>"
            "<mtr><mtd>c</mtd><mtd>d</mtd></mtr></mtable>())</r>",
        ),
        (
            r"\begin{cases} 1 & x \\ 0 \\ \end{cases}",
            "<r>({)<mtable><mtr><mtd>1</mtd><mtd>x</mtd></mtr><mtr><mtd>0</mtd></mtr></mtable></r>",
        ),
        (
            "\\begin{align*}\n a &= b \\\\\n &= c\n\\end{align*}",
            "<mtable><mtr><mtd>a</mtd><mtd>(=)b</mtd></mtr>"
            "<mtr><mtd></mtd><mtd>(=)c</mtd></mtr></mtable>",
        ),
        (
            r"\begin{array}{cc} 1 & 2 \end{array}",
            "<mtable><mtr><mtd>1</mtd><mtd>2</mtd></mtr></mtable>",
        ),
        ("a < b", "a(&lt;)b"),
        (r"\text{<b>}", "<mtext>&lt;b&gt;</mtext>"),
    ],
)
def test_latex_becomes_mathml(module_page: Page, source: str, expected: str) -> None:
    found = mathml(module_page, source)
    assert found is not None
    assert short(found) == expected


@pytest.mark.parametrize(
    "source",
    [
        *(r"\unheardof", "{a", "a}", "a & b", r"a \\ b", "x^2^3", "x_1_2", "x^", r"\frac{1}", "é{"),
        *(
            r"\left( a",
            r"\right)",
            r"\begin{pmatrix} a",
            r"\begin{tikzpicture} a \end{tikzpicture}",
        ),
        *(
            r"\begin{cases} a \end{matrix}",
            r"\left\alpha x \right)",
            r"\constructor",
            r"\sqrt[3",
            "#",
        ),
        *("{" * 10_000, r"\frac" * 10_000, r"\sqrt[" * 10_000, r"\left(" * 10_000, "x_" * 10_000),
        r"\begin{matrix}" * 10_000,
    ],
    ids=lambda source: source[:12],
)
def test_what_is_not_known_stays_latex(module_page: Page, source: str) -> None:
    assert mathml(module_page, source) is None


PLACES = """() => [...document.querySelectorAll(".answer math")].map((math) =>
    [...math.querySelectorAll("mi, mn, mo")].map((each) => {
        const { x, y, width, height } = each.getBoundingClientRect();
        return [each.textContent, x + width / 2, y + height / 2, height];
    }))"""


def test_the_browser_draws_formulas(chat: ChatPage) -> None:
    source = (
        r"$$\sum_{i}^n \frac{a}{b} c^2$$"
        + "\n\nand "
        + r"$\sum_j k$ "
        + r"$\left(\frac{x}{y}\right)$"
    )
    answer_with(chat, chunk([source], finish="stop"))
    chat.ask("go")
    block, line, fenced = [
        {text: (x, y, height) for text, x, y, height in each} for each in chat.page.evaluate(PLACES)
    ]
    assert block["n"][1] < block["∑"][1] < block["i"][1]  # one above the other
    assert abs(block["n"][0] - block["∑"][0]) < block["∑"][2] / 4
    assert block["a"][1] < block["c"][1] < block["b"][1]
    assert block["2"][1] < block["c"][1] and block["2"][0] > block["c"][0]
    assert line["∑"][0] < line["j"][0] < line["k"][0]
    assert fenced["("][2] > 1.5 * fenced["x"][2]  # as high as what is inside
    chat.button("Copy LaTeX").click()
    expect(chat.button("Copied").or_(chat.button("Not copied"))).to_be_visible()


def test_a_formula_stands_for_its_tokens(chat: ChatPage) -> None:
    trees: list[dict[str, Any]] = [
        {
            "at": 1,
            "nodes": [
                node(text, i - 1, i + 1, "ngram", 1, True) for i, text in enumerate(["a", "^2"])
            ],
        },
        {"at": 6, "nodes": [node("_1", -1, 1, "ngram", 1, True)]},
    ]
    tokens = ["$", "a", "^2", "$", " and $", "b", "_1", "$", " end"]
    answer_with(chat, chunk(tokens, trees=trees, finish="stop"))
    chat.ask("go")
    first, second = chat.answer.locator(".math").all()
    assert first.evaluate("e => [e.tagName, e.dataset.kind, e.dataset.token]") == [
        "MARK",
        "ngram",
        "1",
    ]
    assert second.evaluate("e => [e.tagName, e.dataset.kind ?? null, e.dataset.token]") == [
        *("SPAN", None, "5")
    ]
    tip = chat.page.get_by_role("tooltip")
    first.hover()
    expect(tip).to_contain_text("proposed by ngram")
    first.click()
    for key, expected in (("ArrowRight", " and "), ("ArrowRight", None), ("ArrowRight", " end")):
        chat.page.keyboard.press(key)
        focused = chat.page.locator(":focus")
        assert expected is None or focused.text_content() == expected
