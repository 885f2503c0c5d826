// The live strip: figures of the answer that comes and of the server.

import { metrics } from "./api.js";
import { showChart } from "./chart.js";
import { byId } from "./dom.js";
import * as storage from "./storage.js";

const BUSY_MS = 1000; // between two looks at the metrics while an answer comes
const IDLE_MS = 5000;
const LENGTH = "specdec_native:draft_length";

export class Strip {
  /** `isBusy()`: whether an answer comes. `reached(isThere)` hears whether the server answers. */
  constructor(isBusy, reached) {
    this._isBusy = isBusy;
    this._reached = reached;
    this._latest = null; // metrics
    this._base = null; // those from which drafts are counted
    this._timer = null;
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** An answer begins: draft lengths are those of the time from now on. */
  begin() {
    this._base = this._latest;
    this.look();
  }

  /** Shows figures of `answer`, none of null, for a model of {name, contextLength} or null. */
  showAnswer(answer, model) {
    byId("strip").hidden = answer === null;
    const { speed = null, tokensPerStep = null } = answer?.stats() ?? {};
    put("strip-speed", speed, 1);
    put("strip-step", tokensPerStep, 2);
    showChart(answer?.stepLengths() ?? []);
    const length = model?.contextLength;
    const isKnown = length && answer?.numContext;
    put("strip-context", isKnown ? (100 * answer.numContext) / length : null, 0, "%");
    put("strip-factor", storage.load(`factor:${model?.name}`, null), 2);
  }

  /** Keeps the factor over plain decoding that the last comparison has measured. */
  keepFactor(factor, { name }) {
    storage.save(`factor:${name}`, factor);
    put("strip-factor", factor, 2);
  }

  /** Looks at the metrics now, and again later; not while the page is hidden. */
  async look() {
    clearTimeout(this._timer);
    this._timer = null;
    if (document.hidden) return;
    let values = null;
    try {
      values = await metrics();
    } catch {
      // shown by what hears of it
    }
    this._reached(values !== null);
    this._show(values);
    clearTimeout(this._timer); // of another look meanwhile
    this._timer = setTimeout(() => this.look(), this._isBusy() ? BUSY_MS : IDLE_MS);
  }

  _show(values) {
    const usage = values?.get("vllm:kv_cache_usage_perc") ?? null;
    put("strip-kv", usage === null ? null : 100 * usage, 1, "%");
    if (values === null) return;
    const since = (name) => (values.get(name) ?? 0) - (this._base?.get(name) ?? 0);
    if (since(`${LENGTH}_count`) < 0) this._base = null; // the server is a new one
    const drafts = since(`${LENGTH}_count`);
    if (drafts > 0) put("strip-length", since(`${LENGTH}_sum`) / drafts, 1);
    this._latest = values;
  }
}

/** Shows a figure; hides one that is not known. */
function put(id, value, digits, unit = "") {
  byId(id).parentElement.hidden = value === null;
  byId(id).textContent = value === null ? "–" : value.toFixed(digits) + unit;
}
