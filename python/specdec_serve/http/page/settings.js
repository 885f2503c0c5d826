// Parameters of requests and the key, kept in the browser.

import { byId } from "./dom.js";
import { showMenu } from "./menu.js";
import * as storage from "./storage.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const FIELDS = [...NUMBERS, "system", "key"];
const MAX_SEED = 2 ** 32;

const fieldOf = (name) => byId(`setting-${name.replace("_", "-")}`);

/** Fills in what was kept, and keeps what changes; then calls `changed(name)`. */
export function addSettings(changed) {
  byId("settings-form").addEventListener("submit", (event) => event.preventDefault());
  const kept = storage.load("settings", {});
  for (const name of FIELDS) {
    const field = fieldOf(name);
    field.value = kept[name] ?? "";
    field.addEventListener("change", () => {
      storage.save("settings", Object.fromEntries(FIELDS.map((each) => [each, fieldOf(each).value])));
      changed(name);
    });
  }
}

/** The key of requests; "" for none. */
export function apiKey() {
  return fieldOf("key").value.trim();
}

/** The system prompt; "" for none. */
export function systemPrompt() {
  return fieldOf("system").value.trim();
}

/**
 * The parameters of a request. Empty fields are left to the server, but the seed: a random one, so
 * that the answer can come again.
 */
export function parameters() {
  const params = {};
  for (const name of NUMBERS) {
    const { value } = fieldOf(name);
    if (value !== "") params[name] = Number(value);
  }
  params.seed ??= Math.floor(Math.random() * MAX_SEED);
  return params;
}

/** Whether all fields hold what they may; shows the first that does not. */
export function areRight() {
  const wrong = NUMBERS.find((name) => !fieldOf(name).checkValidity());
  if (wrong) show(wrong).reportValidity();
  return !wrong;
}

/** Opens the settings; returns the field of a name. */
export function show(name) {
  showMenu(true);
  byId("settings").open = true;
  return fieldOf(name);
}
