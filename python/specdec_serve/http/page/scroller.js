// Scrolls along with what comes, unless the reader has scrolled away from the end.

const NEAR_THE_END = 80; // pixels within which the page scrolls on by itself

export class Scroller {
  /** `button` goes to the end of `root`; it is there while the end is not in sight. */
  constructor(root, button) {
    this._root = root;
    this._button = button;
    button.addEventListener("click", () => {
      this.toEnd();
      root.focus({ preventScroll: true }); // the button goes
    });
    root.addEventListener("scroll", () => this._show(), { passive: true });
    new ResizeObserver(() => this._show()).observe(root);
  }

  /** Shows the end. */
  toEnd() {
    this._root.scrollTop = this._root.scrollHeight;
    this._show();
  }

  /** Shows the beginning. */
  toStart() {
    this._root.scrollTop = 0;
    this._show();
  }

  /** Runs update(), which may make the content longer. */
  along(update) {
    const wasAtEnd = this._isAtEnd;
    update();
    requestAnimationFrame(() => (wasAtEnd ? this.toEnd() : this._show()));
  }

  get _isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this._root;
    return scrollHeight - scrollTop - clientHeight < NEAR_THE_END;
  }

  _show() {
    this._button.hidden = this._isAtEnd;
  }
}
