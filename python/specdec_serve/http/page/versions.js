// Which of several versions of a turn is shown, and buttons to the others.

import { make } from "./dom.js";

/**
 * {node, count(), update(), focus(step)} of "1 of 3" between two buttons. `versions` are {place(), go(step)}:
 * place() is {index, count}, and go() shows the version before (-1) or after (1).
 */
export function versionsNav(versions) {
  const button = (label, text, step) => {
    const attributes = { type: "button", class: "quiet", "aria-label": label, title: label };
    return make("button", { ...attributes, onclick: () => versions.go(step) }, text);
  };
  const before = button("Version before", "‹", -1);
  const after = button("Version after", "›", 1);
  const text = make("span");
  const node = make("div", { class: "versions", role: "group", "aria-label": "Versions" });
  node.append(before, text, after);

  function update() {
    const { index, count } = versions.place();
    node.hidden = count < 2;
    text.textContent = `${index + 1} of ${count}`;
    before.disabled = index === 0;
    after.disabled = index === count - 1;
  }

  function focus(step) {
    const [first, second] = step < 0 ? [before, after] : [after, before];
    (first.disabled ? second : first).focus();
  }

  update();
  return { node, count: () => versions.place().count, update, focus };
}
