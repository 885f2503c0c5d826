// The list of conversations: search, choose, rename, save, delete.

import { byId, iconButton, make } from "./dom.js";

/** Shows conversations; `actions` are {open(c), rename(c, title), save(c), remove(c)}. */
export class ConversationList {
  constructor(actions) {
    this._root = byId("conversations");
    this._actions = actions;
    this._search = byId("search");
    this._conversations = [];
    this._current = null;
    this._search.addEventListener("input", () => this._draw());
    this._search.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this._search.value !== "") event.stopPropagation(); // it clears
    });
  }

  /** Shows `conversations` but those that are empty; `current` is the open one. */
  show(conversations, current) {
    this._conversations = conversations.filter(({ path }) => path.length > 0);
    this._current = current;
    this._draw();
  }

  _draw() {
    const focused = document.activeElement?.closest("#conversations li")?.dataset.id;
    const words = this._search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const items = [];
    for (const conversation of this._conversations) {
      const found = conversation.find(words);
      if (found !== null) items.push(this._item(conversation, found));
    }
    this._root.replaceChildren(...items);
    this._search.hidden = this._conversations.length === 0;
    byId("none-found").hidden = items.length > 0 || this._search.hidden;
    if (focused) this._find(focused)?.querySelector("button").focus();
  }

  _find(id) {
    return [...this._root.children].find((item) => item.dataset.id === id);
  }

  /** `found` is what a search has found, to be shown below the name. */
  _item(conversation, found) {
    const { name } = conversation;
    const open = make(
      "button",
      {
        type: "button",
        class: "open",
        "aria-label": name,
        "aria-current": conversation === this._current && "true",
        onclick: () => this._actions.open(conversation),
      },
      name,
      ...(found === "" ? [] : [make("span", { class: "found" }, found)]),
    );
    const item = make("li", { "data-id": conversation.id }, open);
    const small = (what, drawing, onclick) => iconButton(`${what} ${name}`, drawing, onclick);
    item.append(
      small("Rename", "rename", () => this._rename(item, conversation)),
      small("Export", "save", () => this._actions.save(conversation)),
      small("Delete", "remove", () => {
        if (window.confirm(`Delete the conversation "${name}"?`)) this._actions.remove(conversation);
      }),
    );
    return item;
  }

  _rename(item, conversation) {
    const field = make("input", { "aria-label": "Name of the conversation", maxlength: "80" });
    field.value = conversation.name;
    let isOver = false;
    const end = (isKept) => {
      if (isOver) return;
      isOver = true;
      const title = field.value.trim();
      const isNew = isKept && title !== "" && title !== conversation.name;
      this._actions.rename(conversation, isNew ? title : conversation.title);
      this._find(conversation.id)?.querySelector("button").focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") end(false);
      event.stopPropagation();
    });
    field.addEventListener("blur", () => end(true));
    item.replaceChildren(field);
    field.select();
  }
}
