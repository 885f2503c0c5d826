// Where LaTeX is in Markdown, and its element: a formula where latex.js knows all of the source, else
// the source as code, so that no underscore becomes emphasis.

import { make } from "./dom.js";
import { mathOf } from "./latex.js";

const BLOCK = /^ {0,3}(\$\$|\\\[)/;
const CLOSERS = { $$: "$$", "\\[": "\\]", "\\(": "\\)" };
// As pandoc has it: "$5 and $6" is none.
const DOLLARS = /\$(?![\s$])(?:\\.|[^$\\\n])*(?<!\s)\$(?![\p{L}\p{N}$])/uy;
const WORD = /[\p{L}\p{N}$]/u;

/**
 * The formula of its own lines that begins with lines[first]: {pieces, next, isClosed}, its source
 * without the marks around it, and the first line behind it. Null where none does. One that is not
 * closed ends with the text, because more may come, but not with a blank line.
 */
export function blockMath(lines, first) {
  const found = BLOCK.exec(lines[first].text);
  if (!found) return null;
  const closer = CLOSERS[found[1]];
  const pieces = [];
  for (let i = first; i < lines.length; i += 1) {
    const { start, end, text } = lines[i];
    if (text.trim() === "") return null;
    const from = i === first ? found[0].length : 0;
    const to = text.indexOf(closer, from);
    const isLast = to >= 0 && text.slice(to + closer.length).trim() === "";
    if (to >= 0 && !isLast) return null;
    const length = isLast ? to : text.length;
    if (text.slice(from, length).trim() !== "") {
      if (pieces.length > 0) pieces.at(-1).end += 1; // the line break
      pieces.push({ start: start + from, end: isLast ? start + to : end });
    }
    if (isLast) return { pieces, next: i + 1, isClosed: true };
  }
  return { pieces, next: lines.length, isClosed: false };
}

/** The formula at `index`: {from, to, end}, where `from` and `to` are inside its marks; or null. */
export function inlineMath(source, index) {
  const opener = source.slice(index, index + 2);
  if (CLOSERS[opener]) {
    const from = index + 2;
    const to = source.indexOf(CLOSERS[opener], from);
    if (to < 0 || source.slice(from, to).trim() === "") return null;
    // Brackets may be escaped for other reasons.
    if (opener === "\\[" && !/[\\^_{}=]/.test(source.slice(from, to))) return null;
    return { from, to, end: to + 2 };
  }
  if (source[index] !== "$" || WORD.test(source[index - 1] ?? "")) return null;
  DOLLARS.lastIndex = index;
  const found = DOLLARS.exec(source);
  return found && { from: index + 1, to: DOLLARS.lastIndex - 1, end: DOLLARS.lastIndex };
}

/**
 * The element of a formula; null where its source has something unknown. `show()` makes the nodes of
 * the source: the element stands for its first token, and has a tint that all of its tokens have.
 */
export function mathView(source, show, isBlock) {
  const math = mathOf(source, isBlock);
  if (math === null) return null;
  const nodes = show();
  const first = nodes.find((node) => node.dataset?.token)?.dataset.token ?? null;
  const [kind = null, ...others] = new Set(nodes.map((node) => node.dataset?.kind));
  const isTinted = kind !== null && others.length === 0;
  const token = { "data-token": first, tabindex: first && "-1", "data-kind": isTinted && kind };
  return make(isTinted ? "mark" : "span", { class: "math", ...token }, math);
}
