// "Compare": the same request once more without drafts, beside the answer that had them.

import { Answer } from "./answer.js";
import { figures } from "./answer-view.js";
import { make } from "./dom.js";
import { AnswerBody } from "./part-views.js";

/** The parameters of an answer's request, with which it comes again without drafts. */
export function plainParams(answer) {
  const params = { ...answer.params, num_speculative_tokens: 0 };
  if (answer.finish === "stopped") params.max_tokens = Math.max(1, answer.tokens.length);
  return params;
}

/**
 * The result of the comparison: whether the texts are equal, and how many times as fast the drafted
 * one was, null where that cannot be said.
 */
export function verdict(drafted, plain) {
  const texts = [drafted.transcript, plain.transcript];
  if (drafted.finish === "stopped") {
    const length = Math.min(...texts.map((text) => text.length)); // it ended anywhere
    texts.forEach((text, i) => (texts[i] = text.slice(0, length)));
  }
  const isSame = texts[0] === texts[1];
  let place = 0;
  while (!isSame && texts[0][place] === texts[1][place]) place += 1;
  const same = isSame ? "The text is the same." : `The texts differ from character ${place + 1} on.`;
  const fast = drafted.stats().speed;
  const slow = plain.stats().speed;
  if (!fast || !slow) return { isSame, factor: null, text: same };
  const factor = fast / slow;
  const speeds = `${fast.toFixed(1)} tokens/s with speculation, ${slow.toFixed(1)} without`;
  return { isSame, factor, text: `${same} ${speeds}: ${factor.toFixed(2)} times as fast.` };
}

/**
 * Runs the comparison of a view. `stream(answer, update)` fills in `answer`; it does not
 * throw. Returns the factor of the verdict.
 */
export async function compare(view, stream) {
  const plain = new Answer({ params: plainParams(view.answer) });
  const right = new AnswerBody(plain);
  const left = new AnswerBody(view.answer);
  const waiting = "Answering without speculation …";
  const result = make("p", { class: "verdict", role: "status" }, waiting);
  const rightFigures = make("p", { class: "figures" });
  view.comparison.replaceChildren(
    result,
    make(
      "div",
      { class: "columns" },
      column("With speculation", left.node, make("p", { class: "figures" }, figures(view.answer))),
      column("Without speculation", right.node, rightFigures),
    ),
  );
  view.comparison.hidden = false;
  view.comparison.scrollIntoView({ block: "start" });
  view.comparison.setAttribute("aria-busy", "true");
  await stream(plain, () => right.update());
  right.draw();
  rightFigures.textContent = figures(plain);
  view.comparison.setAttribute("aria-busy", "false");
  let factor = null;
  if (plain.finish === "error" || plain.finish === "stopped") {
    result.textContent = plain.error ?? "The comparison was stopped.";
  } else {
    const { isSame, factor: measured, text } = verdict(view.answer, plain);
    result.textContent = text;
    result.dataset.same = String(isSame);
    factor = measured;
  }
  result.scrollIntoView({ block: "nearest" }); // wherever its reader is by now
  return factor;
}

function column(title, ...children) {
  return make("section", { "aria-label": title }, make("h3", {}, title), ...children);
}
