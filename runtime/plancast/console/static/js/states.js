// Placeholders of views: loading, empty, or an error.

import { Offline } from "./api.js";
import { h, put } from "./dom.js";

/** A skeleton; it appears with a delay, so that fast responses do not flicker. */
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
    h("p", { class: "empty-title" }, away ? "The server cannot be reached" : error.title || "This page cannot be shown"),
    h("p", {}, away ? "This page could not be loaded. It reconnects by itself; check that plancast console is running." : error.message),
    again && h("button", { class: "button", type: "button", onclick: again }, "Try again"),
  );
}

/** A notice above content that is stale or incomplete. */
export function stale(error) {
  return h(
    "p",
    { class: "stale", role: "status" },
    error instanceof Offline ? "The server cannot be reached. This is the last known state." : error.message,
  );
}

/** Returns a function that draws what `get()` resolves to into `place`, whenever it is called and that has changed. */
export function drawnFrom(get, place, draw) {
  let print = "";
  return async function load() {
    if (!place.hasChildNodes()) put(place, loading(4));
    try {
      const found = await get();
      const now = JSON.stringify(found);
      if (now !== print) put(place, draw(found));
      print = now;
    } catch (error) {
      if (error.name !== "AbortError" && !print) put(place, failed(error, load));
    }
  };
}
