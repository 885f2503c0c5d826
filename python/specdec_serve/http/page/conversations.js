// Conversations, kept in the browser: each under a name of its own, so that pages open side by side
// do not overwrite each other's.

import { Answer } from "./answer.js";
import { withFiles } from "./files.js";
import * as storage from "./storage.js";

const START = "conversation:";
const TITLE_LENGTH = 60;
const LEAD = 12; // characters that are shown before what a search has found

/**
 * A conversation is a tree of turns, because a question can be changed and an answer made again. A
 * turn is {role, parent, versions, chosen} and what its role has:
 *
 * - "user": `text` and `files`, each {name, text}
 * - "assistant": `answer`
 * - "tool": `results` of the calls of the answer before, each {id, text}
 *
 * `versions` are the turns that may follow, and `chosen` is the one of them that is shown.
 */
export class Conversation {
  constructor(kept = {}) {
    this.id = kept.id ?? newId();
    this.title = kept.title ?? "";
    this.changed = kept.changed ?? Date.now();
    this._root = { versions: [], chosen: null };
    this._turns = []; // every turn behind its parent
    for (const turn of kept.turns ?? []) this._revive(turn);
  }

  /** Its entry in the list. */
  get name() {
    const [first] = this.path;
    return this.title || (first ? titleOf(first) : "");
  }

  /** The turns that are shown, from the first to the last. */
  get path() {
    const path = [];
    for (let turn = this._root.chosen; turn !== null; turn = turn.chosen) path.push(turn);
    return path;
  }

  /** Adds a turn behind `parent`, or a first one behind null, and shows it. */
  add(parent, content) {
    const turn = { ...content, parent, versions: [], chosen: null };
    this._turns.push(turn);
    this.versionsOf(turn).push(turn);
    this.choose(turn);
    return turn;
  }

  /** The turns that have the place of `turn`, itself among them. */
  versionsOf(turn) {
    return (turn.parent ?? this._root).versions;
  }

  /** Shows `turn` rather than its other versions. */
  choose(turn) {
    (turn.parent ?? this._root).chosen = turn;
  }

  /** Deletes `turn` and all behind it; another version is shown in its place, if there is one. */
  drop(turn) {
    const versions = this.versionsOf(turn);
    const place = versions.indexOf(turn);
    versions.splice(place, 1);
    const before = turn.parent ?? this._root;
    if (before.chosen === turn) before.chosen = versions[place] ?? versions.at(-1) ?? null;
    const isBehind = (each) => each !== null && (each === turn || isBehind(each.parent));
    this._turns = this._turns.filter((each) => !isBehind(each));
  }

  /**
   * What a search for `words`, in small letters, finds: null where one of them is in no text of any
   * version, else a piece of the first text around the first of them, or "" where the name has all.
   */
  find(words) {
    const name = this.name.toLowerCase();
    if (words.every((word) => name.includes(word))) return "";
    const texts = this._turns.flatMap(textsOf);
    const found = words.map((word) => texts.find((text) => text.toLowerCase().includes(word)));
    if (found.some((text, i) => text === undefined && !name.includes(words[i]))) return null;
    const first = found.findIndex((text) => text !== undefined);
    return first < 0 ? "" : around(found[first], found[first].toLowerCase().indexOf(words[first]));
  }

  /**
   * Messages of a request for what comes behind `turn`. Questions whose answer failed before its
   * first word are left out, so that roles alternate.
   */
  messagesTo(turn, system) {
    const messages = [];
    for (let each = turn; each; each = each.parent) {
      if (each.answer && isEmpty(each.answer)) each = each.parent;
      else messages.unshift(...messagesOf(each));
    }
    if (system) messages.unshift({ role: "system", content: system });
    return messages;
  }

  /** Keeps it. Returns whether there was room, perhaps for want of old answers' drafts. */
  save() {
    this.changed = Date.now();
    const name = START + this.id;
    if (storage.save(name, this.toJSON())) return true;
    for (const other of all().reverse()) {
      if (other.id === this.id) continue;
      storage.save(START + other.id, other.withoutTokens());
      if (storage.save(name, this.toJSON())) return true;
    }
    return storage.save(name, this.withoutTokens());
  }

  /** Forgets it. */
  remove() {
    storage.forget(START + this.id);
  }

  /** The state that the browser stores, in the form that the constructor takes. */
  toJSON() {
    return this._kept((answer) => answer.toJSON());
  }

  /** The state without what makes it long. */
  withoutTokens() {
    return this._kept((answer) => answer.withoutTokens());
  }

  _kept(pack) {
    const { id, title, changed } = this;
    const places = new Map(this._turns.map((turn, i) => [turn, i]));
    const turns = this._turns.map((turn) => {
      const { parent, versions, chosen, answer, ...content } = turn;
      if (answer) content.answer = pack(answer);
      const isChosen = (parent ?? this._root).chosen === turn;
      return { parent: parent === null ? -1 : places.get(parent), isChosen, ...content };
    });
    return { id, title, changed, turns };
  }

  /** Adds a turn that was kept; before turns had parents, each followed the one before. */
  _revive({ parent = this._turns.length - 1, isChosen = true, ...content }) {
    if (content.answer) content.answer = revived(content.answer);
    const before = this._turns[parent] ?? null;
    const shown = (before ?? this._root).chosen;
    const turn = this.add(before, content);
    if (!isChosen && shown) this.choose(shown);
    return turn;
  }
}

/** All conversations that are kept, the last changed first. */
export function all() {
  const found = [];
  for (const name of storage.names(START)) {
    const kept = storage.load(name, null);
    if (kept === null) continue; // not written by this page
    found.push(new Conversation(kept));
  }
  return found.sort((a, b) => b.changed - a.changed);
}

export function newId() {
  const hex = (byte) => byte.toString(16).padStart(2, "0");
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), hex).join("");
}

function isEmpty({ text, calls }) {
  return text === "" && calls.length === 0;
}

/** The messages that a turn is in a request. */
function messagesOf({ role, text, files, answer, results }) {
  if (role === "user") return [{ role, content: withFiles(text, files) }];
  if (role === "tool") {
    return results.map((each) => ({ role, tool_call_id: each.id, content: each.text }));
  }
  if (answer.calls.length === 0) return [{ role, content: answer.text }];
  // Templates show the reasoning before calls to the model, but not that of earlier answers.
  const calls = answer.calls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.text },
  }));
  const reasoning = answer.reasoning === "" ? {} : { reasoning: answer.reasoning };
  return [{ role, content: answer.text, ...reasoning, tool_calls: calls }];
}

function revived(kept) {
  const answer = new Answer(kept);
  if (answer.finish === null) answer.end("stopped"); // the page was left while it came
  return answer;
}

/** What a search may find in a turn. */
function textsOf({ text, files = [], answer, results = [] }) {
  const names = files.map(({ name }) => name);
  return [text ?? answer?.text ?? "", ...names, ...results.map((each) => each.text)];
}

/** One line of `text` that has the `place`. */
function around(text, place) {
  const start = Math.max(0, place - LEAD);
  const piece = text.slice(start, place + TITLE_LENGTH).replace(/\s+/g, " ");
  return `${start > 0 ? "…" : ""}${piece.trim()}`;
}

function titleOf({ text, files }) {
  const line = text.trimStart().split("\n")[0] || files?.[0]?.name || "";
  return line.slice(0, TITLE_LENGTH);
}
