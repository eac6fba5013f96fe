// The work list of approvals: what plans wait for people to decide, newest first.

import * as actions from "./actions.js";
import * as api from "./api.js";
import { h, put, reconcile } from "./dom.js";
import { effectCard } from "./effects.js";
import { deadline, exact, number, plural, when } from "./format.js";
import { icon } from "./icons.js";
import { onKey } from "./keys.js";
import { poll, soon } from "./live.js";
import { payload } from "./plan_parts.js";
import * as router from "./router.js";
import { session } from "./session.js";
import { empty, failed, loading, stale } from "./states.js";

const EVERY = 3;
const MOST = 100;
const TYPING = 250;
const FILTERS = ["text", "goal", "tenant_id", "session_id", "assignee"];
const AMOUNT = /^(amount|total|price|cost|sum|value)$/i;
const DECIMAL = /^-?\d+(\.\d+)?$/;

export function showApprovals({ main, query, signal }) {
  const filter = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  const chosen = new Set();
  const shown = new Map();
  let users = [];
  const list = h("ul", { class: "cards" });
  const notice = h("div", {});
  const place = h("div", {}, loading(4));
  const count = h("span", { class: "dim" });
  const open = h("ul", { class: "cards" });
  const outside = h("section", { class: "open-effects", "aria-label": "Effects to decide about", hidden: true }, h("h2", {}, "Effects to decide about"), h("p", { class: "page-text" }, "It is not known whether these were done, or their undo has failed: look it up, and say what you have found."), open);
  const bulk = h("div", { class: "bulk", role: "toolbar", "aria-label": "Answer the selected plans", hidden: true });
  const search = h("input", { type: "search", class: "search-input", placeholder: "What is asked, goal, data, plan …", "aria-label": "Search approvals", autocapitalize: "none", spellcheck: "false", value: filter.text });
  const mine = h("select", { "aria-label": "Assigned to", onchange: () => set({ assignee: mine.value }) },
    [["", "Assigned to anybody"], ["@me", "Assigned to me"], ["-", "Assigned to nobody"]].map(([value, label]) => h("option", { value }, label)));
  mine.value = ["", "@me", "-"].includes(filter.assignee) ? filter.assignee : "";
  const narrow = ["goal", "tenant_id"].map((name) => {
    const label = { goal: "Goal", tenant_id: "Tenant" }[name];
    return h("input", { type: "text", class: "narrow", placeholder: label, "aria-label": label, value: filter[name], spellcheck: "false", onchange: (event) => set({ [name]: event.target.value.trim() }) });
  });
  main.append(
    h("header", { class: "page-head" }, h("h1", {}, "Approvals"), count),
    h("div", { class: "bar" }, h("label", { class: "search" }, icon("search"), search, h("kbd", { class: "wide-only" }, "/")), mine, narrow),
    bulk,
    notice,
    outside,
    place,
  );

  const again = poll(EVERY, () => Promise.all([api.get("approvals", { query: { ...filter, limit: MOST }, signal }), openEffects()]), {
    signal,
    shown: ([{ items, next, total, searched, waiting, users: known }, effects]) => {
      outside.hidden = !effects.length;
      reconcile(open, effects, ({ task }) => task, effectCard);
      users = known;
      const unread = searched !== null && searched < waiting;
      put(notice,
        next && h("p", { class: "stale" }, `These are the newest ${items.length}. Older ones appear as these are answered.`),
        unread && h("p", { class: "stale" }, `Searched the newest ${number(searched)} of ${plural(waiting, "approval")}.`));
      count.textContent = total ? `${plural(total, "plan")} ${total === 1 ? "waits" : "wait"} for a person` : "";
      shown.clear();
      for (const item of items) shown.set(item.plan.plan_id, item);
      for (const id of chosen) if (!shown.has(id)) chosen.delete(id);
      drawBulk();
      if (!items.length && effects.length) return put(place);
      if (!items.length) return put(place, FILTERS.some((name) => filter[name])
        ? empty("No matching approvals", "No plan that waits for a person matches these filters.")
        : empty("No approvals pending", "Plans that need an approval appear here automatically."));
      if (!list.isConnected) put(place, list);
      const focused = document.activeElement?.closest?.(".card");
      const index = focused ? [...list.children].indexOf(focused) : -1;
      reconcile(list, items, ({ plan }) => plan.plan_id, (item) => card(item, { chosen, choose, users: () => users }));
      if (index >= 0 && !focused.isConnected) list.children[Math.min(index, list.children.length - 1)]?.focus();
      return undefined;
    },
    failed: (error) => (list.isConnected ? put(notice, stale(error)) : put(place, failed(error, () => again()))),
  });
  const refresh = soon(250, () => again(), signal);
  addEventListener("plancast:wrote", refresh, { signal });

  /** Those of the filter; nobody is assigned to them. */
  async function openEffects() {
    const { assignee, ...query } = filter;
    return assignee && assignee !== "-" ? [] : (await api.get("effects", { query: { ...query, limit: MOST }, signal })).items;
  }

  function set(change) {
    Object.assign(filter, change);
    router.note(router.link(["approvals"], filter));
    chosen.clear();
    refresh();
  }

  function choose(id, yes) {
    if (yes) chosen.add(id);
    else chosen.delete(id);
    const box = list.querySelector(`[data-key="${CSS.escape(id)}"] .choose`);
    if (box) box.checked = yes;
    drawBulk();
  }

  function drawBulk() {
    const items = selected();
    bulk.hidden = !chosen.size;
    const refusable = items.every((each) => each.can_refuse);
    put(
      bulk,
      h("strong", {}, `${number(chosen.size)} selected`),
      h("button", { class: "button primary", type: "button", onclick: () => actions.approve(...items) }, "Approve"),
      refusable && h("button", { class: "button danger-quiet", type: "button", onclick: () => actions.reject(...items) }, "Reject"),
      h("button", { class: "button", type: "button", onclick: () => actions.assignTo(items, users) }, "Assign"),
      h("button", { class: "button quiet", type: "button", onclick: () => [...shown.keys()].forEach((id) => choose(id, true)) }, "Select all"),
      h("button", { class: "button quiet", type: "button", onclick: () => [...chosen].forEach((id) => choose(id, false)) }, "Clear"),
    );
  }

  const selected = () => [...chosen].map((id) => flat(shown.get(id)));

  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ text: search.value.trim() }), TYPING);
  });
  signal.addEventListener("abort", () => clearTimeout(typing));

  /** The selected approvals, else the one that has the focus. */
  const meant = () => {
    if (chosen.size) return selected();
    const item = document.activeElement?.closest?.(".card")?.item;
    return item ? [flat(item)] : [];
  };
  const on = (key, what, act) => onKey(key, what, () => session.writable && meant().length && act(meant()), { signal });
  on("y", "Approve the selected plans", (items) => actions.approve(...items));
  on("x", "Reject the selected plans", (items) => items.every((each) => each.can_refuse) && actions.reject(...items));
  on("m", "Assign to me", (items) => actions.assign(items, session.user));
  onKey("s", "Select the plan", () => {
    const item = document.activeElement?.closest?.(".card")?.item;
    if (item && session.writable) choose(item.plan.plan_id, !chosen.has(item.plan.plan_id));
  }, { signal });
  onKey("/", "Search", () => (search.focus(), search.select()), { signal });
  onKey("Enter", "Open the selected plan", () => document.activeElement?.matches?.(".card") && document.activeElement.querySelector("a").click(), { signal, group: "Lists" });
}

