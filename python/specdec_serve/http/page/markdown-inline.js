// Markdown within a paragraph: code, formulas, strong, emphasis, strikethrough, links.

import { make } from "./dom.js";
import { inlineMath, mathView } from "./markdown-math.js";

const ESCAPABLE = /[!-/:-@[-`{-~]/;
const LINK = /!?\[([^[\]]*)\]\(\s*([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)(?:\s+"[^"]*")?\s*\)/y;
const ADDRESS = /https?:\/\/[^\s<>]*[^\s<>.,;:!?'"*_)\]}]/y;
const BREAK = /<br\s*\/?>/iy; // the only HTML that models need, in cells of tables
const WORD = /[\p{L}\p{N}]/u;
const TAGS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

/**
 * Nodes of source[start, end). `text(start, end)` makes the nodes of a piece of text that is shown
 * as it stands.
 */
export function inline(source, start, end, text) {
  const within = source.slice(0, end);
  const nodes = [];
  let shown = start; // what is before has its nodes
  let i = start;

  function put(from, to, node) {
    if (shown < from) nodes.push(...text(shown, from));
    if (node) nodes.push(node);
    shown = i = to;
  }

  while (i < end) {
    const char = within[i];
    const math = char === "\\" || char === "$" ? inlineMath(within, i) : null;
    if (math) {
      const show = () => text(math.from, math.to);
      const view = mathView(within.slice(math.from, math.to), show, false);
      put(i, math.end, view ?? make("code", { class: "math" }, ...show()));
    } else if (char === "\\" && ESCAPABLE.test(within[i + 1] ?? "")) {
      put(i, i + 1);
      i += 1;
    } else if (char === "`") {
      const code = codeAt(within, i);
      if (code.isClosed) put(i, code.end, make("code", {}, ...text(code.from, code.to)));
      else i = code.end;
    } else if (char === "[" || (char === "!" && within[i + 1] === "[")) {
      const link = matchAt(LINK, within, i);
      const label = i + (char === "!" ? 2 : 1);
      if (link === null) i += 1;
      else {
        const inner = inline(within, label, label + link[1].length, text);
        put(i, i + link[0].length, linkTo(link[2], inner));
      }
    } else if (char === "<") {
      const found = matchAt(BREAK, within, i);
      if (found === null) i += 1;
      else put(i, i + found[0].length, make("br"));
    } else if (char === "h" && !WORD.test(within[i - 1] ?? "")) {
      const address = matchAt(ADDRESS, within, i);
      if (address === null) i += 1;
      else {
        const to = i + address[0].length;
        put(i, to, linkTo(address[0], text(i, to)));
      }
    } else if (char === "*" || char === "_" || char === "~") {
      const run = runLength(within, i);
      const emphasis = emphasisAt(within, i, run, start);
      if (emphasis === null) i += run;
      else {
        const { tag, from, to, behind } = emphasis;
        put(i, behind, make(tag, {}, ...inline(within, from, to, text)));
      }
    } else i += 1;
  }
  put(end, end);
  return nodes;
}

function matchAt(pattern, source, index) {
  pattern.lastIndex = index;
  return pattern.exec(source);
}

function runLength(source, index) {
  let end = index;
  while (source[end] === source[index]) end += 1;
  return end - index;
}

/** The code span at a backtick, or the run of backticks that opens none. */
function codeAt(source, index) {
  const length = runLength(source, index);
  const open = index + length;
  for (let i = source.indexOf("`", open); i !== -1; i = source.indexOf("`", i)) {
    const run = runLength(source, i);
    if (run === length) {
      const padded = source[open] === " " && source[i - 1] === " " && i - open > 2;
      return { isClosed: true, end: i + run, from: open + padded, to: i - padded };
    }
    i += run;
  }
  return { isClosed: false, end: open };
}

/** The emphasis that a run of *, _ or ~ opens, or null. */
function emphasisAt(source, index, run, start) {
  const char = source[index];
  if (char === "~" && run !== 2) return null;
  if (char === "_" && index > start && WORD.test(source[index - 1])) return null;
  const mark = run === 2 ? char + char : char;
  const from = index + mark.length;
  if (run > 3 || /\s/.test(source[index + run] ?? " ")) return null;
  const to = closerOf(source, from, mark);
  if (to === null || to === from) return null;
  return { tag: TAGS[mark], from, to, behind: to + mark.length };
}

/** Where the mark that closes begins, or null. */
function closerOf(source, from, mark) {
  let i = from;
  while (i < source.length) {
    if (source[i] === "\\") i += 2;
    else if (source[i] === "`") i = codeAt(source, i).end;
    else if (source[i] === mark[0]) {
      const run = runLength(source, i);
      const fits = run === mark.length || run > 2;
      const inWord = mark[0] === "_" && WORD.test(source[i + run] ?? " ");
      if (i > from && fits && !inWord && !/\s/.test(source[i - 1])) return i + run - mark.length;
      i += run;
    } else i += 1;
  }
  return null;
}

/** A link that opens elsewhere; without one where the address is not of the web or of mail. */
function linkTo(address, children) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return make("span", {}, ...children);
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return make("span", {}, ...children);
  const attributes = { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" };
  return make("a", attributes, ...children);
}
