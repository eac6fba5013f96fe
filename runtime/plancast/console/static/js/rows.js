// A plan's row in the list.

import { FINISHED, badge } from "./badges.js";
import { h, put } from "./dom.js";
import { elapsed, number, setWhen, when } from "./format.js";
import * as router from "./router.js";

const COLUMNS = [
  ["status", "Status"],
  ["goal", "Goal"],
  ["plan", "Plan"],
  ["state", "State"],
  ["tenant", "Tenant"],
  ["session", "Session"],
  ["user", "User"],
  ["outcome", "Waits for, or result"],
  ["turns num", "Turns"],
  ["took num", "Duration"],
  ["created", "Created"],
  ["updated", "Updated"],
];

const END = 6;

/** Columns that the server can sort by, with their labels. */
export const SORTS = new Map([["updated", "Updated"], ["created", "Created"], ["goal", "Goal"], ["tenant", "Tenant"], ["session", "Session"], ["turns", "Turns"]]);

/** `own`: names of search attributes that have columns of their own; else one column has all of them. `sorted(name)` is called with a column to sort by. */
export function head(own, { sort, order }, sorted) {
  const attributes = own.length ? own.map((name) => ["attribute", name]) : [["attributes", "Attributes"]];
  const columns = [...COLUMNS.slice(0, 7), ...attributes, ...COLUMNS.slice(7)];
  const cells = columns.map(([kind, label]) => {
    const [name] = kind.split(" ");
    const now = name === sort && (order === "desc" ? "descending" : "ascending");
    const text = SORTS.has(name) ? h("button", { class: "sort-by", type: "button", onclick: () => sorted(name) }, label, now && h("span", { "aria-hidden": "true" }, order === "desc" ? " ↓" : " ↑")) : label;
    return h("th", { scope: "col", role: "columnheader", class: `c-${kind}`, "aria-sort": now }, text);
  });
  return h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, cells));
}

/** A row that opens its plan. */
export function rowOf(plan, own) {
  const made = h(
    "tr",
    { role: "row", dataset: { item: "", key: plan.plan_id }, onclick: openRow },
    h("td", { role: "cell", class: "c-status" }),
    h("td", { role: "cell", class: "c-goal" }),
    h("td", { role: "cell", class: "c-plan" }, h("a", { href: router.planLink(plan.plan_id), title: plan.plan_id }, shortened(plan.plan_id))),
    h("td", { role: "cell", class: "c-state" }),
    ...["tenant", "session", "user"].map((name) => h("td", { role: "cell", class: `c-${name}` })),
    own.length
      ? own.map((name) => h("td", { role: "cell", class: "c-attribute", dataset: { attribute: name } }))
      : h("td", { role: "cell", class: "c-attributes" }),
    h("td", { role: "cell", class: "c-outcome" }),
    h("td", { role: "cell", class: "c-turns num" }),
    h("td", { role: "cell", class: "c-took num" }),
    h("td", { role: "cell", class: "c-created" }, when(plan.created_at)),
    h("td", { role: "cell", class: "c-updated" }, when(plan.updated_at)),
  );
  write(made, plan, null);
  return made;
}

/** An id that is cut in its middle where there is no room: ids of children differ in their ends. */
const shortened = (id) => [h("span", { class: "id-head" }, id.slice(0, -END)), h("span", { class: "id-end" }, id.slice(-END))];

/** Updates the cells that differ. */
export function write(element, plan, before) {
  const cell = (name) => element.querySelector(`.c-${name}`);
  if (plan.status !== before?.status) put(cell("status"), badge(plan.status));
  const { outcome = "", step = "", waiting_for: waits = [] } = plan.details ?? before?.details ?? {};
  const texts = { goal: plan.goal_event, state: step || plan.current_state, tenant: plan.tenant_id, session: plan.session_id, user: plan.user_id, turns: number(plan.revision) };
  const values = plan.attributes ?? {};
  for (const [name, text] of Object.entries(texts)) say(cell(name), text ?? "");
  for (const place of element.querySelectorAll(".c-attribute")) say(place, String(values[place.dataset.attribute] ?? ""));
  const all = cell("attributes");
  if (all) say(all, Object.entries(values).map(([name, value]) => `${name}=${value}`).join(", "));
  say(cell("outcome"), outcome || waits.join(", "));
  cell("outcome").classList.toggle("bad", plan.status === "failed");
  elapsed(cell("took"), plan.created_at, FINISHED.has(plan.status) ? plan.updated_at : null);
  cell("turns").title = `${number(plan.revision)} turns`;
  setWhen(cell("updated"), plan.updated_at);
}

function say(place, text) {
  if (place.textContent === text) return;
  place.textContent = text;
  place.title = text;
}

/** A click on a row follows its link, unless text is being selected. */
function openRow(event) {
  if (event.target.closest("a") || event.button !== 0 || String(getSelection())) return;
  event.currentTarget.querySelector("a").click();
}

/** Highlights a changed row briefly. */
export function flash(element) {
  element.classList.remove("moved");
  requestAnimationFrame(() => element.classList.add("moved"));
}
