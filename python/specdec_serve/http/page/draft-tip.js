// The panel that says what a token's step drafted, on hover and on focus.

import { byId } from "./dom.js";
import { describe } from "./drafts.js";

const MARGIN = 8; // pixels between a token, its panel and the window's edge

/**
 * Shows the panel for tokens inside `root`. `answerOf(element)` is the answer that a token's
 * element belongs to, or null. Arrow keys, Home and End go from token to token.
 */
export function addDraftTip(root, answerOf) {
  const tip = byId("tip");
  let anchor = null;

  function hide() {
    anchor?.removeAttribute("aria-describedby");
    anchor = null;
    tip.hidden = true;
  }

  function show(target) {
    const token = target.closest?.("[data-token]");
    const answer = token && answerOf(token);
    if (!answer) {
      hide();
      return;
    }
    if (token === anchor) return;
    hide();
    anchor = token;
    tip.replaceChildren(...describe(answer, Number(token.dataset.token)));
    tip.hidden = false;
    token.setAttribute("aria-describedby", tip.id);
    place(tip, token);
  }

  /** Stays at its token, which has moved, as long as that is in sight. */
  function follow() {
    const { top, bottom } = root.getBoundingClientRect();
    const at = anchor.getBoundingClientRect();
    if (at.bottom < top || at.top > bottom) hide();
    else place(tip, anchor);
  }

  // "mouseover" comes also where text comes to lie below a mouse that rests.
  root.addEventListener("mousemove", (event) => show(event.target));
  root.addEventListener("mouseleave", () => show(document.activeElement ?? root));
  root.addEventListener("focusin", (event) => show(event.target));
  root.addEventListener("focusout", hide);
  root.addEventListener("scroll", () => anchor && follow(), { capture: true, passive: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  root.addEventListener("keydown", (event) => {
    const token = event.target.closest("[data-token]");
    const next = token && neighbour(token, event.key);
    if (!next) return;
    event.preventDefault();
    focusToken(next);
  });
  root.addEventListener("click", (event) => {
    const token = event.target.closest("[data-token]");
    if (token && answerOf(token)) focusToken(token);
  });
  new MutationObserver(() => anchor && !anchor.isConnected && hide()).observe(root, {
    childList: true,
    subtree: true,
  });
}

/** Makes one token of an answer's body the one that Tab comes to. */
export function offerToTab(body) {
  if (body.querySelector('[data-token][tabindex="0"]')) return;
  const first = body.querySelector("mark[data-token]") ?? body.querySelector("[data-token]");
  first?.setAttribute("tabindex", "0");
}

function focusToken(token) {
  const body = token.closest(".body");
  for (const other of body.querySelectorAll('[data-token][tabindex="0"]')) {
    other.setAttribute("tabindex", "-1");
  }
  token.setAttribute("tabindex", "0");
  token.focus();
}

function neighbour(token, key) {
  const all = [...token.closest(".body").querySelectorAll("[data-token]")];
  const i = all.indexOf(token);
  if (key === "ArrowRight" || key === "ArrowDown") return all[i + 1];
  if (key === "ArrowLeft" || key === "ArrowUp") return all[i - 1];
  if (key === "Home") return all[0];
  if (key === "End") return all.at(-1);
  return null;
}

/** Below the token, or above where there is more room. */
function place(tip, token) {
  const at = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(MARGIN, Math.min(at.left, window.innerWidth - width - MARGIN));
  const below = at.bottom + MARGIN;
  const fits = below + height <= window.innerHeight - MARGIN || at.top < window.innerHeight / 2;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(MARGIN, fits ? below : at.top - height - MARGIN)}px`;
}
