// Filters of the list of plans: status with counts, tenant, session, goal and parent.

import { STATUSES } from "./badges.js";
import { h, put } from "./dom.js";
import { compact, number } from "./format.js";

const FIELDS = [
  ["tenant_id", "Tenant"],
  ["session_id", "Session"],
  ["goal", "Goal"],
  ["parent", "Parent plan"],
];

/** The filters beside status and text. `set(change)` is called on input, `clear()` to remove all. */
export function filterPanel(filter, { set, clear }) {
  const made = h("form", { class: "filters", id: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() });
  for (const [name, label] of FIELDS) {
    const input = h("input", { type: "text", id: `filter-${name}`, value: filter[name], autocomplete: "off", spellcheck: "false" });
    input.addEventListener("change", () => set({ [name]: input.value.trim() }));
    made.append(h("div", { class: "field" }, h("label", { for: input.id }, label), input));
  }
  made.append(h("button", { class: "button quiet", type: "button", onclick: clear }, "Clear"));
  made.addEventListener("keydown", (event) => event.key === "Enter" && event.target.dispatchEvent(new Event("change")));
  made.hidden = !FIELDS.some(([name]) => filter[name]);
  return made;
}

/** A button for each status, into `place`. */
export function drawChips(place, chosen, counts, set) {
  const sum = Object.values(counts).reduce((all, n) => all + n, 0);
  const known = Object.keys(counts).length > 0;
  const chip = (value, label, n) =>
    h(
      "button",
      {
        class: `chip${value ? ` is-${value}` : ""}`,
        type: "button",
        "aria-pressed": String(chosen === value),
        onclick: () => {
          set({ status: value });
          drawChips(place, value, counts, set);
        },
      },
      value && h("span", { class: "dot", "aria-hidden": "true" }),
      label,
      known && h("span", { class: "chip-count", title: number(n) }, compact(n)),
    );
  const had = [...place.children].indexOf(document.activeElement);
  put(place, chip("", "All", sum), STATUSES.map((each) => chip(each, each, counts[each] ?? 0)));
  if (had >= 0) place.children[had].focus();
}
