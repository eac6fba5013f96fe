// A plan's status: a shape and a word, so that it can be told without colours.

import { h } from "./dom.js";

export const STATUSES = ["running", "pending", "paused", "failed", "completed", "cancelled"];
export const FINISHED = new Set(["completed", "failed", "cancelled"]);

export function badge(status) {
  const known = STATUSES.includes(status) ? status : "pending";
  return h("span", { class: `badge is-${known}` }, h("span", { class: "dot", "aria-hidden": "true" }), status);
}

/** Whether something that should be alive is. */
export function alive(yes, words = ["alive", "gone"]) {
  return h(
    "span",
    { class: `badge ${yes ? "is-completed" : "is-failed"}` },
    h("span", { class: "dot", "aria-hidden": "true" }),
    yes ? words[0] : words[1],
  );
}
