// Conversations as a file: export and import.

import { Conversation, newId } from "./conversations.js";
import { make } from "./dom.js";

const FORMAT = "specdec_native conversations";
const isText = (value) => typeof value === "string";
const isNumber = (value) => typeof value === "number";

/** A file that holds no conversations. */
export class ArchiveError extends Error {}

/** Lets the user save conversations as a file. */
export function download(conversations) {
  const text = JSON.stringify({ format: FORMAT, conversations }, null, 1);
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", { href: address, download: "conversations.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** The conversations of a file's text, as new ones. Throws ArchiveError. */
export function read(text) {
  let archive = null;
  try {
    archive = JSON.parse(text);
  } catch {
    // checked below
  }
  check(archive?.format === FORMAT, "The file", `is not an export of this page ("${FORMAT}")`);
  const { conversations } = archive;
  check(Array.isArray(conversations), "conversations", "must be a list");
  return conversations.map((each, i) => {
    checkConversation(each, `conversations[${i}]`);
    return new Conversation({ ...each, id: newId() });
  });
}

function check(isRight, path, what) {
  if (!isRight) throw new ArchiveError(`${path} ${what}.`);
}

/** Checks that `value` is a list and each of its members an object that `isRight` holds for. */
function checkList(value, path, isRight, what) {
  check(Array.isArray(value), path, "must be a list");
  value.forEach((each, i) => {
    check(each !== null && typeof each === "object" && isRight(each), `${path}[${i}]`, what);
  });
}

function checkConversation(conversation, path) {
  check(isText(conversation?.title), `${path}.title`, "must be a text");
  checkList(conversation.turns, `${path}.turns`, ({ role }) => isText(role), "needs a role");
  conversation.turns.forEach((turn, i) => checkTurn(turn, i, `${path}.turns[${i}]`));
}

function checkTurn({ role, parent, text, files = [], answer, results }, index, path) {
  const isPlace = Number.isInteger(parent) && parent >= -1 && parent < index;
  check(isPlace, `${path}.parent`, "must be the place of an earlier turn, or -1");
  const isFile = (each) => isText(each.name) && isText(each.text);
  const isResult = (each) => isText(each.id) && isText(each.text);
  if (role === "user") {
    check(isText(text), `${path}.text`, "must be a text");
    checkList(files, `${path}.files`, isFile, "needs a name and a text");
  } else if (role === "tool") {
    checkList(results, `${path}.results`, isResult, "needs an id and a text");
  } else {
    check(role === "assistant", `${path}.role`, 'must be "user", "assistant" or "tool"');
    checkAnswer(answer, `${path}.answer`);
  }
}

/** Whether `part` is what an Answer has in `parts`. */
function isPart({ kind, text, start, id, name, times }) {
  if (!isText(text)) return false;
  if (kind === "call") return isText(id) && isText(name);
  if (!isNumber(start)) return false;
  if (kind === "reasoning") return isNumber(times?.first) && isNumber(times.last);
  return kind === "content";
}

function checkAnswer(answer, path) {
  check(answer !== null && typeof answer === "object", path, "must be an object");
  checkList(answer.parts, `${path}.parts`, isPart, "is not a part of an answer");
  const isToken = (token) => isText(token.text) && isNumber(token.logprob);
  checkList(answer.tokens, `${path}.tokens`, isToken, "needs a text and a logprob");
  const isStep = ({ at, nodes }) => Number.isInteger(at) && Array.isArray(nodes);
  checkList(answer.steps, `${path}.steps`, isStep, 'needs "at" and "nodes"');
  answer.steps.forEach(({ nodes }, i) => {
    const isNode = (node) => isText(node.text) && isText(node.drafter) && isNumber(node.depth);
    checkList(nodes, `${path}.steps[${i}].nodes`, isNode, "is not a node of a draft tree");
  });
}
