// The results of calls on the page: a form in which the user gives them, and those that were given.

import { make, onEnter } from "./dom.js";

/** A form with a field for each call; `send(results)` gets their {id, text}. */
export function resultsForm(calls, send) {
  const fields = calls.map(({ name }) => {
    const label = `Result of ${name}`;
    return make("textarea", { rows: "1", "aria-label": label, placeholder: label });
  });
  const submit = () => send(calls.map(({ id }, i) => ({ id, text: fields[i].value })));
  for (const field of fields) onEnter(field, submit);
  return make(
    "form",
    {
      class: "results",
      onsubmit(event) {
        event.preventDefault();
        submit();
      },
    },
    ...fields,
    make("button", { type: "submit", class: "quiet" }, "Send results"),
  );
}

/** The element of results that were given. */
export function resultsView(results) {
  const lines = results.map(({ text }) => make("pre", { tabindex: "0" }, text));
  return make("article", { class: "question results", "aria-label": "Results of calls" }, ...lines);
}
