"""How well text can be told from its background, as WCAG 2 has it, and the texts of a page."""

from collections.abc import Iterator

from playwright.sync_api import Page

# [what, colour of the text, colour behind it] of each text in sight, placeholders among them.
_TEXTS = """() => {
    const rgba = (text) => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return [r, g, b, a];
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((c, i) => a * c + (1 - a) * below[i]);
    function behind(element) {
        const layers = [];
        for (let each = element; each; each = each.parentElement) {
            const colour = rgba(getComputedStyle(each).backgroundColor);
            layers.push(colour);
            if (colour[3] === 1) break;
        }
        return layers.reduceRight((below, colour) => over(colour, below), [255, 255, 255]);
    }
    const found = [];
    function note(element, what, style) {
        const background = behind(element);
        found.push([what, over(rgba(style.color), background), background]);
    }
    const isShown = (each) =>
        each.checkVisibility({ visibilityProperty: true }) && !each.closest(":disabled");
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const { data, parentElement } = walker.currentNode;
        if (data.trim() === "" || !isShown(parentElement)) continue;
        note(parentElement, data.trim().slice(0, 40), getComputedStyle(parentElement));
    }
    for (const field of document.querySelectorAll("input, textarea, select")) {
        if (!isShown(field)) continue;
        const hint = field.placeholder;
        note(field, field.name, getComputedStyle(field));
        if (hint) note(field, hint, getComputedStyle(field, "::placeholder"));
    }
    return found;
}"""


def contrast(text: list[float], background: list[float]) -> float:
    """The ratio, from 1 to 21, of two colours in sRGB from 0 to 255."""
    lighter, darker = sorted((luminance(text), luminance(background)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: list[float]) -> float:
    """The relative luminance of a colour."""
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrasts(page: Page) -> Iterator[tuple[str, float]]:
    """Each text in sight, and its contrast."""
    for what, text, background in page.evaluate(_TEXTS):
        yield what, contrast(text, background)
