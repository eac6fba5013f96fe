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

/** A button for each status, into `place`. They stay the same elements, so that no click is lost while counts change. */
export function drawChips(place, chosen, counts, set) {
  const known = Object.keys(counts).length > 0;
  const sum = Object.values(counts).reduce((all, n) => all + n, 0);
  if (!place.hasChildNodes()) put(place, ["", ...STATUSES].map((each) => chip(each, set)));
  for (const each of place.children) {
    const n = each.value ? (counts[each.value] ?? 0) : sum;
    const count = each.querySelector(".chip-count");
    each.setAttribute("aria-pressed", String(each.value === chosen));
    Object.assign(count, { textContent: compact(n), title: number(n), hidden: !known });
  }
}

function chip(value, set) {
  const press = ({ currentTarget: made }) => {
    for (const each of made.parentElement.children) each.setAttribute("aria-pressed", String(each === made));
    set({ status: value });
  };
  return h(
    "button",
    { class: `chip${value ? ` is-${value}` : ""}`, type: "button", value, onclick: press },
    value && h("span", { class: "dot", "aria-hidden": "true" }),
    value || "All",
    h("span", { class: "chip-count" }),
  );
}
