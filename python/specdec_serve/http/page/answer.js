// An answer as it comes: its parts, its tokens and where in the text they are, the draft trees of
// its steps, and times.

/** Milliseconds; a function so that tests can have a clock of their own. */
const now = () => performance.now();

export class Answer {
  constructor(kept = {}) {
    /**
     * In the order in which they came: {kind: "reasoning" | "content", text, start}, where `start`
     * is a place in `transcript`, and {kind: "call", index, id, name, text}, whose text are the
     * arguments. Reasoning has `times`, of its first and its last text.
     */
    this.parts = kept.parts ?? [];
    /** {text, logprob, start, end}: `start` and `end` are places in `transcript`. */
    this.tokens = kept.tokens ?? [];
    /** Steps with drafts, {at, nodes}, as the server gives them. */
    this.steps = kept.steps ?? [];
    /** The request's fields beside its messages. */
    this.params = kept.params ?? {};
    /** null while it comes; as the server says, "stopped" (by the user) or "error". */
    this.finish = kept.finish ?? null;
    this.error = kept.error ?? null;
    /** Milliseconds from the request to the first and the last token; tokens that came first. */
    this.times = kept.times ?? null;
    /** Tokens of the request and of the answer together, where the server has told. */
    this.numContext = kept.numContext ?? null;
    /** Whether it was made by more than one request. */
    this.isContinued = kept.isContinued ?? false;
    /** All texts of reasoning and content, one after another. */
    this.transcript = "";
    this._begun = now();
    this._numBefore = 0; // tokens of requests before
    this._position = 0; // in `transcript`, where the next token begins
    this._placed = 0; // tokens that have a place
    this._drafts = new Map(); // token -> {step, node}
    if (kept.text !== undefined) this._write("content", kept.text); // kept before there were parts
    for (const { kind, text } of kept.parts ?? []) if (kind !== "call") this.transcript += text;
    for (const step of this.steps) this._index(step);
    if (this.finish !== null) this._place();
  }

  /** The content, without reasoning and calls. */
  get text() {
    return this._textOf("content");
  }

  get reasoning() {
    return this._textOf("reasoning");
  }

  /** The parts that are calls of tools. */
  get calls() {
    return this.parts.filter(({ kind }) => kind === "call");
  }

  /** Takes one choice of a chunk. */
  add(choice) {
    const { reasoning, reasoning_content, content, tool_calls } = choice.delta ?? {};
    this._write("reasoning", reasoning ?? reasoning_content ?? "");
    this._write("content", content ?? "");
    for (const call of tool_calls ?? []) this._addCall(call);
    const entries = choice.logprobs?.content ?? [];
    for (const { token, logprob } of entries) {
      this.tokens.push({ text: token, logprob, start: null, end: null });
    }
    for (const { at, nodes } of choice.draft_trees ?? []) {
      const step = { at: at + this._numBefore, nodes };
      this.steps.push(step);
      this._index(step);
    }
    if (entries.length > 0) {
      const time = now() - this._begun;
      this.times ??= { first: time, last: time, numFirst: this.tokens.length };
      this.times.last = time;
    }
    this._place();
    if (choice.finish_reason) {
      if (choice.finish_reason === "abort") this.end("error", "The server ended the answer.");
      else this.end(choice.finish_reason);
    }
  }

  /** Nothing more comes. */
  end(finish, error = null) {
    this.finish = finish;
    this.error = error;
    this._place();
  }

  /** Another request goes on behind what there is. */
  resume() {
    this.finish = null;
    this.isContinued = true;
    this._numBefore = this.tokens.length;
    this._begun = now() - (this.times?.last ?? 0);
  }

  /** Whether another request may go on: one that was cut off in its content. */
  get canResume() {
    const isCut = this.finish === "stopped" || this.finish === "length";
    return isCut && this.text !== "" && this.parts.every(({ kind }) => kind === "content");
  }

  /**
   * The step of token `index` and its node of the tree, null for the model's own token behind the
   * accepted drafts; undefined where the step had no drafts.
   */
  draftOf(index) {
    return this._drafts.get(index);
  }

