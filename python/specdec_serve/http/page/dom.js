// Elements of the page, made and found. Nothing here reads text as HTML.

/**
 * An element with attributes and children. An attribute "onclick" is a listener; false and null
 * leave an attribute out, true sets an empty one.
 */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** The element of index.html with this id; an id that is not there is an error of the page. */
export function byId(id) {
  const node = document.getElementById(id);
  if (node === null) throw new Error(`index.html has no #${id}`);
  return node;
}

/** Calls `send` on Enter in a field; Shift+Enter begins a line. */
export function onEnter(field, send) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
}

/** Puts `text` on the clipboard; without a secure context by way of a selection. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = make("textarea", { class: "off-screen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  const before = document.activeElement;
  field.select();
  document.execCommand("copy");
  field.remove();
  before?.focus();
}

/** A button that copies what `text()` gives and says so for a while. */
export function copyButton(label, text) {
  const button = make("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}
