// The chat page: puts its parts together.

import { chat, modelName, RequestError } from "./api.js";
import { Answer } from "./answer.js";
import { answerOf, AnswerView } from "./answer-view.js";
import { compare } from "./compare.js";
import { ConversationList } from "./conversation-list.js";
import { all, Conversation } from "./conversations.js";
import { byId, make } from "./dom.js";
import { addDraftTip } from "./draft-tip.js";
import * as settings from "./settings.js";
import { Strip } from "./strip.js";

const UNAUTHORIZED = 401;
const NEAR_THE_END = 80; // pixels within which the page scrolls on by itself

const messages = byId("messages");
const prompt = byId("prompt");
const logs = new WeakMap(); // conversation -> the element of its turns, kept while answers come
let conversations = all();
let current = null;
let running = null; // {controller, conversation} while an answer comes

const strip = new Strip(
  () => running !== null,
  (isThere) => {
    byId("connection").textContent = isThere ? "connected" : "server not reachable";
    byId("connection").dataset.ok = String(isThere);
    if (isThere && byId("model").textContent === "") showModel();
  },
);

const list = new ConversationList({
  open,
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
    log.append(make("article", { class: "question", "aria-label": "You" }, make("p", {}, turn.text)));
    return null;
  }
  const view = new AnswerView(turn.answer, {
    compare: (each) =>
      run(conversation, "Comparing", (signal) =>
        compare(each, (params, answer, update) =>
          stream(conversation, index, params, answer, update, signal),
        ),
      ),
    retry: (each) => retry(conversation, index, each),
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
      scrollAlong(update);
      strip.showAnswer(answer);
    }
    if (answer.finish === null) answer.end("stop");
  } catch (error) {
    if (error.name === "AbortError") answer.end("stopped");
    else if (error instanceof RequestError) {
      answer.end("error", error.message);
      if (error.status === UNAUTHORIZED) settings.askForKey();
      strip.look();
    } else {
      answer.end("error", `The page has failed: ${error.message}`);
      console.error(error);
    }
  }
  scrollAlong(update);
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

async function answerTurn(conversation, index) {
  const { answer } = conversation.turns[index];
  const view = showTurn(conversation, index);
  messages.scrollTop = messages.scrollHeight;
  await run(conversation, "Answering", (signal) =>
    stream(conversation, index, answer.params, answer, () => view.update(), signal),
  );
  keep(conversation);
}

function newAnswer() {
  const system = settings.systemPrompt();
  return new Answer({ params: { ...settings.parameters(), ...(system && { system }) } });
}

function send() {
  const text = prompt.value.trim();
  if (text === "" || running) return;
  const wrong = settings.wrongField();
  if (wrong) {
    byId("settings").open = true;
    wrong.reportValidity();
    return;
  }
  const conversation = current;
  prompt.value = "";
  prompt.focus(); // the button that had it goes
  conversation.ask(text);
  showTurn(conversation, conversation.turns.length - 1);
  conversation.turns.push({ role: "assistant", answer: newAnswer() });
  keep(conversation);
  conversations.sort((a, b) => b.changed - a.changed);
  showList();
  answerTurn(conversation, conversation.turns.length - 1);
}

/** Asks again for an answer that failed; later turns stay only if there are none. */
function retry(conversation, index, view) {
  if (running) return;
  const log = logs.get(conversation);
  while (log.lastChild !== view.node) log.lastChild.remove();
  view.node.remove();
  conversation.turns.length = index;
  conversation.turns.push({ role: "assistant", answer: newAnswer() });
  answerTurn(conversation, index);
  prompt.focus();
}

async function showModel() {
  try {
    byId("model").textContent = await modelName(settings.apiKey());
  } catch (error) {
    if (error.status === UNAUTHORIZED) say("This server wants a key: it goes into the settings.");
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.controller.abort();
});
byId("stop").addEventListener("click", () => running?.controller.abort());
byId("new-conversation").addEventListener("click", () => {
  open(conversations.find((each) => each.turns.length === 0) ?? begin());
  prompt.focus();
});
settings.addSettings((name) => {
  if (name !== "key") return;
  say("");
  showModel();
});
addDraftTip(messages, answerOf);
open(conversations[0] ?? begin());
showModel();
strip.look();
prompt.focus();
