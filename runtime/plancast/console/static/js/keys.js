// Keyboard shortcuts: single keys outside of text fields, and `g` with a letter to navigate.

import { show } from "./dialog.js";
import { h } from "./dom.js";
import { keep, kept } from "./store.js";

const known = new Map();
const GO_WITHIN = 1500;
let afterG = 0;

/** `key` is as in `KeyboardEvent.key`, or `g p` for two in a row. Active until `signal` is aborted. */
export function onKey(key, what, act, { signal, group = "This page" } = {}) {
  const entry = { key, what, act, group };
  known.set(key, entry);
  signal?.addEventListener("abort", () => known.get(key) === entry && known.delete(key));
}

export function listenForKeys() {
  onKey("?", "Show keyboard shortcuts", help, { group: "Everywhere" });
  onKey("j", "Next item", () => step(1), { group: "Lists" });
  onKey("k", "Previous item", () => step(-1), { group: "Lists" });
  known.set("Enter", { key: "Enter", what: "Open the item", group: "Lists", act: null }); // links do this natively
  addEventListener("keydown", pressed);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
  const { target } = event;
  if (target.closest("input, textarea, select, [contenteditable], dialog")) {
    if (event.key === "Escape" && target.closest(".main")) target.blur();
    return;
  }
  if (kept("keys", "on") === "off" && event.key !== "?") return;
  const chord = event.timeStamp - afterG < GO_WITHIN ? `g ${event.key}` : "";
  afterG = 0;
  const entry = known.get(chord) ?? known.get(event.key);
  if (entry?.act) {
    event.preventDefault();
    entry.act();
  } else if (event.key === "g") afterG = event.timeStamp;
}

/** Moves the focus between the items of a list (`data-item`), to the main link or button of each. */
function step(by) {
  const items = [...document.querySelectorAll("#main [data-item]")].filter((each) => each.offsetParent !== null);
  if (!items.length) return;
  const now = items.findIndex((each) => each.contains(document.activeElement));
  const to = now < 0 ? (by > 0 ? 0 : items.length - 1) : Math.min(items.length - 1, Math.max(0, now + by));
  const item = items[to];
  const target = item.matches("a, button, [tabindex]") ? item : item.querySelector("a, button, [tabindex]");
  target?.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

function help() {
  const groups = new Map();
  for (const entry of known.values()) groups.set(entry.group, [...(groups.get(entry.group) ?? []), entry]);
  const order = ["Everywhere", "Go to", "Lists", "This page"].filter((each) => groups.has(each));
  const on = h("input", {
    type: "checkbox",
    checked: kept("keys", "on") === "on",
    onchange: () => keep("keys", on.checked ? "on" : "off"),
  });
  show(
    "Keys",
    h(
      "div",
      { class: "keys" },
      order.map((group) =>
        h(
          "section",
          {},
          h("h3", {}, group),
          h("dl", {}, groups.get(group).map(({ key, what }) =>
            h("div", {}, h("dt", {}, key.split(" ").map((each) => h("kbd", {}, each))), h("dd", {}, what)))),
        ),
      ),
    ),
    h("label", { class: "check" }, on, " Enable single-key shortcuts. (",
      h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"), " always submits a form.)"),
  );
}
