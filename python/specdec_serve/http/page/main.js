// The chat page: puts its parts together.

import { Answer } from "./answer.js";
import { ArchiveError, download, read } from "./archive.js";
import { compare } from "./compare.js";
import { Composer } from "./composer.js";
import { Connection, UNAUTHORIZED } from "./connection.js";
import { ConversationList } from "./conversation-list.js";
import { all, Conversation } from "./conversations.js";
import { byId, onFiles } from "./dom.js";
import { addDraftTip } from "./draft-tip.js";
import { answerOf } from "./part-views.js";
import { Requests } from "./requests.js";
import { Scroller } from "./scroller.js";
import * as settings from "./settings.js";
import { Strip } from "./strip.js";
import { TurnViews } from "./turn-views.js";

const WIDE = window.matchMedia("(min-width: 60rem)"); // conversations are a column, as in page.css

const drawer = byId("conversations-drawer");
let conversations = all();
let current = null;

const requests = new Requests({
  begun() {
    composer.setBusy(true);
    strip.begin();
  },
  over() {
    composer.setBusy(false);
    strip.look();
  },
  progress: (answer) => strip.showAnswer(answer, connection.model),
  refused(status) {
    if (status === UNAUTHORIZED) connection.refuse();
    strip.look();
  },
  say,
});

const composer = new Composer({
  ask: (text, files) => ask(current, current.path.at(-1) ?? null, { role: "user", text, files }),
  stop: () => requests.stop(),
  say,
});

const connection = new Connection({
  wantKey(why) {
    say(why);
    const field = settings.show("key");
    if (composer.isEmpty) field.focus(); // nobody is writing
  },
  connected: showFigures,
});

const strip = new Strip(
  () => requests.conversation !== null,
  (isThere) => connection.hear(isThere),
);

const scroller = new Scroller(byId("messages"), byId("to-end"));

const turns = new TurnViews(byId("messages"), {
  ask,
  again(conversation, turn) {
    if (isReady()) answerTo(conversation, turn.parent);
  },
  goOn,
  compare: compareWithPlain,
  remove: removeTurn,
  chosen(conversation) {
    keep(conversation);
    showFigures();
  },
});

const list = new ConversationList({
  open(conversation) {
    open(conversation);
    drawer.hidePopover();
  },
  rename(conversation, title) {
    conversation.title = title;
    keep(conversation);
    showList();
  },
  save: (conversation) => download([conversation]),
  remove(conversation) {
    remove(conversation);
    byId("new-conversation").focus();
  },
});

function begin() {
  const conversation = new Conversation();
  conversations.unshift(conversation);
  return conversation;
}

function remove(conversation) {
  if (requests.conversation === conversation) requests.stop();
  conversation.remove();
  conversation.isRemoved = true;
  conversations = conversations.filter((each) => each !== conversation);
  if (conversation === current) open(conversations[0] ?? begin());
  showList();
}

/** Deletes a turn with all behind it, when the user has agreed. */
function removeTurn(conversation, turn) {
  if (requests.conversation === conversation && !requests.isFree()) return;
  const behind = turn.chosen === null ? "" : " and all that follows";
  const what = turn.role === "user" ? "message" : "answer";
  if (!window.confirm(`Delete this ${what}${behind}?`)) return;
  conversation.drop(turn);
  if (conversation.path.length === 0) remove(conversation);
  else {
    keep(conversation);
    turns.show(conversation);
    showList();
    showFigures();
  }
  composer.focus();
}

function showList() {
  list.show(conversations, current);
}

function keep(conversation) {
  if (conversation.isRemoved || conversation.save()) return;
  say("The browser has no room to keep this conversation; delete others.");
}

/** Says something below the messages; what is no news to those who see only to screen readers. */
function say(text, isSeen = true) {
  byId("status").textContent = text;
  byId("status").classList.toggle("off-screen", !isSeen);
}

function open(conversation) {
  current = conversation;
  turns.show(conversation);
  if (conversation.path.length > 0) scroller.toEnd();
  else scroller.toStart();
  showList();
  showFigures();
}

/** Shows the figures of the last answer in the strip. */
function showFigures() {
  const answers = current.path.filter(({ role }) => role === "assistant");
  strip.showAnswer(answers.at(-1)?.answer ?? null, connection.model);
}

/** Whether a question may go out now; says why not. */
function isReady() {
  return requests.isFree() && settings.areRight();
}

/** Asks a question, or gives results of calls, behind `parent`. Returns whether it has gone out. */
function ask(conversation, parent, content) {
  if (!isReady()) return false;
  // The first line keeps its indentation.
  const text = content.text?.replace(/^(?:[^\S\n]*\n)+/, "").trimEnd();
  answerTo(conversation, conversation.add(parent, { ...content, ...(content.text && { text }) }));
  return true;
}

/** Answers the question `asked`. */
async function answerTo(conversation, asked) {
  const answer = new Answer({ params: settings.parameters() });
  const turn = conversation.add(asked, { role: "assistant", answer });
  keep(conversation);
  conversations.sort((a, b) => b.changed - a.changed);
  showList();
  turns.show(conversation);
  scroller.toEnd();
  composer.focus(); // the button that had it goes
  await requests.run(conversation, "Answering", () => stream(conversation, turn));
  keep(conversation);
}

/** Goes on with the answer of `turn`, which was cut off. */
async function goOn(conversation, turn) {
  if (!isReady()) return;
  turn.answer.resume();
  turns.viewOf(conversation, turn).update();
  composer.focus();
  await requests.run(conversation, "Answering", () => stream(conversation, turn));
  keep(conversation);
}

/** Fills in the answer of `turn`, or another one in its place; `show()` draws it. */
function stream(conversation, turn, answer = turn.answer, show = null) {
  const messages = conversation.messagesTo(turn.parent, answer.params.system);
  const view = turns.viewOf(conversation, turn);
  return requests.stream(messages, answer, () => scroller.along(show ?? (() => view.update())));
}

async function compareWithPlain(conversation, turn, view) {
  await requests.run(conversation, "Comparing", async () => {
    const factor = await compare(view, (answer, show) => stream(conversation, turn, answer, show));
    if (factor !== null && connection.model) strip.keepFactor(factor, connection.model);
    showFigures();
  });
}

async function importFiles([file]) {
  try {
    const found = read(await file.text());
    found.forEach(keep);
    conversations = [...found, ...conversations].sort((a, b) => b.changed - a.changed);
    showList();
    say(`${found.length} ${found.length === 1 ? "conversation" : "conversations"} imported.`);
  } catch (error) {
    if (!(error instanceof ArchiveError)) throw error;
    say(`Not imported: ${error.message}`);
  }
}

document.addEventListener("keydown", (event) => {
  const isDrawers = document.querySelector(":popover-open") !== null; // which it closes
  if (event.key === "Escape" && !isDrawers) requests.stop();
});
byId("new-conversation").addEventListener("click", () => {
  open(conversations.find((each) => each.path.length === 0) ?? begin());
  composer.focus();
});
byId("export").addEventListener("click", () => {
  download(conversations.filter((each) => each.path.length > 0));
});
onFiles(byId("import"), byId("import-file"), importFiles);
WIDE.addEventListener("change", () => drawer.hidePopover());
settings.addSettings((name) => {
  if (name !== "key") return;
  say("");
  settings.hide();
  connection.check();
});
addDraftTip(byId("messages"), answerOf);
open(conversations[0] ?? begin());
connection.check();
strip.look();
composer.focus();