const flat = ({ plan, ...asked }) => ({ ...asked, plan_id: plan.plan_id });

function card(item, { chosen, choose, users }) {
  const { plan, reason, since, timeout_at: due, assignee, only_user: only } = item;
  const act = (name) => () => actions[name](flat(item));
  const sum = amount(item);
  const made = h(
    "li",
    { class: "card", tabindex: "0", "aria-label": `${plan.goal_event}: ${reason || "waits for approval"}`, dataset: { item: "" } },
    h(
      "header",
      { class: "card-head" },
      h(
        "h2",
        {},
        session.writable && h("input", { type: "checkbox", class: "choose", tabindex: "-1", "aria-label": `Select ${plan.plan_id}`, checked: chosen.has(plan.plan_id), onchange: (event) => choose(plan.plan_id, event.target.checked) }),
        h("a", { href: router.planLink(plan.plan_id) }, plan.goal_event),
        sum !== null && h("span", { class: "card-amount" }, sum),
      ),
      h("span", { class: "dim" }, since && when(since, { words: "requested " }), due && deadline(due)),
    ),
    h("p", { class: "card-why" }, reason || "The plan continues when it is approved."),
    item.description && item.description !== reason && h("p", { class: "dim" }, item.description),
    payload(item.payload, reason),
    Object.keys(item.goal_data).length > 0 && h("details", { class: "card-data", open: !hasFields(item.payload) }, h("summary", {}, "Goal data"), payload(item.goal_data, reason)),
    h(
      "p",
      { class: "dim card-of" },
      h("span", { class: "mono" }, plan.plan_id),
      plan.tenant_id && ` · tenant ${plan.tenant_id}`,
      plan.session_id && ` · session ${plan.session_id}`,
      plan.user_id && ` · for ${plan.user_id}`,
      item.expected_event && [" · waits for ", h("code", {}, item.expected_event)],
      only && [" · only ", h("strong", {}, only), " may answer"],
      assignee && [" · assigned to ", h("strong", { class: "assignee" }, assignee)],
    ),
    session.writable &&
      h(
        "div",
        { class: "row" },
        h("button", { class: "button primary", type: "button", onclick: act("approve") }, "Approve"),
        item.can_refuse && h("button", { class: "button danger-quiet", type: "button", onclick: act("reject") }, "Reject"),
        h("button", { class: "button quiet", type: "button", onclick: () => actions.assignTo([flat(item)], users()) }, "Assign"),
        h("span", { class: "as" }, "as ", h("strong", {}, session.user)),
      ),
  );
  made.item = item;
  return made;
}

const hasFields = (value) => value !== null && typeof value === "object" && Object.keys(value).length > 1;

/** The amount at stake, where the data name one; with its currency. */
function amount({ payload: asked, goal_data: goal }) {
  for (const data of [asked, goal]) {
    if (data === null || typeof data !== "object") continue;
    const [, value] = Object.entries(data).find(([name, each]) => AMOUNT.test(name) && (typeof each === "number" || DECIMAL.test(each))) ?? [];
    if (value !== undefined) return `${exact(value)}${typeof data.currency === "string" ? ` ${data.currency}` : ""}`;
  }
  return null;
}
