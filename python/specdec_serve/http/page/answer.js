// An answer as it comes: its text, its tokens and where in the text they are, the draft trees of
// its steps, and times.

/** Milliseconds; a function so that tests can have a clock of their own. */
const now = () => performance.now();

export class Answer {
  constructor(kept = {}) {
    this.text = kept.text ?? "";
    /** {text, logprob, start, end}: `start` and `end` are places in `text`. */
    this.tokens = kept.tokens ?? [];
    /** Steps with drafts, {at, nodes}, as the server gives them. */
    this.steps = kept.steps ?? [];
    /** The request's fields beside its messages. */
    this.params = kept.params ?? {};
    /** null while it comes; "stop", "length", "stopped" (by the user) or "error". */
    this.finish = kept.finish ?? null;
    this.error = kept.error ?? null;
    /** Milliseconds from the request to the first and the last token; tokens that came first. */
    this.times = kept.times ?? null;
    this._begun = now();
    this._position = 0; // in `text`, where the next token begins
    this._placed = 0; // tokens that have a place
    this._drafts = new Map(); // token -> {step, node}
    for (const step of this.steps) this._index(step);
    if (this.finish !== null) this._place();
  }

  /** Takes one choice of a chunk. */
  add(choice) {
    this.text += choice.delta?.content ?? "";
    const entries = choice.logprobs?.content ?? [];
    for (const { token, logprob } of entries) {
      this.tokens.push({ text: token, logprob, start: null, end: null });
    }
    for (const step of choice.draft_trees ?? []) {
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

  /**
   * The step of token `index` and its node of the tree, null for the model's own token behind the
   * accepted drafts; undefined where the step had no drafts.
   */
  draftOf(index) {
    return this._drafts.get(index);
  }

  /** Index of the first token that ends behind `position` of the text. */
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

  /** How many tokens have a place in the text. */
  get numPlaced() {
    return this._placed;
  }

  /** Figures; null where there are not tokens enough. Speeds are tokens a second. */
  stats() {
    const numTokens = this.tokens.length;
    let numAccepted = 0;
    for (const [index, { node }] of this._drafts) numAccepted += node !== null && index < numTokens;
    const seconds = this.times && (this.times.last - this.times.first) / 1000;
    return {
      numTokens,
      numAccepted,
      speed: seconds > 0 ? (numTokens - this.times.numFirst) / seconds : null,
      tokensPerStep: numTokens > 0 ? numTokens / (numTokens - numAccepted) : null,
      firstSeconds: this.times && this.times.first / 1000,
    };
  }

  /** The state that the browser stores, in the form that the constructor takes. */
  toJSON() {
    const { text, tokens, steps, params, finish, error, times } = this;
    return { text, tokens, steps, params, finish, error, times };
  }

  /** The answer without what makes it long. */
  withoutTokens() {
    return { ...this.toJSON(), tokens: [], steps: [] };
  }

  _index(step) {
    const accepted = step.nodes.filter((node) => node.accepted);
    accepted.sort((a, b) => a.depth - b.depth);
    accepted.forEach((node, i) => this._drafts.set(step.at + i, { step, node }));
    this._drafts.set(step.at + accepted.length, { step, node: null });
  }

  /** Gives tokens their places as far as the text has come; special tokens show nothing. */
  _place() {
    while (this._placed < this.tokens.length) {
      const token = this.tokens[this._placed];
      const end = this._position + token.text.length;
      if (end > this.text.length && this.finish === null) return; // its text is held back
      const isShown = this.text.startsWith(token.text, this._position);
      token.start = this._position;
      token.end = isShown ? end : this._position;
      this._position = token.end;
      this._placed += 1;
    }
  }
}
