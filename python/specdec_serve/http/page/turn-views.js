// The turns of a conversation on the page, in the versions that are chosen.

import { AnswerView } from "./answer-view.js";
import { make } from "./dom.js";
import { examplesView } from "./examples.js";
import { QuestionView } from "./question-view.js";
import { resultsView } from "./results-view.js";

export class TurnViews {
  /**
   * `actions` are {ask(conversation, parent, content), again(conversation, turn),
   * goOn(conversation, turn), compare(conversation, turn, view), remove(conversation, turn),
   * chosen(conversation)}. ask() returns whether the content, that of a new turn, has gone out;
   * chosen() hears that another version is shown.
   */
  constructor(root, actions) {
    this._actions = actions;
    this._log = make("div", { class: "log" });
    this._views = new WeakMap(); // turn -> its view, kept while answers come
    root.append(this._log);
  }

  /** Shows the turns of a conversation; examples where there are none. */
  show(conversation) {
    const { path } = conversation;
    const nodes = path.map((turn) => {
      const view = this.viewOf(conversation, turn);
      view.update();
      return view.node;
    });
    const ask = (text) => this._actions.ask(conversation, null, { role: "user", text });
    this._log.replaceChildren(...(path.length > 0 ? nodes : [examplesView(ask)]));
  }

  /** The view of a turn. */
  viewOf(conversation, turn) {
    if (!this._views.has(turn)) this._views.set(turn, this._make(conversation, turn));
    return this._views.get(turn);
  }

  _make(conversation, turn) {
    const { ask, again, goOn, compare } = this._actions;
    const remove = () => this._actions.remove(conversation, turn);
    const versions = this._versions(conversation, turn);
    if (turn.role === "user") {
      const askInstead = (text) => ask(conversation, turn.parent, { ...contentOf(turn), text });
      return new QuestionView(turn, versions, askInstead, remove);
    }
    if (turn.role === "tool") return { node: resultsView(turn.results), update() {} };
    return new AnswerView(turn.answer, versions, {
      again: () => again(conversation, turn),
      goOn: () => goOn(conversation, turn),
      compare: (view) => compare(conversation, turn, view),
      remove,
      answerCalls: (results) => ask(conversation, turn, { role: "tool", results }),
    });
  }

  _versions(conversation, turn) {
    const place = () => {
      const all = conversation.versionsOf(turn);
      return { index: all.indexOf(turn), count: all.length };
    };
    const go = (step) => {
      const other = conversation.versionsOf(turn)[place().index + step];
      conversation.choose(other);
      this.show(conversation);
      this.viewOf(conversation, other).focusVersions(step);
      this._actions.chosen(conversation);
    };
    return { place, go };
  }
}

function contentOf({ role, text, files }) {
  return { role, text, files };
}
