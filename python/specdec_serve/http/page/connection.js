// The heading: the model that is served, and whether the server lets the page in.

import { servedModel } from "./api.js";
import { byId } from "./dom.js";
import { apiKey } from "./settings.js";

export const UNAUTHORIZED = 401;

export class Connection {
  /**
   * wantKey(why) hears that the server answers nothing with this key, or without one, and
   * connected() that it does.
   */
  constructor({ wantKey, connected }) {
    this._wantKey = wantKey;
    this._connected = connected;
    this._isAsked = false; // whether the server has answered, or is about to
    this._numChecks = 0;
    /** {name, contextLength} of the model, once the server has told. */
    this.model = null;
  }

  /** Hears whether there is a server at all. */
  hear(isThere) {
    if (!isThere) {
      this._isAsked = false;
      show("server not reachable", false);
    } else if (!this._isAsked) this.check();
  }

  /** Asks for the model with the key of the settings: only its answer makes a connection. */
  async check() {
    this._isAsked = true;
    this._numChecks += 1;
    const check = this._numChecks;
    let model = null;
    let failure = null;
    try {
      model = await servedModel(apiKey());
    } catch (error) {
      failure = error;
    }
    if (check !== this._numChecks) return; // the key is another meanwhile
    if (failure === null) {
      this.model = model;
      showModel(model);
      show("connected", true);
      this._connected();
    } else if (failure.status === UNAUTHORIZED) this.refuse();
    else {
      this._isAsked = false;
      show(failure.status === 0 ? "server not reachable" : failure.message, false);
    }
  }

  /** The server has refused a request for its key. */
  refuse() {
    show(apiKey() ? "API key refused" : "API key needed", false);
    const why = apiKey() ? "The server refuses this API key" : "This server needs an API key";
    this._wantKey(`${why}: enter one in the settings.`);
  }
}

function show(text, isOk) {
  byId("connection").textContent = text;
  byId("connection").dataset.ok = String(isOk);
}

function showModel({ name, contextLength }) {
  byId("model").textContent = name;
  byId("model").title = name; // where it is cut off
  document.title = name;
  const text = contextLength === null ? "" : `${contextLength.toLocaleString("en")} tokens`;
  byId("context").textContent = text;
}
