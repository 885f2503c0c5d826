// The browser's storage of this page. Servers at different paths of one host have separate storage.

const PREFIX = `specdec-native:${new URL("..", import.meta.url).pathname}:`;
const memory = new Map(); // where the browser keeps nothing

function store() {
  try {
    return window.localStorage;
  } catch {
    return null; // the user has forbidden it
  }
}

/** The value kept under `name`, or `otherwise`. */
export function load(name, otherwise) {
  try {
    const text = store() ? store().getItem(PREFIX + name) : memory.get(name);
    return text === null || text === undefined ? otherwise : JSON.parse(text);
  } catch {
    return otherwise; // not written by this page
  }
}

/** Keeps a value that JSON can hold. Returns whether there was room. */
export function save(name, value) {
  const text = JSON.stringify(value);
  if (!store()) {
    memory.set(name, text);
    return true;
  }
  try {
    store().setItem(PREFIX + name, text);
    return true;
  } catch {
    return false;
  }
}

/** Forgets a value. */
export function forget(name) {
  memory.delete(name);
  store()?.removeItem(PREFIX + name);
}

/** Names that begin with `start`. */
export function names(start) {
  const kept = store() ? Object.keys(store()) : [...memory.keys()].map((name) => PREFIX + name);
  return kept
    .filter((name) => name.startsWith(PREFIX + start))
    .map((name) => name.slice(PREFIX.length));
}
