// Short messages on the outcome of actions, announced by screen readers.

import { h } from "./dom.js";

const SHOWN = 6000;

export function toast(text, { bad = false, href = "", label = "" } = {}) {
  const made = h(
    "div",
    { class: `toast${bad ? " bad" : ""}` },
    h("span", {}, text),
    href && h("a", { href }, label),
    h("button", { class: "toast-close", type: "button", "aria-label": "Dismiss", onclick: () => made.remove() }, "×"),
  );
  document.getElementById("toasts").append(made);
  setTimeout(() => made.remove(), bad ? SHOWN * 2 : SHOWN);
}
