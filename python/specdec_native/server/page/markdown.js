// Markdown as models write it, as elements. Text becomes text nodes, never HTML. Every piece of
// text keeps its place in the source, so that tokens can be told apart in what is shown.

import { copyButton, make } from "./dom.js";
import { inline } from "./markdown-inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})[^\S\n]*([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const MAX_DEPTH = 12; // of lists in lists
const HEADING_SHIFT = 2; // the page has headings of its own

/** Shows a text that grows: blocks that did not change keep their elements. */
export class MarkdownView {
  /** `text(start, end)` makes nodes of a piece of the source. */
  constructor(root, text) {
    this._root = root;
    this._text = text;
    this._shown = []; // {key, node}
  }

  /** Shows `source`. */
  show(source) {
    const blocks = parse(source);
    let same = 0;
    while (same < blocks.length && this._shown[same]?.key === keyOf(blocks[same])) same += 1;
    for (const { node } of this._shown.splice(same)) node.remove();
    for (const block of blocks.slice(same)) {
      const node = render(source, block, this._text);
      this._root.append(node);
      this._shown.push({ key: keyOf(block), node });
    }
  }
}

/** The elements of `source`. */
export function markdown(source, text = (start, end) => [source.slice(start, end)]) {
  return parse(source).map((block) => render(source, block, text));
}

function keyOf({ type, start, end }) {
  return `${type} ${start} ${end}`;
}

function parse(source) {
  const lines = [];
  let start = 0;
  for (const line of source.split("\n")) {
    lines.push({ start, end: start + line.length });
    start += line.length + 1;
  }
  return parseLines(source, lines, 0);
}

/** Blocks of lines, each {start, end} in the source, less the indentation of what is around. */
function parseLines(source, lines, depth) {
  const blocks = [];
  const textOf = (line) => source.slice(line.start, line.end);
  let i = 0;
  while (i < lines.length) {
    const text = textOf(lines[i]);
    let next = i + 1;
    let block = null;
    if (text.trim() !== "") {
      const fence = FENCE.exec(text);
      const heading = HEADING.exec(text);
      if (fence) {
        const closing = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}[ \\t]*$`);
        while (next < lines.length && !closing.test(textOf(lines[next]))) next += 1;
        const code = lines.slice(i + 1, next);
        if (next < lines.length) next += 1;
        block = { type: "code", language: fence[2].trim().split(/\s/)[0], lines: code };
      } else if (heading) {
        const title = text.replace(/(^|[ \t])#+[ \t]*$/, "").trimEnd();
        const from = Math.min(heading[0].length, title.length);
        block = { type: "heading", level: heading[1].length };
        block.from = lines[i].start + from;
        block.to = lines[i].start + title.length;
      } else if (RULE.test(text)) {
        block = { type: "rule" };
      } else if (ITEM.test(text) && depth < MAX_DEPTH) {
        ({ block, next } = parseList(source, lines, i, depth));
      } else {
        while (next < lines.length && goesOn(textOf(lines[next]))) next += 1;
        const from = lines[i].start + text.length - text.trimStart().length;
        const last = textOf(lines[next - 1]);
        block = { type: "paragraph", from, to: lines[next - 1].start + last.trimEnd().length };
      }
      block.start = lines[i].start;
      block.end = lines[next - 1].end;
      blocks.push(block);
    }
    i = next;
  }
  return blocks;
}

/** Whether a line belongs to the paragraph before it. */
function goesOn(text) {
  const item = ITEM.exec(text);
  const begins = item && (!/\d/.test(item[2]) || /^1[.)]/.test(item[2])) && text.trim() !== item[2];
  return text.trim() !== "" && !FENCE.test(text) && !HEADING.test(text) && !RULE.test(text) && !begins;
}

function parseList(source, lines, first, depth) {
  const textOf = (line) => source.slice(line.start, line.end);
  const opening = ITEM.exec(textOf(lines[first]));
  const kind = opening[2].at(-1);
  const items = [];
  let isLoose = false;
  let i = first;
  while (i < lines.length) {
    const text = textOf(lines[i]);
    const marker = ITEM.exec(text);
    if (!marker || marker[2].at(-1) !== kind || RULE.test(text)) break;
    if (marker[1].length >= opening[1].length + 2) break;
    const width = marker[0].length;
    const content = [{ start: lines[i].start + width, end: lines[i].end }];
    const least = Math.min(width, marker[1].length + 2);
    let inFence = FENCE.test(text.slice(width));
    let end = i + 1; // behind the last line that is not blank
    let j = end;
    for (; j < lines.length; j += 1) {
      const line = textOf(lines[j]);
      const indent = line.length - line.trimStart().length;
      const isBlank = line.trim() === "";
      if (!isBlank && indent < least) {
        const isLazy = j === end && !inFence && goesOn(line) && !ITEM.test(line);
        if (!isLazy) break;
      }
      const cut = Math.min(indent, width);
      content.push({ start: lines[j].start + cut, end: lines[j].end });
      if (!isBlank) {
        if (j > end && !inFence) isLoose = true;
        end = j + 1;
      }
      if (FENCE.test(line.slice(cut))) inFence = !inFence;
    }
    items.push(parseLines(source, content.slice(0, end - i), depth + 1));
    const following = j < lines.length ? ITEM.exec(textOf(lines[j])) : null;
    i = j;
    if (!following || following[2].at(-1) !== kind) {
      i = end;
      break;
    }
    if (j > end) isLoose = true;
  }
  const number = parseInt(opening[2], 10);
  const start = Number.isNaN(number) ? null : number;
  return { block: { type: "list", number: start, items, isLoose }, next: i };
}

function render(source, block, text) {
  if (block.type === "paragraph") return make("p", {}, ...inline(source, block.from, block.to, text));
  if (block.type === "rule") return make("hr");
  if (block.type === "heading") {
    const tag = `h${Math.min(block.level + HEADING_SHIFT, 6)}`;
    return make(tag, {}, ...inline(source, block.from, block.to, text));
  }
  if (block.type === "code") return renderCode(source, block, text);
  const attributes = block.number === null || block.number === 1 ? {} : { start: block.number };
  const list = make(block.number === null ? "ul" : "ol", attributes);
  for (const item of block.items) {
    const nodes = item.flatMap((child) => {
      const isBare = child.type === "paragraph" && !block.isLoose;
      return isBare ? inline(source, child.from, child.to, text) : [render(source, child, text)];
    });
    list.append(make("li", {}, ...nodes));
  }
  return list;
}

function renderCode(source, block, text) {
  const last = block.lines.length - 1;
  const pieces = block.lines.flatMap(({ start, end }, i) => text(start, end + (i < last ? 1 : 0)));
  const plain = () => block.lines.map(({ start, end }) => source.slice(start, end)).join("\n");
  const language = make("span", { class: "language" }, block.language);
  return make(
    "figure",
    { class: "code" },
    make("figcaption", {}, language, copyButton("Copy code", plain)),
    make("pre", { tabindex: "0" }, make("code", {}, ...pieces)),
  );
}
