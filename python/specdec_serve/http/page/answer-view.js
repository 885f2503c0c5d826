// An answer on the page: its text as Markdown with tinted drafts, legend, figures and buttons.

import { copyButton, make } from "./dom.js";
import { offerToTab } from "./draft-tip.js";
import { legend, tokenNodes } from "./drafts.js";
import { MarkdownView } from "./markdown.js";

const answers = new WeakMap(); // body -> answer

/** The answer that an element inside a view belongs to, or null. */
export function answerOf(element) {
  return answers.get(element.closest(".body")) ?? null;
}

/** The text of an answer, drawn once a frame at most while it comes. */
export class AnswerBody {
  constructor(answer) {
    this.answer = answer;
    this.node = make("div", { class: "body" });
    this._view = new MarkdownView(this.node, (start, end) => tokenNodes(answer, start, end));
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
    this._view.show(this.answer.text);
    offerToTab(this.node);
  }
}

/** Figures of an answer in words. */
export function figures(answer) {
  const { numTokens, speed, tokensPerStep, firstSeconds } = answer.stats();
  const parts = [`${numTokens} tokens`];
  if (speed !== null) parts.push(`${speed.toFixed(1)} tokens/s`);
  if (tokensPerStep !== null) parts.push(`${tokensPerStep.toFixed(2)} tokens a step`);
  if (firstSeconds !== null) parts.push(`first token after ${firstSeconds.toFixed(2)} s`);
  return parts.join(", ");
}

const COMPARE = "Compare without speculation";
const ENDS = { length: "The answer has reached its greatest length.", stopped: "Stopped." };

/** A whole answer. `actions` are {compare(view), again()}. */
export class AnswerView {
  constructor(answer, actions) {
    this.answer = answer;
    this.body = new AnswerBody(answer);
    this._error = make("p", { class: "error", role: "alert", hidden: true });
    this._note = make("p", { class: "note", hidden: true });
    this._legend = make("ul", { class: "legend", "aria-label": "Drafters", hidden: true });
    this._figures = make("p", { class: "figures", hidden: true });
    const compare = () => actions.compare(this);
    this._compare = make("button", { type: "button", class: "quiet", onclick: compare }, COMPARE);
    this._buttons = make(
      "div",
      { class: "buttons", hidden: true },
      make("button", { type: "button", class: "quiet again", onclick: actions.again }, "Again"),
      copyButton("Copy answer", () => answer.text),
      this._compare,
    );
    /** Where a comparison is shown. */
    this.comparison = make("div", { class: "comparison", hidden: true });
    this.node = make(
      "article",
      { class: "answer", "aria-label": "Answer" },
      ...[this.body.node, this._error, this._note, this._legend, this._figures],
      ...[this._buttons, this.comparison],
    );
    this.update();
  }

  /** Shows what has come since. */
  update() {
    const { answer } = this;
    const isOver = answer.finish !== null;
    this.node.setAttribute("aria-busy", String(!isOver));
    this.body.update();
    if (!isOver) return;
    this.body.draw();
    show(this._error, answer.error);
    show(this._note, ENDS[answer.finish]);
    show(this._figures, answer.times && figures(answer));
    this._legend.replaceChildren(...legend(answer));
    this._legend.hidden = answer.steps.length === 0;
    this._buttons.hidden = false;
    this._compare.hidden = answer.text === "" || answer.finish === "error";
  }
}

function show(node, text) {
  node.hidden = !text;
  node.textContent = text ?? "";
}
