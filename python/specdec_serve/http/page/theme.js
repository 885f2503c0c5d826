// The theme that the user has chosen, before the page is first drawn.

import { load } from "./storage.js";

/** Shows the theme of `settings`: "light", "dark", or nothing for that of the system. */
export function showTheme({ theme }) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

showTheme(load("settings", {}));
