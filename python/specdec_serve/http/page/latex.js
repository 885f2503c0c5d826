// LaTeX formulas as MathML, which browsers draw: what models write of it. A formula with anything
// else is none, and its reader sees the source.

import { formula as make } from "./dom.js";
import { ACCENTS, ALPHABETS, FENCES, FUNCTIONS, LARGE, SPACES, SYMBOLS } from "./latex-symbols.js";

const TOKEN = /\\[a-zA-Z]+|\\.|\d+(?:[.,]\d+)*|\s+|./gsu;
const MAX_DEPTH = 60; // of elements in each other
const IGNORED = ["\\displaystyle", "\\textstyle", "\\limits", "\\nolimits", "\\nonumber", "\\notag"];
const SIZES = /^\\(?:big|Big|bigg|Bigg)[lrm]?$/;
const FRACTIONS = ["\\frac", "\\dfrac", "\\tfrac", "\\cfrac"];
const TEXTS = ["\\text", "\\textrm", "\\textit", "\\textbf", "\\mbox"];
const UPRIGHT = ["\\mathrm", "\\mathsf", "\\mathtt"];
// Environments: the fences around their table, and how its columns are aligned.
const TABLES = {
  matrix: ["", "", "c"],
  pmatrix: ["(", ")", "c"],
  bmatrix: ["[", "]", "c"],
  Bmatrix: ["{", "}", "c"],
  vmatrix: ["|", "|", "c"],
  Vmatrix: ["‖", "‖", "c"],
  smallmatrix: ["", "", "c"],
  array: ["", "", "c"],
  cases: ["{", "", "l"],
  aligned: ["", "", "rl"],
  align: ["", "", "rl"],
  split: ["", "", "rl"],
  gathered: ["", "", "c"],
  gather: ["", "", "c"],
  equation: ["", "", "c"],
};

/** What this page does not know; never leaves this file. */
class Unknown extends Error {}

