// Colours of code: comments, strings, numbers and keywords, by what families of languages share.

const HASH = /(?<=^|\s)#.*/;
const SLASHES = /\/\/.*|\/\*[^]*?(?:\*\/|$)/;
const DASHES = /--.*|\/\*[^]*?(?:\*\/|$)/;
const MARKUP = /<!--[^]*?(?:-->|$)/;
const ATTRIBUTE = /(?<==)(?:"[^"]*"?|'[^']*'?)/;
const QUOTED = /"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?/;
const TRIPLE = /"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)/;
const TEMPLATE = /`(?:\\[^]|[^`\\])*`?/;
const LIFETIME = /"(?:\\[^]|[^"\\])*"?|'(?:\\[^'\n]+|[^'\\\n])'/; // Rust's have one quote
const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/u;
const TAG = /<[/!?]?[\w:.-]+|[/?]?>|[\p{L}_][\p{L}\p{N}_-]*/u;
const NUMBER = /(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*/;

const CURLY = `abstract async await bool boolean break case catch char class const constexpr continue
  default defer delete do double else enum export extends extern false final finally float fn for
  foreach from func function go goto if impl implements import in inline instanceof int interface
  internal let long loop match mod module move mut namespace new nil null nullptr of operator
  override package private protected pub public range readonly ref return self short signed sizeof
  static string struct super switch template this throw throws trait true try type typedef typename
  typeof undefined union unsafe unsigned use using val var virtual void when where while with yield`;
const PYTHON = `and as assert async await break case class continue def del elif else except False
  finally for from global if import in is lambda match None nonlocal not or pass raise return self
  True try while with yield`;
const SHELL = `case do done echo elif else esac exit export fi for function if in local read return
  set shift source then until while`;
const SCRIPT = `and begin break case class def do else elsif end ensure false for function if in
  local module next nil not NULL or require rescue return self then TRUE FALSE true unless until
  when while yield`;
const SQL = `add all alter and as asc between by case cast check constraint create cross database
  default delete desc distinct drop else end exists false foreign from full group having if in index
  inner insert into is join key left like limit not null offset on or order outer over partition
  primary references returning right select set table then true union unique update using values
  view when where with`;

/** Names of languages; comments, strings and words that they have. */
const FAMILIES = [
  ["python py python3", HASH, [TRIPLE, QUOTED], PYTHON],
  ["javascript js jsx mjs typescript ts tsx", SLASHES, [QUOTED, TEMPLATE], CURLY],
  ["c h cpp c++ cc hpp cuda java kotlin kt scala csharp c# cs dart php swift", SLASHES, [QUOTED], CURLY],
  ["go golang", SLASHES, [QUOTED, TEMPLATE], CURLY],
  ["rust rs", SLASHES, [LIFETIME], CURLY],
  ["json jsonc", SLASHES, [QUOTED], "true false null"],
  ["css scss less", /\/\*[^]*?(?:\*\/|$)/, [QUOTED], "important"],
  ["bash sh shell zsh console dockerfile makefile", HASH, [QUOTED], SHELL],
  ["yaml yml toml ini", HASH, [QUOTED], "true false null yes no on off"],
  ["ruby rb perl r julia elixir", HASH, [QUOTED], SCRIPT],
  ["lua haskell hs", DASHES, [QUOTED], SCRIPT],
  ["sql sqlite postgresql mysql", DASHES, [QUOTED], SQL],
  ["html xml svg vue", MARKUP, [ATTRIBUTE], null],
];

const languages = new Map();
for (const [names, comment, strings, words] of FAMILIES) {
  const parts = [[comment], strings, [words === null ? TAG : WORD], [NUMBER]];
  const groups = parts.map((each) => `(${each.map(({ source }) => source).join("|")})`);
  const pattern = new RegExp(groups.join("|"), "gu");
  const known = new Set(words?.split(/\s+/));
  const isKeyword = (word) => {
    if (words === null) return /[<>]/.test(word);
    return known.has(words === SQL ? word.toLowerCase() : word);
  };
  for (const name of names.split(" ")) languages.set(name, { pattern, isKeyword });
}

/**
 * What of `code` has a colour: {start, end, kind} in order, where kind is "comment", "string",
 * "keyword" or "number". Nothing in languages that the page does not know.
 */
export function highlight(code, language) {
  const found = languages.get(language.toLowerCase());
  if (!found) return [];
  const parts = [];
  for (const { 0: text, 1: comment, 2: string, 3: word, index } of code.matchAll(found.pattern)) {
    if (word !== undefined && !found.isKeyword(word)) continue;
    let kind = "number";
    if (comment !== undefined) kind = "comment";
    else if (string !== undefined) kind = "string";
    else if (word !== undefined) kind = "keyword";
    parts.push({ start: index, end: index + text.length, kind });
  }
  return parts;
}
