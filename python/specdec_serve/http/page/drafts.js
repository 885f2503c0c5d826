// Who proposed which token: tints, their legend, and what is said of one token.

import { make } from "./dom.js";

const KINDS = {
  ngram: "ngram",
  suffix: "suffix",
  draft_model: "model",
  grammar: "grammar",
  prediction: "prediction",
};
const MAX_OTHERS = 12; // nodes of a tree that are shown beside the accepted ones

/** The tint of a drafter: ngram, suffix, model, grammar, prediction, or head for all others. */
export function kindOf(drafter) {
  return KINDS[drafter] ?? "head";
}

/**
 * Nodes of answer.transcript[start, end): an element a token, a <mark> with data-kind where a
 * drafter proposed it. data-token is the token's index.
 */
export function tokenNodes(answer, start, end) {
  const nodes = [];
  let position = start;
  for (let i = answer.tokenAt(start); i < answer.numPlaced && position < end; i += 1) {
    const token = answer.tokens[i];
    const from = Math.max(token.start, position);
    const to = Math.min(token.end, end);
    if (to <= from) continue;
    if (from > position) nodes.push(answer.transcript.slice(position, from));
    const node = answer.draftOf(i)?.node;
    const attributes = { "data-token": String(i), tabindex: "-1" };
    if (node) attributes["data-kind"] = kindOf(node.drafter);
    nodes.push(make(node ? "mark" : "span", attributes, answer.transcript.slice(from, to)));
    position = to;
  }
  if (position < end) nodes.push(answer.transcript.slice(position, end));
  return nodes;
}

/** Entries of the legend: drafters of the answer, with proposed and accepted tokens. */
export function legend(answer) {
  const counts = new Map();
  for (const { nodes } of answer.steps) {
    for (const { drafter, accepted } of nodes) {
      const count = counts.get(drafter) ?? { proposed: 0, accepted: 0 };
      count.proposed += 1;
      count.accepted += accepted ? 1 : 0;
      counts.set(drafter, count);
    }
  }
  return [...counts].map(([drafter, { proposed, accepted }]) =>
    make(
      "li",
      {},
      make("mark", { "data-kind": kindOf(drafter) }, drafter),
      ` ${accepted} of ${proposed} drafts accepted`,
    ),
  );
}

/** The details of one token: lines, and the tree of its step. */
export function describe(answer, index) {
  const token = answer.tokens[index];
  const draft = answer.draftOf(index);
  const rows = [["Model's probability", percent(Math.exp(token.logprob))]];
  let summary = "the model's own; nothing was drafted in this step";
  if (draft?.node) {
    summary = `proposed by ${draft.node.drafter}, accepted`;
    rows.unshift(["Depth", `${draft.node.depth} of ${deepest(draft.step)}`]);
    rows.push(["Drafter's probability", percent(draft.node.probability)]);
  } else if (draft) {
    summary = "the model's own, behind the accepted drafts";
  }
  const children = [
    make("p", {}, make("strong", {}, visible(token.text)), ` ${summary}`),
    make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
  ];
  if (draft) children.push(make("p", {}, "The step's tree:"), tree(draft));
  return children;
}

function deepest(step) {
  return Math.max(...step.nodes.map((node) => node.depth));
}

function tree({ step, node: current }) {
  const lists = new Map([[-1, make("ul", { class: "tree" })]]);
  let numOthers = 0;
  step.nodes.forEach((node, i) => {
    if (!node.accepted) numOthers += 1;
    if (!node.accepted && numOthers > MAX_OTHERS) return;
    const state = node.accepted ? "accepted" : "not accepted";
    const item = make(
      "li",
      { class: node.accepted ? "accepted" : "rejected", "aria-current": node === current && "true" },
      make("mark", { "data-kind": kindOf(node.drafter) }, visible(node.text)),
      ` ${node.drafter} ${percent(node.probability)} `,
      make("span", { class: "state" }, state),
    );
    const list = lists.get(node.parent) ?? lists.get(-1);
    list.append(item);
    const children = make("ul");
    item.append(children);
    lists.set(i, children);
  });
  for (const list of lists.values()) if (!list.hasChildNodes()) list.remove();
  if (numOthers > MAX_OTHERS) {
    lists.get(-1).append(make("li", {}, `and ${numOthers - MAX_OTHERS} more`));
  }
  return lists.get(-1);
}

function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "unknown";
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%`;
}

/** A token's text with what cannot be seen made visible. */
function visible(text) {
  return text === "" ? "(no text)" : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}
