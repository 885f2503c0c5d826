// A question on the page: its text, and a form in which to change it.

import { make, onEnter } from "./dom.js";

/** The element of a question. `ask(text)` asks another in its place. */
export function questionView(text, ask) {
  const edit = make("button", { type: "button", class: "quiet", onclick: openForm }, "Edit");
  const shown = [make("p", {}, text), make("div", { class: "buttons" }, edit)];
  const node = make("article", { class: "question", "aria-label": "You" }, ...shown);

  function openForm() {
    const field = make("textarea", { "aria-label": "Changed message", rows: "4" });
    field.value = text;
    const close = () => {
      node.replaceChildren(...shown);
      edit.focus();
    };
    const send = () => {
      if (field.value.trim() !== "") ask(field.value);
    };
    onEnter(field, send);
    const cancel = make("button", { type: "button", class: "quiet", onclick: close }, "Cancel");
    const form = make(
      "form",
      {
        onsubmit(event) {
          event.preventDefault();
          send();
        },
        onkeydown(event) {
          if (event.key !== "Escape") return;
          event.stopPropagation(); // which would stop an answer
          close();
        },
      },
      field,
      make("div", { class: "buttons" }, make("button", { type: "submit" }, "Send instead"), cancel),
    );
    node.replaceChildren(form);
    field.focus();
  }

  return node;
}
