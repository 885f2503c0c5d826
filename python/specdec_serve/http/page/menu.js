// On narrow screens the conversations, the settings and the strip are behind a button.

import { byId } from "./dom.js";

/** Opens or closes it; wide screens show everything either way. */
export function showMenu(isOpen) {
  document.body.dataset.menu = isOpen ? "open" : "closed";
  byId("menu").setAttribute("aria-expanded", String(isOpen));
}

byId("menu").addEventListener("click", () => showMenu(document.body.dataset.menu !== "open"));
