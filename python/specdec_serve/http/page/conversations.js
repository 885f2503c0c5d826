// Conversations, kept in the browser: each under a name of its own, so that pages open side by side
// do not overwrite each other's.

import { Answer } from "./answer.js";
import * as storage from "./storage.js";

const START = "conversation:";
const TITLE_LENGTH = 40;

/**
 * A conversation: its turns are {role: "user", text} and {role: "assistant", answer}, by turns.
 */
export class Conversation {
  constructor(kept = {}) {
    this.id = kept.id ?? Array.from(crypto.getRandomValues(new Uint8Array(8)), hex).join("");
    this.title = kept.title ?? "";
    this.changed = kept.changed ?? Date.now();
    this.turns = (kept.turns ?? []).map((turn) =>
      turn.role === "user" ? turn : { role: "assistant", answer: revived(turn.answer) },
    );
  }

  /** The entries of the list. */
  get name() {
    return this.title || "New conversation";
  }

  /** Adds a question; the first is the title. */
  ask(text) {
    this.turns.push({ role: "user", text });
    this.title ||= titleOf(text);
  }

  /** Forgets the turns from `index` on, and the title that the first of them gave. */
  cut(index) {
    if (index === 0 && this.title === titleOf(this.turns[0].text)) this.title = "";
    this.turns.length = index;
  }

  /**
   * Messages of a request for the answer at `turn`. Questions whose answer failed before its first
   * word are left out, so that roles alternate.
   */
  messages(turn, system) {
    const messages = system ? [{ role: "system", content: system }] : [];
    for (let i = 0; i < turn; i += 2) {
      messages.push({ role: "user", content: this.turns[i].text });
      if (i + 1 === turn) break;
      const { text } = this.turns[i + 1].answer;
      if (text === "") messages.pop();
      else messages.push({ role: "assistant", content: text });
    }
    return messages;
  }

  /** Keeps it. Returns whether there was room, perhaps for want of old answers' drafts. */
  save() {
    this.changed = Date.now();
    if (storage.save(START + this.id, this._kept((answer) => answer.toJSON()))) return true;
    for (const other of all().reverse()) {
      if (other.id === this.id) continue;
      storage.save(START + other.id, other._kept((answer) => answer.withoutTokens()));
      if (storage.save(START + this.id, this._kept((answer) => answer.toJSON()))) return true;
    }
    return storage.save(START + this.id, this._kept((answer) => answer.withoutTokens()));
  }

  /** Forgets it. */
  remove() {
    storage.forget(START + this.id);
  }

  _kept(pack) {
    const { id, title, changed } = this;
    const turns = this.turns.map((turn) =>
      turn.role === "user" ? turn : { role: "assistant", answer: pack(turn.answer) },
    );
    return { id, title, changed, turns };
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

function revived(kept) {
  const answer = new Answer(kept);
  if (answer.finish === null) answer.end("stopped"); // the page was left while it came
  return answer;
}

function titleOf(text) {
  return text.trimStart().split("\n")[0].slice(0, TITLE_LENGTH);
}

function hex(byte) {
  return byte.toString(16).padStart(2, "0");
}
