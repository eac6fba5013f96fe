// Filters of the list of plans: status with counts, tenant, session, goal and parent.

import { STATUSES } from "./badges.js";
import { h, put } from "./dom.js";
import { compact, number } from "./format.js";

const FIELDS = [
  ["tenant_id", "Tenant"],
  ["session_id", "Session"],
  ["goal", "Goal"],
  ["parent", "Parent plan"],
  ["attribute", "Attribute"],
  ["data", "Goal data"],
];

const DATES = [["created_after", "Created from"], ["created_before", "Created before"]];

/** A time as inputs take it: in the browser's zone, without seconds. */
function local(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? "" : new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

const ATTRIBUTE = /^[A-Za-z_][\w.-]*=/;

/** The filters beside status and text. `set(change)` is called on input, `clear()` to remove all, `arrange(text)` with the columns. */
export function filterPanel(filter, { set, clear, columns, arrange }) {
  const made = h("form", { class: "filters", id: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() });
  for (const [name, label] of FIELDS) {
    const placeholder = { attribute: "name=value", data: "words" }[name];
    const input = h("input", { type: "text", id: `filter-${name}`, value: filter[name], autocomplete: "off", spellcheck: "false", placeholder });
    input.addEventListener("change", () => {
      const value = input.value.trim();
      if (name !== "attribute" || !value || ATTRIBUTE.test(value)) set({ [name]: value });
    });
    made.append(h("div", { class: "field" }, h("label", { for: input.id }, label), input));
  }
  for (const [name, label] of DATES) {
    const input = h("input", { type: "datetime-local", id: `filter-${name}`, value: local(filter[name]) });
    input.addEventListener("change", () => set({ [name]: input.value ? new Date(input.value).toISOString() : "" }));
    made.append(h("div", { class: "field" }, h("label", { for: input.id }, label), input));
  }
  const own = h("input", { type: "text", id: "own-columns", value: columns, autocomplete: "off", spellcheck: "false", placeholder: "attributes, up to 4", onchange: () => arrange(own.value) });
  made.append(h("div", { class: "field" }, h("label", { for: own.id }, "Columns"), own));
  made.append(h("button", { class: "button quiet", type: "button", onclick: clear }, "Clear"));
  made.addEventListener("keydown", (event) => event.key === "Enter" && event.target.dispatchEvent(new Event("change")));
  made.hidden = ![...FIELDS, ...DATES].some(([name]) => filter[name]);
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
