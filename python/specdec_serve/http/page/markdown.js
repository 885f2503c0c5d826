// Markdown as models write it, as elements. Text becomes text nodes, never HTML. Every piece of
// text keeps its place in the source, so that tokens can be told apart in what is shown.

import { copyButton, make } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./markdown-inline.js";
import { blockMath, mathView } from "./markdown-math.js";

const FENCE = /^( {0,3})(`{3,}(?=[^`]*$)|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const TASK = /^\[([ xX])\][ \t]+(?=\S)/;
const QUOTE = /^ {0,3}> ?/;
const TAB = 4;
const CODE_INDENT = 4; // columns that make code of a line outside paragraphs
const MAX_DEPTH = 12; // of lists and quotes in each other
const HEADING_SHIFT = 2; // the page has headings of its own

/** Shows a text that grows: blocks that did not change keep their elements. */
export class MarkdownView {
  /**
   * `text(start, end)` makes nodes of a piece of the source. All of it is code where there is a
   * `language`.
   */
  constructor(root, text, language = null) {
    this._root = root;
    this._text = text;
    this._language = language;
    this._shown = []; // {key, node}
  }

  /** Shows `source`. */
  show(source) {
    const blocks = this._language === null ? parse(source) : codeOnly(source, this._language);
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

// -- Lines: {start, end, text}, places in the source and what is between them.

function parse(source) {
  let start = 0;
  const lines = source.split("\n").map((text) => {
    const line = { start, end: start + text.length, text };
    start = line.end + 1;
    return line;
  });
  return parseLines(source, lines, 0);
}

/** The text without white space around it as a block of code; none where there is no text. */
function codeOnly(source, language) {
  const start = source.length - source.trimStart().length;
  const end = source.trimEnd().length;
  return start < end ? [{ type: "code", language, pieces: [{ start, end }], start, end }] : [];
}

function isBlank({ text }) {
  return text.trim() === "";
}

/** The line from its `length`th character on. */
function after({ start, end, text }, length) {
  return { start: start + length, end, text: text.slice(length) };
}

function columnsOf(text) {
  let columns = 0;
  for (const char of text) columns += char === "\t" ? TAB - (columns % TAB) : 1;
  return columns;
}

function indentOf({ text }) {
  return columnsOf(/^[ \t]*/.exec(text)[0]);
}

/** The line without its first `columns`, as far as they are white space. */
function cut(line, columns) {
  let length = 0;
  while (/[ \t]/.test(line.text[length] ?? "") && columnsOf(line.text.slice(0, length)) < columns) {
    length += 1;
  }
  return after(line, length);
}

// -- Blocks: {type, start, end} and what the type has. Their lines are without the indentation and
// the marks of what is around.

function parseLines(source, lines, depth) {
  const blocks = [];
  let i = 0;
  while (i < lines.length) {
    if (isBlank(lines[i])) {
      i += 1;
      continue;
    }
    const { block, next } = parseBlock(source, lines, i, depth);
    blocks.push({ ...block, start: lines[i].start, end: lines[next - 1].end });
    i = next;
  }
  return blocks;
}

function parseBlock(source, lines, i, depth) {
  const { text } = lines[i];
  if (indentOf(lines[i]) >= CODE_INDENT) return parseIndentedCode(lines, i);
  if (FENCE.test(text)) return parseFencedCode(lines, i);
  const math = blockMath(lines, i);
  if (math) {
    const { next, ...block } = math;
    return { block: { type: "math", ...block }, next };
  }
  const heading = HEADING.exec(text);
  if (heading) {
    const title = text.replace(/(^|[ \t])#+[ \t]*$/, "").trimEnd();
    const line = after(lines[i], Math.min(heading[0].length, title.length));
    const piece = { start: line.start, end: lines[i].start + title.length };
    return { block: { type: "heading", level: heading[1].length, pieces: [piece] }, next: i + 1 };
  }
  if (RULE.test(text)) return { block: { type: "rule" }, next: i + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(text)) return parseQuote(source, lines, i, depth);
  if (depth < MAX_DEPTH && ITEM.test(text)) return parseList(source, lines, i, depth);
  const alignments = alignmentsOf(lines, i);
  if (alignments) return parseTable(lines, i, alignments);
  let next = i + 1;
  while (next < lines.length && goesOn(lines, next)) next += 1;
  const pieces = piecesOf([cut(lines[i], CODE_INDENT), ...lines.slice(i + 1, next)]);
  pieces.at(-1).end -= lines[next - 1].text.length - lines[next - 1].text.trimEnd().length;
  return { block: { type: "paragraph", pieces }, next };
}

/** Lines as pieces of the source, each but the last with its line break. */
function piecesOf(lines) {
  const last = lines.length - 1;
  return lines.map(({ start, end }, i) => ({ start, end: end + (i < last ? 1 : 0) }));
}

/** Whether a line belongs to the paragraph before it. */
function goesOn(lines, i) {
  const { text } = lines[i];
  if (isBlank(lines[i])) return false;
  if (indentOf(lines[i]) >= CODE_INDENT) return true;
  const item = ITEM.exec(text);
  const begins = item && (!/\d/.test(item[2]) || /^1[.)]/.test(item[2])) && text.trim() !== item[2];
  if (begins || alignmentsOf(lines, i) || blockMath(lines, i)) return false;
  return ![FENCE, HEADING, RULE, QUOTE].some((each) => each.test(text));
}

/** Whether a paragraph may go on behind this line of a quote or a list without its mark. */
function mayGoOn(line) {
  return !isBlank(line) && ![FENCE, HEADING, RULE].some((each) => each.test(line.text));
}

function parseIndentedCode(lines, first) {
  let next = first + 1; // behind the last line that is not blank
  for (let i = next; i < lines.length; i += 1) {
    if (isBlank(lines[i])) continue;
    if (indentOf(lines[i]) < CODE_INDENT) break;
    next = i + 1;
  }
  const code = lines.slice(first, next).map((line) => cut(line, CODE_INDENT));
  return { block: { type: "code", language: "", pieces: piecesOf(code) }, next };
}

function parseFencedCode(lines, first) {
  const [, indent, mark, info] = FENCE.exec(lines[first].text);
  let next = first + 1;
  while (next < lines.length && !closes(lines[next].text, mark)) next += 1;
  const code = lines.slice(first + 1, next);
  const indents = code.filter((line) => !isBlank(line)).map(indentOf);
  const common = Math.min(indent.length, ...indents); // so that no line moves against others
  const language = info.trim().split(/\s/)[0];
  next = Math.min(next + 1, lines.length);
  return { block: { type: "code", language, pieces: piecesOf(code.map((line) => cut(line, common))) }, next };
}

/** Whether a line is the end of the code that `mark` began. */
function closes(text, mark) {
  const found = /^ {0,3}(`+|~+)[ \t]*$/.exec(text);
  return found !== null && found[1].startsWith(mark);
}

/** The mark of the fence that is open behind a line, or null; `mark` is that before it. */
function openFence(mark, { text }) {
  if (mark !== null) return closes(text, mark) ? null : mark;
  return FENCE.exec(text)?.[2] ?? null;
}

function parseQuote(source, lines, first, depth) {
  const content = [];
  let fence = null;
  let i = first;
  for (; i < lines.length; i += 1) {
    const mark = QUOTE.exec(lines[i].text);
    if (!mark && (fence || !mayGoOn(content.at(-1)) || !goesOn(lines, i))) break;
    content.push(after(lines[i], mark?.[0].length ?? 0));
    fence = openFence(fence, content.at(-1));
  }
  return { block: { type: "quote", blocks: parseLines(source, content, depth + 1) }, next: i };
}

function parseList(source, lines, first, depth) {
  const opening = ITEM.exec(lines[first].text);
  const kind = opening[2].at(-1);
  const items = [];
  let isLoose = false;
  let i = first;
  let end = first; // behind the last line that is not blank
  while (i < lines.length) {
    const marker = ITEM.exec(lines[i].text);
    if (!marker || marker[2].at(-1) !== kind || RULE.test(lines[i].text)) break;
    const [, before, mark] = marker;
    const indent = columnsOf(before);
    if (indent >= columnsOf(opening[1]) + 2) break;
    // White space of more than four columns behind the mark begins code.
    const gap = columnsOf(marker[0]) - columnsOf(before + mark);
    const isCode = gap > CODE_INDENT;
    const width = isCode ? indent + mark.length + 1 : columnsOf(marker[0]);
    const content = [after(lines[i], isCode ? before.length + mark.length + 1 : marker[0].length)];
    const task = TASK.exec(content[0].text);
    if (task) content[0] = after(content[0], task[0].length);
    const least = Math.min(width, indent + 2);
    let fence = openFence(null, content[0]);
    let most = width; // columns to cut: inside a fence no more than before it
    end = i + 1;
    let j = end;
    for (; j < lines.length; j += 1) {
      const isInside = isBlank(lines[j]) || indentOf(lines[j]) >= least;
      const isLazy = j === end && !fence && mayGoOn(content.at(-1)) && goesOn(lines, j);
      if (!isInside && (!isLazy || ITEM.test(lines[j].text))) break;
      content.push(cut(lines[j], most));
      if (!isBlank(lines[j])) end = j + 1;
      const wasOpen = fence !== null;
      fence = openFence(fence, content.at(-1));
      if (!fence) most = width;
      else if (!wasOpen) most = Math.min(width, indentOf(lines[j]));
    }
    const blocks = parseLines(source, content.slice(0, end - i), depth + 1);
    items.push({ blocks, kind: task && (task[1] === " " ? "todo" : "done") });
    isLoose ||= blocks.some((block, k) => k > 0 && isApart(source, blocks[k - 1], block));
    const following = j < lines.length ? ITEM.exec(lines[j].text) : null;
    i = j;
    if (!following || following[2].at(-1) !== kind) break;
    if (j > end) isLoose = true;
  }
  const number = parseInt(opening[2], 10);
  const start = Number.isNaN(number) ? null : number;
  return { block: { type: "list", number: start, items, isLoose }, next: end };
}

/** Whether a blank line is between two blocks. */
function isApart(source, before, block) {
  return source.slice(before.end, block.start).split("\n").length > 2;
}

// -- Tables

/** How the columns of the table are aligned that begins with a line; null where none does. */
function alignmentsOf(lines, i) {
  const [head, rule] = lines.slice(i, i + 2);
  if (!rule || !head.text.includes("|") || indentOf(rule) >= CODE_INDENT) return null;
  if (!/^[ \t]*[|:-][|: \t-]*$/.test(rule.text)) return null;
  const marks = cellsOf(rule).map(([{ start, end }]) =>
    rule.text.slice(start - rule.start, end - rule.start),
  );
  if (marks.length !== cellsOf(head).length) return null;
  if (!marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  return marks.map((mark) => {
    if (mark.endsWith(":")) return mark.startsWith(":") ? "center" : "right";
    return mark.startsWith(":") ? "left" : null;
  });
}

/** The cells of a row, each in pieces of the source: without backslashes before pipes. */
function cellsOf({ start, text }) {
  const pipes = [...text.matchAll(/\\.|\|/g)].filter(([found]) => found === "|");
  const places = [-1, ...pipes.map(({ index }) => index), text.length];
  const cells = places.slice(1).map((to, i) => {
    const cell = text.slice(places[i] + 1, to);
    let from = to - cell.trimStart().length;
    const end = Math.max(from, to - cell.length + cell.trimEnd().length);
    const pieces = [];
    const escapes = [...text.slice(0, end).matchAll(/\\./g)].filter(([found]) => found === "\\|");
    for (const { index } of escapes) {
      if (index < from) continue;
      pieces.push({ start: start + from, end: start + index });
      from = index + 1;
    }
    return [...pieces, { start: start + from, end: start + end }];
  });
  const isEmpty = (pieces) => pieces[0].start === pieces.at(-1).end;
  if (cells.length > 1 && isEmpty(cells[0])) cells.shift();
  if (cells.length > 1 && isEmpty(cells.at(-1))) cells.pop();
  return cells;
}

function parseTable(lines, first, alignments) {
  let next = first + 2;
  while (next < lines.length && goesOn(lines, next)) next += 1;
  const [head, , ...rows] = lines.slice(first, next).map(cellsOf);
  return { block: { type: "table", alignments, head, rows }, next };
}

// -- Elements

function render(source, block, text) {
  const children = (blocks) => blocks.map((each) => render(source, each, text));
  if (block.type === "paragraph") return make("p", {}, ...renderText(source, block.pieces, text));
  if (block.type === "rule") return make("hr");
  if (block.type === "heading") {
    const tag = `h${Math.min(block.level + HEADING_SHIFT, 6)}`;
    return make(tag, {}, ...renderText(source, block.pieces, text));
  }
  if (block.type === "code") return renderCode(source, block, text);
  if (block.type === "math") return renderMath(source, block, text);
  if (block.type === "quote") return make("blockquote", {}, ...children(block.blocks));
  if (block.type === "table") return renderTable(source, block, text);
  const attributes = block.number === null || block.number === 1 ? {} : { start: block.number };
  const list = make(block.number === null ? "ul" : "ol", attributes);
  for (const { blocks, kind } of block.items) {
    const nodes = blocks.flatMap((child) => {
      const isBare = child.type === "paragraph" && !block.isLoose;
      return isBare ? renderText(source, child.pieces, text) : children([child]);
    });
    list.append(make("li", { class: kind }, ...nodes));
  }
  return list;
}

/** Pieces of the source as one text: {content, show}; show(start, end) makes nodes of a part. */
function joined(source, pieces, text) {
  const content = pieces.map(({ start, end }) => source.slice(start, end)).join("");
  let first = 0; // the piece that was shown last, from which to look on
  let place = 0; // where it is in the content
  const show = (start, end) => {
    if (start < place) first = place = 0;
    const nodes = [];
    for (let i = first, at = place; i < pieces.length && at < end; i += 1) {
      const piece = pieces[i];
      const length = piece.end - piece.start;
      const from = Math.max(start - at, 0);
      const to = Math.min(end - at, length);
      if (from < to) nodes.push(...text(piece.start + from, piece.start + to));
      [first, place] = [i, at];
      at += length;
    }
    return nodes;
  };
  return { content, show };
}

function renderText(source, pieces, text) {
  const { content, show } = joined(source, pieces, text);
  return inline(content, 0, content.length, show);
}

function renderCode(source, block, text) {
  const { content, show } = joined(source, block.pieces, text);
  const nodes = [];
  let shown = 0;
  for (const { start, end, kind } of highlight(content, block.language)) {
    nodes.push(...show(shown, start), make("span", { class: kind }, ...show(start, end)));
    shown = end;
  }
  nodes.push(...show(shown, content.length));
  const language = make("span", { class: "language" }, block.language);
  return make(
    "figure",
    { class: "code" },
    make("figcaption", {}, language, copyButton("Copy code", () => content)),
    make("pre", { tabindex: "0" }, make("code", {}, ...nodes)),
  );
}

function renderMath(source, block, text) {
  const { content, show } = joined(source, block.pieces, text);
  const view = block.isClosed ? mathView(content, () => show(0, content.length), true) : null;
  if (view === null) return renderCode(source, { ...block, language: "latex" }, text);
  const scrolled = make("div", { class: "wide-math", tabindex: "0" }, view);
  return make("figure", { class: "formula" }, scrolled, copyButton("Copy LaTeX", () => content));
}

function renderTable(source, { alignments, head, rows }, text) {
  const row = (tag, cells) =>
    make(
      "tr",
      {},
      ...alignments.map((alignment, i) =>
        make(tag, { class: alignment }, ...renderText(source, cells[i] ?? [], text)),
      ),
    );
  const table = make("table", {}, make("thead", {}, row("th", head)));
  if (rows.length > 0) table.append(make("tbody", {}, ...rows.map((cells) => row("td", cells))));
  return make("figure", { class: "table", tabindex: "0" }, table);
}
