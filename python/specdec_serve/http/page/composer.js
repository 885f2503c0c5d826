// The form in which a message is written: text, files, Send and Stop.

import { byId, iconButton, isTouched, make, onEnter, onFiles } from "./dom.js";
import { FileError, readFile } from "./files.js";

const KEYS = " (Enter sends, Shift+Enter begins a line, Escape stops)";

const prompt = byId("prompt");

export class Composer {
  /**
   * `actions` are {ask(text, files), stop(), say(text)}; ask() returns whether the message has gone
   * out.
   */
  constructor(actions) {
    this._actions = actions;
    this._files = [];
    prompt.placeholder = `Message${isTouched() ? "" : KEYS}`;
    const send = () => this._send();
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    onEnter(prompt, send);
    byId("stop").addEventListener("click", actions.stop);
    onFiles(byId("attach"), byId("attach-file"), (files) => this.attach(files));
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault(); // the browser would leave the page for the file
      this.attach([...event.dataTransfer.files]);
    });
    prompt.addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (files.length === 0) return;
      event.preventDefault();
      this.attach(files);
    });
  }

  /** Adds files to the message; says which are no text. */
  async attach(files) {
    for (const file of files) {
      try {
        this._files.push(await readFile(file));
      } catch (error) {
        if (!(error instanceof FileError)) throw error;
        this._actions.say(error.message);
      }
    }
    this._showFiles();
    prompt.focus();
  }

  /** Shows Stop while an answer comes, Send else. */
  setBusy(isBusy) {
    const stopHadFocus = document.activeElement === byId("stop");
    document.body.dataset.busy = String(isBusy);
    byId("send").hidden = isBusy;
    byId("stop").hidden = !isBusy;
    if (!isBusy && stopHadFocus) this.focus();
  }

  /** Puts the focus on the message, but on touch screens, whose keyboard would hide the answer. */
  focus() {
    if (!isTouched()) prompt.focus();
  }

  /** Whether the user has written nothing. */
  get isEmpty() {
    return prompt.value.trim() === "" && this._files.length === 0;
  }

  _send() {
    if (this.isEmpty || !this._actions.ask(prompt.value, this._files)) return;
    prompt.value = "";
    this._files = [];
    this._showFiles();
  }

  _showFiles() {
    const remove = (file) => {
      this._files = this._files.filter((each) => each !== file);
      this._showFiles();
      prompt.focus();
    };
    const items = this._files.map((file) => {
      const button = iconButton(`Remove ${file.name}`, "remove", () => remove(file));
      return make("li", {}, file.name, button);
    });
    byId("files").replaceChildren(...items);
    byId("files").hidden = items.length === 0;
  }
}
