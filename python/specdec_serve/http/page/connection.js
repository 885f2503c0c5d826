// Whether the server lets the page in, beside the name of its model.

import { modelName } from "./api.js";
import { byId } from "./dom.js";
import { apiKey } from "./settings.js";

export const UNAUTHORIZED = 401;

export class Connection {
  /** `wantKey(why)` hears that the server answers nothing with this key, or without one. */
  constructor(wantKey) {
    this._wantKey = wantKey;
    this._isAsked = false; // whether the server has answered, or is about to
    this._numChecks = 0;
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
    let name = null;
    let failure = null;
    try {
      name = await modelName(apiKey());
    } catch (error) {
      failure = error;
    }
    if (check !== this._numChecks) return; // the key is another meanwhile
    if (failure === null) {
      byId("model").textContent = name;
      show("connected", true);
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
