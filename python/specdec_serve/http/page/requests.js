// Requests for answers, one at a time.

import { chat, RequestError } from "./api.js";
import { apiKey } from "./settings.js";

export class Requests {
  /**
   * `hears` are {begun(), over(), progress(answer), refused(status), say(text, isSeen)}: of runs, of
   * an answer that grows, of requests that the server or the way there has refused.
   */
  constructor(hears) {
    this._hears = hears;
    this._controller = null;
    /** The conversation whose answer comes, or null. */
    this.conversation = null;
  }

  /** Whether another answer may come; says why not. */
  isFree() {
    if (this.conversation) this._hears.say("Another answer is under way: stop it first.");
    return this.conversation === null;
  }

  /** Stops what comes. */
  stop() {
    this._controller?.abort();
  }

  /** Does `work()`, which streams answers, while the page shows that it is under way. */
  async run(conversation, what, work) {
    if (!this.isFree()) return;
    this._controller = new AbortController();
    this.conversation = conversation;
    this._hears.say(`${what} …`, false);
    this._hears.begun();
    try {
      await work();
      this._hears.say("");
    } finally {
      this._controller = null;
      this.conversation = null;
      this._hears.over();
    }
  }

  /**
   * Fills in `answer` to the messages before it, calling update() as it grows; one that has begun
   * goes on. Errors become a part of the answer.
   */
  async stream(messages, answer, update) {
    const { system, ...params } = answer.params;
    const body = { ...params, messages, logprobs: true, top_logprobs: 0, draft_trees: true };
    if (answer.isContinued) {
      body.messages = [...messages, { role: "assistant", content: answer.text }];
      Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
    }
    try {
      for await (const chunk of chat(body, apiKey(), this._controller.signal)) {
        if (chunk.usage) answer.numContext = chunk.usage.total_tokens;
        for (const choice of chunk.choices) if (choice.index === 0) answer.add(choice); // of several
        update();
        this._hears.progress(answer);
      }
      if (answer.finish === null) answer.end("stop");
    } catch (error) {
      if (error.name === "AbortError") answer.end("stopped");
      else if (error instanceof RequestError) {
        answer.end("error", error.message);
        this._hears.refused(error.status);
      } else {
        answer.end("error", `The page has failed: ${error.message}`);
        console.error(error);
      }
    }
    update();
  }
}
