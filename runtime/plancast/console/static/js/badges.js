// A plan's status as a shape and a word, readable without colours.

import { h } from "./dom.js";

export const STATUSES = ["waiting", "running", "pending", "paused", "failed", "completed", "cancelled"];
export const FINISHED = new Set(["completed", "failed", "cancelled"]);

export function badge(status) {
  const known = STATUSES.includes(status) ? status : "pending";
  return h("span", { class: `badge is-${known}` }, h("span", { class: "dot", "aria-hidden": "true" }), status);
}

/** Badge for an actor that is alive or not. */
export function alive(yes, words = ["alive", "gone"]) {
  return h(
    "span",
    { class: `badge ${yes ? "is-completed" : "is-failed"}` },
    h("span", { class: "dot", "aria-hidden": "true" }),
    yes ? words[0] : words[1],
  );
}
