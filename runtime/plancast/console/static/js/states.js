// What a view shows when it has nothing to show: not yet, nothing there, or an error.

import { Offline } from "./api.js";
import { h } from "./dom.js";

/** Grey lines in the place of what comes; they appear late, so that a quick answer does not flicker. */
export function loading(lines = 6) {
  return h(
    "div",
    { class: "loading", "aria-busy": "true", role: "status" },
    h("span", { class: "unseen" }, "Loading"),
    Array.from({ length: lines }, () => h("div", { class: "bone" })),
  );
}

export function empty(title, ...text) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", {}, ...text));
}

export function failed(error, again) {
  const away = error instanceof Offline;
  return h(
    "div",
    { class: "empty error-state", role: "alert" },
    h("p", { class: "empty-title" }, away ? "The server cannot be reached" : error.title || "This could not be shown"),
    h("p", {}, away ? "It may be restarting. What you see here comes back by itself." : error.message),
    again && h("button", { class: "button", type: "button", onclick: again }, "Try again"),
  );
}

/** A line over what is shown already: it is old, or part of it is missing. */
export function stale(error) {
  return h(
    "p",
    { class: "stale", role: "status" },
    error instanceof Offline ? "The server cannot be reached. This is the last that was heard." : error.message,
  );
}
