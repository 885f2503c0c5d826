// The chat page: puts its parts together.

import { chat, RequestError } from "./api.js";
import { Answer } from "./answer.js";
import { answerOf, AnswerView } from "./answer-view.js";
import { compare } from "./compare.js";
import { Connection, UNAUTHORIZED } from "./connection.js";
import { ConversationList } from "./conversation-list.js";
import { all, Conversation } from "./conversations.js";
import { byId, make, onEnter } from "./dom.js";
import { addDraftTip } from "./draft-tip.js";
import { showMenu } from "./menu.js";
import { questionView } from "./question-view.js";
import * as settings from "./settings.js";
import { Strip } from "./strip.js";

const NEAR_THE_END = 80; // pixels within which the page scrolls on by itself

const messages = byId("messages");
const prompt = byId("prompt");
const logs = new WeakMap(); // conversation -> the element of its turns, kept while answers come
let conversations = all();
let current = null;
let running = null; // {controller, conversation} while an answer comes

const connection = new Connection((why) => {
  say(why);
  const field = settings.show("key");
  if (prompt.value === "") field.focus(); // nobody is writing
});

const strip = new Strip(
  () => running !== null,
  (isThere) => connection.hear(isThere),
);

const list = new ConversationList({
  open(conversation) {
    open(conversation);
    showMenu(false);
  },
  rename(conversation, title) {
    conversation.title = title;
    if (conversation.turns.length > 0 || title) keep(conversation);
    showList();
  },
  remove(conversation) {
    if (running?.conversation === conversation) running.controller.abort();
    conversation.remove();
    conversation.isRemoved = true;
    conversations = conversations.filter((each) => each !== conversation);
    if (conversation === current) open(conversations[0] ?? begin());
    showList();
    byId("new-conversation").focus();
  },
});

function begin() {
  const conversation = new Conversation();
  conversations.unshift(conversation);
  return conversation;
}

function showList() {
  list.show(conversations, current);
}

function keep(conversation) {
  if (conversation.isRemoved || conversation.save()) return;
  say("The browser has no room to keep this conversation; delete others.");
}

function say(text) {
  byId("status").textContent = text;
}

function open(conversation) {
  current = conversation;
  if (!logs.has(conversation)) {
    const log = make("div", { class: "log" });
    logs.set(conversation, log);
    conversation.turns.forEach((_, i) => showTurn(conversation, i));
  }
  messages.replaceChildren(logs.get(conversation));
  messages.scrollTop = messages.scrollHeight;
  showList();
}

/** Adds the element of a turn; returns the view of an answer. */
function showTurn(conversation, index) {
  const turn = conversation.turns[index];
  const log = logs.get(conversation);
  if (turn.role === "user") {
    log.append(questionView(turn.text, (text) => ask(conversation, index, text)));
    return null;
  }
  const view = new AnswerView(turn.answer, {
    compare: (each) =>
      run(conversation, "Comparing", (signal) =>
        compare(each, (params, answer, update) =>
          stream(conversation, index, params, answer, update, signal),
        ),
      ),
    again: () => again(conversation, index),
  });
  log.append(view.node);
  return view;
}

/** Fills in `answer`; errors become a part of it. */
async function stream(conversation, turn, params, answer, update, signal) {
  const { system, ...body } = params;
  body.messages = conversation.messages(turn, system);
  Object.assign(body, { logprobs: true, top_logprobs: 0, draft_trees: true });
  try {
    for await (const chunk of chat(body, settings.apiKey(), signal)) {
      for (const choice of chunk.choices) answer.add(choice);
      update();
      strip.showAnswer(answer);
    }
    if (answer.finish === null) answer.end("stop");
  } catch (error) {
    if (error.name === "AbortError") answer.end("stopped");
    else if (error instanceof RequestError) {
      answer.end("error", error.message);
      if (error.status === UNAUTHORIZED) connection.refuse();
      strip.look();
    } else {
      answer.end("error", `The page has failed: ${error.message}`);
      console.error(error);
    }
  }
  update();
}

function scrollAlong(update) {
  const isAtEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < NEAR_THE_END;
  update();
  if (isAtEnd) requestAnimationFrame(() => (messages.scrollTop = messages.scrollHeight));
}

/** One request at a time: `work(signal)` while the page shows that it is under way. */
async function run(conversation, what, work) {
  if (running) {
    say("Another answer is under way: stop it first.");
    return;
  }
  running = { controller: new AbortController(), conversation };
  document.body.dataset.busy = "true";
  byId("send").hidden = true;
  byId("stop").hidden = false;
  say(`${what} ...`);
  strip.begin();
  try {
    await work(running.controller.signal);
    say("");
  } finally {
    const stopHadFocus = document.activeElement === byId("stop");
    running = null;
    document.body.dataset.busy = "false";
    byId("send").hidden = false;
    byId("stop").hidden = true;
    if (stopHadFocus) prompt.focus();
    strip.look();
  }
}

/** Whether a question may go out now; says why not. */
function isReady() {
  if (running) say("Another answer is under way: stop it first.");
  return !running && settings.areRight();
}

function send() {
  if (prompt.value.trim() === "") return;
  ask(current, current.turns.length, prompt.value);
}

/** Asks `text` as turn `index`, in place of what was there and behind. */
function ask(conversation, index, text) {
  if (!isReady()) return;
  if (index < conversation.turns.length) cut(conversation, index);
  else prompt.value = "";
  // The first line keeps its indentation.
  conversation.ask(text.replace(/^(?:[^\S\n]*\n)+/, "").trimEnd());
  showTurn(conversation, index);
  answerLast(conversation);
}

/** Answers again what turn `index` answers, without what came behind. */
function again(conversation, index) {
  if (!isReady()) return;
  cut(conversation, index);
  answerLast(conversation);
}

function cut(conversation, index) {
  conversation.cut(index);
  for (const node of [...logs.get(conversation).children].slice(index)) node.remove();
}

/** Answers the last question. */
async function answerLast(conversation) {
  const system = settings.systemPrompt();
  const params = { ...settings.parameters(), ...(system && { system }) };
  const answer = new Answer({ params });
  const index = conversation.turns.length;
  conversation.turns.push({ role: "assistant", answer });
  keep(conversation);
  conversations.sort((a, b) => b.changed - a.changed);
  showList();
  const view = showTurn(conversation, index);
  messages.scrollTop = messages.scrollHeight;
  prompt.focus(); // the button that had it goes
  const update = () => scrollAlong(() => view.update());
  await run(conversation, "Answering", (signal) =>
    stream(conversation, index, params, answer, update, signal),
  );
  keep(conversation);
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
onEnter(prompt, send);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.controller.abort();
});
byId("stop").addEventListener("click", () => running?.controller.abort());
byId("new-conversation").addEventListener("click", () => {
  open(conversations.find((each) => each.turns.length === 0) ?? begin());
  showMenu(false);
  prompt.focus();
});
settings.addSettings((name) => {
  if (name !== "key") return;
  say("");
  showMenu(false);
  connection.check();
});
addDraftTip(messages, answerOf);
open(conversations[0] ?? begin());
connection.check();
strip.look();
prompt.focus();
