// The settings: fields of requests under their names in the API, the key, and the theme. They are
// kept in the browser.

import { byId } from "./dom.js";
import * as storage from "./storage.js";
import { showTheme } from "./theme.js";

const MAX_SEED = 2 ** 32;
const WRONG = {
  object: "This is not a JSON object.",
  list: "This is not a JSON list.",
};

const drawer = byId("settings-drawer");
const form = byId("settings-form");
const fields = [...form.elements].filter(({ name }) => name);

/** Fills in what was kept, and keeps what changes; then calls `changed(name)`. */
export function addSettings(changed) {
  const kept = storage.load("settings", {});
  const keep = () => {
    const texts = Object.fromEntries(fields.map(({ name, value }) => [name, value]));
    storage.save("settings", texts);
    showTheme(texts);
  };
  for (const field of fields) {
    field.value = kept[field.name] ?? "";
    check(field);
    field.addEventListener("change", () => {
      check(field);
      keep();
      changed(field.name);
    });
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    for (const field of fields) field.value = "";
    fields.forEach(check);
    keep();
    changed("key");
  });
}

/** Marks a field of JSON that holds none. */
function check(field) {
  const why = WRONG[field.dataset.kind];
  if (!why) return;
  let isRight = field.value.trim() === "";
  try {
    const value = JSON.parse(field.value);
    isRight ||= value !== null && typeof value === "object";
    isRight &&= Array.isArray(value) === (field.dataset.kind === "list");
  } catch {
    // isRight says it
  }
  field.setCustomValidity(isRight ? "" : why);
}

/** What fields hold, by name; fields that are empty have no member. */
function values() {
  const read = ({ type, value, dataset }) => {
    if (type === "number") return Number(value);
    if (dataset.kind === "lines") return value.split("\n").filter((line) => line !== "");
    if (dataset.kind) return JSON.parse(value);
    return value.trim();
  };
  const given = fields.filter(({ value }) => value.trim() !== "");
  return Object.fromEntries(given.map((field) => [field.name, read(field)]));
}

/** The key of requests; "" for none. */
export function apiKey() {
  return form.elements.key.value.trim();
}

/**
 * The parameters of a request, and `system`, the system prompt. What is empty is left to the
 * server, but the seed: a random one, so that the answer can come again.
 */
export function parameters() {
  const { key, theme, schema, other, ...fields } = values();
  const params = { ...other, ...fields };
  if (schema) {
    params.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  params.seed ??= Math.floor(Math.random() * MAX_SEED);
  return params;
}

/** Whether all fields hold what they may; shows the first that does not. */
export function areRight() {
  const wrong = fields.find((field) => !field.checkValidity());
  if (wrong) show(wrong.name).reportValidity();
  return !wrong;
}

/** Opens the settings; returns the field of a name. */
export function show(name) {
  if (!drawer.matches(":popover-open")) drawer.showPopover();
  return form.elements[name];
}

/** Closes the settings. */
export function hide() {
  drawer.hidePopover();
}
