// The parts of an answer on the page: content as Markdown, folded reasoning, calls of tools.

import { copyButton, make } from "./dom.js";
import { offerToTab } from "./draft-tip.js";
import { tokenNodes } from "./drafts.js";
import { MarkdownView } from "./markdown.js";

const answers = new WeakMap(); // body -> answer

/** The answer that an element inside a body belongs to, or null. */
export function answerOf(element) {
  return answers.get(element.closest(".body")) ?? null;
}

/** The parts of an answer, drawn once a frame at most while they come. */
export class AnswerBody {
  constructor(answer) {
    this.answer = answer;
    this.node = make("div", { class: "body" });
    this._views = [];
    this._isDue = false;
    answers.set(this.node, answer);
    this.draw();
  }

  /** Draws what has come since. */
  update() {
    if (this._isDue) return;
    this._isDue = true;
    // A page in the background gets no frames.
    if (document.hidden) setTimeout(() => this.draw(), 200);
    else requestAnimationFrame(() => this.draw());
  }

  /** Draws now. */
  draw() {
    this._isDue = false;
    const { parts, finish } = this.answer;
    parts.forEach((part, i) => {
      if (!this._views[i]) {
        this._views[i] = new VIEWS[part.kind](this.answer, part);
        this.node.append(this._views[i].node);
      }
      const isOver = finish !== null || i < parts.length - 1;
      if (!this._views[i].isOver) this._views[i].show(isOver);
      this._views[i].isOver = isOver;
    });
    offerToTab(this.node);
  }
}

/** Text as Markdown, or as code where there is a `language`, with tinted drafts. */
class TextView {
  constructor(answer, part, language = null) {
    this.node = make("div", { class: "text" });
    this._part = part;
    const text = (start, end) => tokenNodes(answer, part.start + start, part.start + end);
    this._view = new MarkdownView(this.node, text, language);
  }

  show() {
    this._view.show(this._part.text);
  }
}

/** The content: Markdown, unless the request has asked for JSON. */
class ContentView extends TextView {
  constructor(answer, part) {
    super(answer, part, answer.params.response_format?.type?.startsWith("json") ? "json" : null);
  }
}

/** Reasoning, folded until the reader opens it. */
class ReasoningView {
  constructor(answer, part) {
    this._part = part;
    this._text = new TextView(answer, part);
    this._summary = make("summary");
    this.node = make("details", { class: "reasoning" }, this._summary, this._text.node);
  }

  show(isOver) {
    const { first, last } = this._part.times;
    const seconds = ((last - first) / 1000).toFixed(1);
    this._summary.textContent = isOver ? `Reasoning (${seconds} s)` : "Reasoning …";
    this._text.show();
  }
}

/** A call of a tool: its name, and its arguments as they grow. */
class CallView {
  constructor(answer, part) {
    this._part = part;
    this._name = make("span", { class: "name" });
    this._arguments = make("code");
    this.node = make(
      "figure",
      { class: "code call", "aria-label": "Call of a tool" },
      make(
        "figcaption",
        {},
        make("span", {}, "calls ", this._name),
        copyButton("Copy arguments", () => this._arguments.textContent),
      ),
      make("pre", { tabindex: "0" }, this._arguments),
    );
  }

  show(isOver) {
    this._name.textContent = this._part.name;
    this._arguments.textContent = isOver ? indented(this._part.text) : this._part.text;
  }
}

const VIEWS = { content: ContentView, reasoning: ReasoningView, call: CallView };

/** JSON with line breaks; what is no JSON as it stands. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