/** The <math> of a formula, as a block or in a line; null where there is something unknown. */
export function mathOf(source, isBlock) {
  try {
    const parser = new Parser(source);
    const shown = make("mrow", {}, ...parser.row());
    if (parser.next !== undefined) throw new Unknown(parser.next);
    const latex = make("annotation", { encoding: "application/x-tex" }, source);
    const display = isBlock ? "block" : "inline";
    return make("math", { display }, make("semantics", {}, shown, latex));
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}

class Parser {
  constructor(source) {
    this._tokens = source.trim().match(TOKEN) ?? [];
    this._at = 0;
    this._depth = 0;
    this._limited = new WeakSet(); // elements whose scripts are above and below them in blocks
  }

  /** The next token; undefined at the end. */
  get next() {
    return this._tokens[this._at];
  }

  /** Elements up to a token that ends what is around. */
  row() {
    const nodes = [];
    for (;;) {
      this._skipSpace();
      if (this.next === undefined || ["}", "&", "\\\\", "\\right", "\\end"].includes(this.next)) break;
      nodes.push(...this._scripted());
    }
    return nodes;
  }

  _take() {
    if (this.next === undefined) throw new Unknown("the end");
    this._at += 1;
    return this._tokens[this._at - 1];
  }

  _expect(token) {
    this._skipSpace();
    if (this._take() !== token) throw new Unknown(token);
  }

  _skipSpace() {
    while (this.next !== undefined && /^\s/.test(this.next)) this._at += 1;
  }

  /** An element with what is above and below; none for what is not seen. */
  _scripted() {
    const base = /^[\^_']$/.test(this.next) ? make("mrow") : this._atom();
    if (base === null) return [];
    let low = null;
    const high = [];
    for (;;) {
      this._skipSpace();
      if (IGNORED.includes(this.next)) this._take();
      else if (this.next === "_" && low === null) low = this._script();
      else if (this.next === "^" && high.every(isPrime)) high.push(this._script());
      else if (this.next === "'" && high.every(isPrime)) {
        this._take();
        high.push(make("mo", {}, "′"));
      } else break;
    }
    if (this.next === "_" || this.next === "^") throw new Unknown("a second script");
    const above = high.length > 1 ? grouped(high) : high[0];
    const isLarge = this._limited.has(base);
    if (low && above) return [make(isLarge ? "munderover" : "msubsup", {}, base, low, above)];
    if (low) return [make(isLarge ? "munder" : "msub", {}, base, low)];
    if (above) return [make(isLarge ? "mover" : "msup", {}, base, above)];
    return [base];
  }

  _script() {
    this._take();
    return this._argument();
  }

  /** A group, or the single element that LaTeX takes for one. */
  _argument() {
    this._skipSpace();
    if (/^\d/.test(this.next ?? "") && this.next.length > 1) {
      const [first, rest] = [this.next[0], this.next.slice(1)]; // x^10 is x to the one, then zero
      this._tokens[this._at] = rest;
      return make("mn", {}, first);
    }
    const node = this._atom();
    if (node === null) throw new Unknown("an argument");
    return node;
  }

  _group() {
    this._expect("{");
    const nodes = this.row();
    this._expect("}");
    return nodes;
  }

  /** The text of a group as it stands. */
  _raw() {
    this._expect("{");
    let text = "";
    for (let depth = 1; ; ) {
      const token = this._take();
      depth += Number(token === "{") - Number(token === "}");
      if (depth === 0) return text;
      text += token.length === 2 ? token.replace("\\", "") : token;
    }
  }

  /** One element; null for what is not seen. */
  _atom() {
    this._depth += 1;
    if (this._depth > MAX_DEPTH) throw new Unknown("depth");
    const node = this._atomOf(this._take());
    this._depth -= 1;
    return node;
  }

  _atomOf(token) {
    if (token === "{") {
      this._at -= 1;
      return grouped(this._group());
    }
    if (/^\d/.test(token)) return make("mn", {}, token);
    if (/^\p{L}$/u.test(token)) return make("mi", {}, token);
    if (token === "~") return make("mspace", { width: "0.33em" });
    if (token === "-") return make("mo", {}, "−");
    if (/^[()[\]|]$/.test(token)) return make("mo", { stretchy: "false" }, token);
    if (/^[+*/=<>,;:!.?@∂∇∞±×÷≤≥≠≈∈→⇒·…−∑∫√°]$/.test(token)) return symbolOf(token);
    if (!token.startsWith("\\")) throw new Unknown(token);
    return this._command(token);
  }

  _command(name) {
    const own = (table) => (Object.hasOwn(table, name.slice(1)) ? table[name.slice(1)] : undefined);
    const [symbol, space, large, accent] = [SYMBOLS, SPACES, LARGE, ACCENTS].map(own);
    if (symbol !== undefined) return symbolOf(symbol);
    if (space !== undefined) return space === "" ? null : make("mspace", { width: space });
    if (IGNORED.includes(name)) return null;
    if (large !== undefined) return this._limits(make("mo", {}, large));
    if (accent !== undefined) return this._accent(accent);
    if (FUNCTIONS.plain.includes(name.slice(1))) return functionOf(name.slice(1));
    if (FUNCTIONS.limits.includes(name.slice(1))) return this._limits(functionOf(name.slice(1)));
    if (FRACTIONS.includes(name)) return make("mfrac", {}, this._argument(), this._argument());
    if (TEXTS.includes(name)) return make("mtext", {}, this._raw().replace(/^ | $/g, "\u00a0"));
    if (UPRIGHT.includes(name)) return make("mi", { mathvariant: "normal" }, this._letters());
    if (own(ALPHABETS)) return this._inAlphabet(own(ALPHABETS));
    if (SIZES.test(name)) return make("mo", { stretchy: "true" }, this._fence());
    const known = {
      "\\sqrt": () => this._root(),
      "\\operatorname": () => this._operator(),
      "\\middle": () => fence(this._fence()),
      "\\binom": () => this._binomial(),
      "\\left": () => this._fenced(),
      "\\begin": () => this._table(),
      "\\not": () => make("mo", {}, `${this._argument().textContent}\u0338`),
      "\\bmod": () => make("mo", {}, "mod"),
      "\\pmod": () => grouped([make("mo", {}, "(mod "), ...this._group(), make("mo", {}, ")")]),
      "\\boxed": () => make("mrow", { class: "boxed" }, ...this._group()),
      "\\overset": () => this._stacked("mover"),
      "\\stackrel": () => this._stacked("mover"),
      "\\underset": () => this._stacked("munder"),
      "\\tag": () => make("mtext", {}, `\u2003(${this._raw()})`),
      "\\label": () => this._raw() && null,
    };
    if (!Object.hasOwn(known, name)) throw new Unknown(name);
    return known[name]();
  }

  _operator() {
    const hasLimits = this.next === "*";
    if (hasLimits) this._take();
    const node = functionOf(this._raw());
    return hasLimits ? this._limits(node) : node;
  }

  _root() {
    this._skipSpace();
    if (this.next !== "[") return make("msqrt", {}, this._argument());
    this._take();
    const degree = [];
    for (this._skipSpace(); this.next !== "]"; this._skipSpace()) degree.push(...this._scripted());
    this._take();
    return make("mroot", {}, this._argument(), grouped(degree));
  }

  _binomial() {
    const parts = [this._argument(), this._argument()];
    return grouped([fence("("), make("mfrac", { linethickness: "0" }, ...parts), fence(")")]);
  }

  _accent({ mark, isBelow = false, isWide = false, isBrace = false }) {
    const base = this._argument();
    const sign = make("mo", { stretchy: String(isWide) }, mark);
    const node = make(isBelow ? "munder" : "mover", isBelow ? {} : { accent: "true" }, base, sign);
    return isBrace ? this._limits(node) : node;
  }

  /** Marks an element whose scripts are above and below it in blocks. */
  _limits(node) {
    this._limited.add(node);
    return node;
  }

  /** The letters of a group, or the one that comes. */
  _letters() {
    this._skipSpace();
    return this.next === "{" ? this._raw() : this._take();
  }

  _stacked(tag) {
    const other = this._argument();
    return make(tag, {}, this._argument(), other);
  }

  _inAlphabet({ first, exceptions = {} }) {
    const start = this._at;
    const letters = this._letters();
    if (!/^[A-Za-z\d\s,]*$/.test(letters)) {
      this._at = start; // symbols have one form only
      return this._argument();
    }
    const shown = [...letters].map((letter) => {
      if (Object.hasOwn(exceptions, letter)) return exceptions[letter];
      if (/[A-Z]/.test(letter)) return String.fromCodePoint(first + letter.charCodeAt(0) - 65);
      if (/[a-z]/.test(letter)) return String.fromCodePoint(first + 26 + letter.charCodeAt(0) - 97);
      return letter;
    });
    return make("mi", {}, shown.join(""));
  }

  /** The text of the fence that comes. */
  _fence() {
    this._skipSpace();
    const token = this._take();
    if (/^[()[\]|/]$/.test(token)) return token;
    if (token === ".") return "";
    if (!Object.hasOwn(FENCES, token)) throw new Unknown(token);
    return FENCES[token];
  }

  _fenced() {
    const opening = fence(this._fence());
    const nodes = this.row();
    this._expect("\\right");
    return grouped([opening, ...nodes, fence(this._fence())]);
  }

  _table() {
    const name = this._raw();
    const kind = name.replace(/\*$/, "");
    if (!Object.hasOwn(TABLES, kind)) throw new Unknown(name);
    const [opening, closing, alignments] = TABLES[kind];
    if (kind === "array") this._raw(); // which aligns its columns
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.row());
      const token = this._take();
      if (token === "\\\\") rows.push([]);
      else if (token === "\\end") break;
      else if (token !== "&") throw new Unknown(token);
    }
    if (this._raw() !== name) throw new Unknown(name);
    if (rows.at(-1).length === 1 && rows.at(-1)[0].length === 0) rows.pop(); // behind the last \\
    const align = (i) => ({ l: "left", r: "right", c: "center" })[alignments[i % alignments.length]];
    const table = make(
      "mtable",
      {},
      ...rows.map((cells) =>
        make("mtr", {}, ...cells.map((cell, i) => make("mtd", { class: align(i) }, ...cell))),
      ),
    );
    return grouped([...(opening ? [fence(opening)] : []), table, ...(closing ? [fence(closing)] : [])]);
  }
}

function grouped(nodes) {
  return nodes.length === 1 ? nodes[0] : make("mrow", {}, ...nodes);
}

function fence(text) {
  return make("mo", { stretchy: "true", fence: "true" }, text);
}

/** A symbol: a letter, or an operator. */
function symbolOf(text) {
  return make(/^[\p{L}∞∅ℏℓ℘′∂∇]/u.test(text) ? "mi" : "mo", {}, text);
}

/** The name of a function, upright and with a space behind it. */
function functionOf(name) {
  return make("mo", { form: "prefix", lspace: "0", rspace: "0.17em", movablelimits: "true" }, name);
}

function isPrime(node) {
  return node.textContent === "′";
}
