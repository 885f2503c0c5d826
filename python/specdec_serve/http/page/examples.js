// The empty page: what a user might ask, of the kinds that speculation helps more and less.

import { make } from "./dom.js";

const EXAMPLES = [
  [
    "Change code",
    "Write this class again, with a method area() added:\n\n```python\nclass Rectangle:\n" +
      "    def __init__(self, width, height):\n        self.width = width\n" +
      "        self.height = height\n```",
  ],
  ["Write code", "Write a Python function that merges two sorted lists, and explain each line."],
  ["Make a table", "Make a table of the planets with their diameters and numbers of moons."],
  ["Explain", "Explain in five sentences how speculative decoding makes a language model faster."],
];

/** The element; `ask(text)` asks the chosen one. */
export function examplesView(ask) {
  const cards = EXAMPLES.map(([title, text]) =>
    make(
      "li",
      {},
      make(
        "button",
        { type: "button", class: "example", onclick: () => ask(text) },
        make("strong", {}, title),
        make("span", {}, text.split("\n")[0]),
      ),
    ),
  );
  return make(
    "section",
    { class: "examples", "aria-label": "Examples" },
    make("h2", {}, "What shall the model write?"),
    make("p", {}, "Tokens that a drafter has guessed right are tinted. Try:"),
    make("ul", {}, ...cards),
  );
}