  /** Index of the first token that ends behind `position` of the transcript. */
  tokenAt(position) {
    let low = 0;
    let high = this._placed;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tokens[middle].end > position) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** How many tokens have a place in the transcript. */
  get numPlaced() {
    return this._placed;
  }

  /** How many tokens each step brought, in order. */
  stepLengths() {
    const lengths = [];
    let at = 0;
    while (at < this.tokens.length) {
      const step = this._drafts.get(at)?.step;
      const numAccepted = step ? step.nodes.filter((node) => node.accepted).length : 0;
      lengths.push(Math.min(numAccepted + 1, this.tokens.length - at));
      at += lengths.at(-1);
    }
    return lengths;
  }

  /** Figures; null where there are not tokens enough. Speeds are tokens a second. */
  stats() {
    const numTokens = this.tokens.length;
    const seconds = this.times && (this.times.last - this.times.first) / 1000;
    return {
      numTokens,
      speed: seconds > 0 ? (numTokens - this.times.numFirst) / seconds : null,
      tokensPerStep: numTokens > 0 ? numTokens / this.stepLengths().length : null,
      firstSeconds: this.times && this.times.first / 1000,
    };
  }

  /** The state that the browser stores, in the form that the constructor takes. */
  toJSON() {
    const { parts, tokens, steps, params, finish, error, times, numContext, isContinued } = this;
    return { parts, tokens, steps, params, finish, error, times, numContext, isContinued };
  }

  /** The answer without what makes it long. */
  withoutTokens() {
    return { ...this.toJSON(), tokens: [], steps: [] };
  }

  _textOf(wanted) {
    const parts = this.parts.filter(({ kind }) => kind === wanted);
    return parts.map(({ text }) => text).join("");
  }

  /** Adds text to the last part, or to a new one of this kind. */
  _write(kind, text) {
    if (text === "") return;
    let part = this.parts.at(-1);
    if (part?.kind !== kind) {
      part = { kind, text: "", start: this.transcript.length };
      this.parts.push(part);
    }
    part.text += text;
    this.transcript += text;
    if (kind !== "reasoning") return;
    part.times ??= { first: now() - this._begun };
    part.times.last = now() - this._begun;
  }

  _addCall({ index, id, function: called }) {
    let part = this.calls.find((call) => call.index === index);
    if (!part) {
      part = { kind: "call", index, id: "", name: "", text: "" };
      this.parts.push(part);
    }
    part.id ||= id ?? "";
    part.name ||= called?.name ?? "";
    part.text += called?.arguments ?? "";
  }

  _index(step) {
    const accepted = step.nodes.filter((node) => node.accepted);
    accepted.sort((a, b) => a.depth - b.depth);
    accepted.forEach((node, i) => this._drafts.set(step.at + i, { step, node }));
    this._drafts.set(step.at + accepted.length, { step, node: null });
  }

  /** Gives tokens their places as far as the text has come. */
  _place() {
    while (this._placed < this.tokens.length) {
      const token = this.tokens[this._placed];
      const end = this._position + token.text.length;
      if (end > this.transcript.length && this.finish === null) return; // its text is held back
      [token.start, token.end] = this._placeOf(token.text);
      this._position = token.end;
      this._placed += 1;
    }
  }

  /**
   * Where the next token's text is shown: nowhere of special tokens, and at the ends of a part
   * perhaps a part of it, because the server leaves out white space there. A part whose tokens are
   * not known is passed over.
   */
  _placeOf(text) {
    const { transcript, _position: at } = this;
    if (transcript.startsWith(text, at)) return [at, at + text.length];
    const next = this.parts.find(({ start }) => start > at)?.start;
    const ending = transcript.slice(at, next);
    if (ending !== "" && text.startsWith(ending)) return [at, at + ending.length];
    for (const start of [at, next]) {
      for (let skipped = 0; start !== undefined && skipped < text.length; skipped += 1) {
        const length = text.length - skipped;
        if (transcript.startsWith(text.slice(skipped), start)) return [start, start + length];
      }
    }
    return [at, at];
  }
}
