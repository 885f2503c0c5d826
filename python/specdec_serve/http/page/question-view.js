// A question on the page: its text and files, and a form in which to change it.

import { copyButton, make, onEnter } from "./dom.js";
import { versionsNav } from "./versions.js";

/**
 * A question. `ask(text)` asks another version of it, and `remove()` deletes it; `versions` is what
 * versionsNav() takes.
 */
export class QuestionView {
  constructor({ text, files = [] }, versions, ask, remove) {
    this._text = text;
    this._ask = ask;
    this._versions = versionsNav(versions);
    const onclick = () => this._openForm();
    this._edit = make("button", { type: "button", class: "quiet", onclick }, "Edit");
    const bubble = make("div", { class: "bubble" }, ...files.map(fileView));
    if (text !== "") bubble.append(make("p", {}, text));
    const copy = copyButton("Copy message", () => text);
    const deletion = make(
      "button",
      { type: "button", class: "quiet", "aria-label": "Delete message", onclick: remove },
      "Delete",
    );
    this._shown = [
      bubble,
      make("div", { class: "buttons" }, this._versions.node, this._edit, copy, deletion),
    ];
    this.node = make("article", { class: "question", "aria-label": "You" }, ...this._shown);
  }

  /** Shows which version this is. */
  update() {
    this._versions.update();
  }

  /** Puts the focus on the button that shows another version. */
  focusVersions(step) {
    this._versions.focus(step);
  }

  _openForm() {
    const field = make("textarea", { "aria-label": "Changed message", rows: "3" });
    field.value = this._text;
    const close = () => this.node.replaceChildren(...this._shown);
    const send = () => {
      if (field.value.trim() !== "" && this._ask(field.value)) close();
    };
    const cancel = () => {
      close();
      this._edit.focus();
    };
    onEnter(field, send);
    const form = make(
      "form",
      {
        class: "bubble",
        onsubmit(event) {
          event.preventDefault();
          send();
        },
        onkeydown(event) {
          if (event.key !== "Escape") return;
          event.stopPropagation(); // which would stop an answer
          cancel();
        },
      },
      field,
      make(
        "div",
        { class: "buttons" },
        make("button", { type: "button", class: "quiet", onclick: cancel }, "Cancel"),
        make("button", { type: "submit", class: "quiet" }, "Send instead"),
      ),
    );
    this.node.replaceChildren(form);
    field.focus();
  }
}

/** A file that went with the question, folded. */
function fileView({ name, text }) {
  const pre = make("pre", { tabindex: "0" }, text);
  return make("details", { class: "file" }, make("summary", {}, name), pre);
}
