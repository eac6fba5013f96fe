// Tabs after the ARIA authoring practices: arrow keys move between them.

import { h } from "./dom.js";

/** `views`: `{name, label, content, opened?}`. `changed(name)` is called when the user selects one. */
export function tabs(views, first, changed) {
  let current = "";
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the plan" });
  const place = h("div", { class: "tab-place" });
  const buttons = new Map();
  for (const { name, label, content } of views) {
    const button = h("button", { class: "tab", role: "tab", type: "button", id: `tab-${name}`, "aria-controls": `view-${name}`, onclick: () => open(name) }, label, h("span", { class: "tab-count" }));
    buttons.set(name, button);
    bar.append(button);
    place.append(h("div", { id: `view-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: true }, content));
  }
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const names = [...buttons.keys()];
    const to = names[(names.indexOf(current) + by + names.length) % names.length];
    open(to);
    buttons.get(to).focus();
  });

  function open(name, quietly = false) {
    const view = views.find((each) => each.name === name) ?? views[0];
    current = view.name;
    for (const [each, button] of buttons) {
      const yes = each === current;
      button.setAttribute("aria-selected", String(yes));
      button.tabIndex = yes ? 0 : -1;
    }
    for (const panel of place.children) panel.hidden = panel.id !== `view-${current}`;
    view.opened?.();
    if (!quietly) changed(current);
  }

  open(first, true);
  return {
    element: h("div", {}, bar, place),
    open,
    now: () => current,
    count: (name, n) => {
      buttons.get(name).querySelector(".tab-count").textContent = n ? String(n) : "";
    },
  };
}
