// A whole answer on the page: its parts, legend, figures and buttons.

import { copyButton, make } from "./dom.js";
import { legend } from "./drafts.js";
import { AnswerBody } from "./part-views.js";
import { resultsForm } from "./results-view.js";
import { versionsNav } from "./versions.js";

/** Figures of an answer in words. */
export function figures(answer) {
  const { numTokens, speed, tokensPerStep, firstSeconds } = answer.stats();
  const parts = [numTokens === 1 ? "1 token" : `${numTokens} tokens`];
  if (speed !== null) parts.push(`${speed.toFixed(1)} tokens/s`);
  if (tokensPerStep !== null) parts.push(`${tokensPerStep.toFixed(2)} tokens a step`);
  if (firstSeconds !== null) parts.push(`first token after ${firstSeconds.toFixed(2)} s`);
  return parts.join(", ");
}

const ENDS = { length: "The answer has reached its greatest length.", stopped: "Stopped." };
const SILENT = "The model has ended its answer before the first word.";

/**
 * An answer. `actions` are {compare(view), again(), goOn(), remove(), answerCalls(results)};
 * `versions` is what versionsNav() takes.
 */
export class AnswerView {
  constructor(answer, versions, actions) {
    this.answer = answer;
    this._actions = actions;
    this._body = new AnswerBody(answer);
    this._error = make("p", { class: "error", role: "alert", hidden: true });
    this._note = make("p", { class: "note", hidden: true });
    this._legend = make("ul", { class: "legend", "aria-label": "Drafters", hidden: true });
    this._figures = make("p", { class: "figures", hidden: true });
    this._versions = versionsNav(versions);
    const button = (attributes, text) => make("button", { type: "button", ...attributes }, text);
    this._compare = button(
      {
        class: "quiet",
        title: "Answers once more without speculation",
        onclick: () => actions.compare(this),
      },
      "Compare",
    );
    this._copy = copyButton("Copy answer", () => answer.text);
    // The only version goes with its question.
    this._remove = button(
      { class: "quiet", "aria-label": "Delete answer", onclick: actions.remove },
      "Delete",
    );
    this._goOn = button({ class: "quiet", onclick: actions.goOn }, "Continue");
    this._buttons = make(
      "div",
      { class: "buttons", hidden: true },
      this._versions.node,
      button({ class: "quiet", onclick: actions.again }, "Again"),
      this._copy,
      this._goOn,
      this._compare,
      this._remove,
    );
    /** Where the calls of the answer get their results. */
    this._results = make("div");
    /** Where a comparison is shown. */
    this.comparison = make("div", { class: "comparison", hidden: true });
    this.node = make(
      "article",
      { class: "answer", "aria-label": "Answer" },
      ...[this._body.node, this._results, this._error, this._note, this._legend, this._figures],
      ...[this._buttons, this.comparison],
    );
    this.update();
  }

  /** Shows what has come since, and which version this is. */
  update() {
    const { answer } = this;
    const isOver = answer.finish !== null;
    this.node.setAttribute("aria-busy", String(!isOver));
    this._versions.update();
    this._remove.hidden = this._versions.count() < 2;
    this._body.update();
    if (!isOver) this._buttons.hidden = this._note.hidden = true;
    if (!isOver || !this._buttons.hidden) return;
    this._body.draw();
    show(this._error, answer.error);
    const isSilent = answer.finish === "stop" && answer.parts.length === 0;
    show(this._note, isSilent ? SILENT : ENDS[answer.finish]);
    show(this._figures, answer.times && figures(answer));
    this._legend.replaceChildren(...legend(answer));
    this._legend.hidden = answer.steps.length === 0;
    this._buttons.hidden = false;
    this._copy.hidden = answer.text === "";
    this._goOn.hidden = !answer.canResume;
    // A continued answer may have its tokens cut in other places.
    const isWhole = answer.transcript !== "" && !answer.isContinued;
    this._compare.hidden = !isWhole || answer.finish === "error";
    if (answer.calls.length > 0 && answer.finish !== "error") {
      this._results.replaceChildren(resultsForm(answer.calls, this._actions.answerCalls));
    }
  }

  /** Puts the focus on the button that shows another version. */
  focusVersions(step) {
    this._versions.focus(step);
  }
}

function show(node, text) {
  node.hidden = !text;
  node.textContent = text ?? "";
}
