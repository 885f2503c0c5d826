// Elements of the page, made and found. Nothing here reads text as HTML.

const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";
const ICONS = {
  rename: "M4 20l1-5L16 4l4 4L9 19zM14 6l4 4",
  save: "M12 4v11M7 10l5 5 5-5M5 20h14",
  remove: "M6 6l12 12M18 6L6 18",
};

/**
 * An element with attributes and children. An attribute "onclick" is a listener; false and null
 * leave an attribute out, true sets an empty one.
 */
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of SVG, as make() makes those of HTML. */
export function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** An element of MathML. */
export function formula(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(MATHML, tag), attributes, children);
}

/** A small button with a drawing of lines, one of ICONS. */
export function iconButton(label, name, onclick) {
  const attributes = { type: "button", class: "small", "aria-label": label, title: label, onclick };
  const path = draw("path", { d: ICONS[name] });
  const drawing = draw("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, path);
  return make("button", attributes, drawing);
}

function filled(node, attributes, children) {
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

/** Lets `choose(files)` have what the user chooses by a button with a file field. */
export function onFiles(button, field, choose) {
  button.addEventListener("click", () => field.click());
  field.addEventListener("change", async () => {
    await choose([...field.files]);
    field.value = ""; // so that the same file may come again
  });
}

/** Whether the page is used by touch. */
export function isTouched() {
  return window.matchMedia("(pointer: coarse)").matches;
}

/** Calls `send` on Enter in a field; Shift+Enter begins a line, as Enter does on touch screens. */
export function onEnter(field, send) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (isTouched()) return; // the keyboards of such screens lack Shift+Enter
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
  const button = make("button", { type: "button", class: "quiet", "aria-label": label }, "Copy");
  const say = (shown, name) => {
    button.textContent = shown;
    button.setAttribute("aria-label", name);
  };
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      say("Copied", "Copied");
    } catch {
      say("Not copied", "Not copied");
    }
    setTimeout(() => say("Copy", label), 1500);
  });
  return button;
}
