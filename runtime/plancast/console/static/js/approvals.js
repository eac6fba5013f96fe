// Plans that wait for an approval, newest first.

import * as actions from "./actions.js";
import * as api from "./api.js";
import { h, put, reconcile } from "./dom.js";
import { plural, when } from "./format.js";
import { onKey } from "./keys.js";
import { poll, soon } from "./live.js";
import { payload } from "./plan_parts.js";
import * as router from "./router.js";
import { session } from "./session.js";
import { empty, failed, loading, stale } from "./states.js";

const EVERY = 3;
const MOST = 100;

export function showApprovals({ main, query, signal }) {
  const list = h("ul", { class: "cards" });
  const notice = h("div", {});
  const place = h("div", {}, loading(4));
  const count = h("span", { class: "dim" });
  const tenant = query.get("tenant_id") ?? "";
  main.append(h("header", { class: "page-head" }, h("h1", {}, "Approvals"), count), notice, place);

  const again = poll(EVERY, () => api.get("approvals", { query: { tenant_id: tenant, limit: MOST }, signal }), {
    signal,
    shown: ({ items, next }) => {
      put(notice, next && h("p", { class: "stale" }, `These are the newest ${items.length}. Older ones appear as these are answered.`));
      const n = items.length;
      count.textContent = n ? `${plural(n, "plan")}${next ? " or more" : ""} ${n === 1 ? "waits" : "wait"} for a person` : "";
      if (!items.length) return put(place, empty("No approvals pending", "Plans that need an approval appear here automatically."));
      if (!list.isConnected) put(place, list);
      const focused = document.activeElement?.closest?.(".card");
      const index = focused ? [...list.children].indexOf(focused) : -1;
      reconcile(list, items, ({ plan }) => plan.plan_id, card);
      if (index >= 0 && !focused.isConnected) list.children[Math.min(index, list.children.length - 1)]?.focus();
      return undefined;
    },
    failed: (error) => (list.isConnected ? put(notice, stale(error)) : put(place, failed(error, () => again()))),
  });
  addEventListener("plancast:wrote", soon(250, () => again(), signal), { signal });

  const chosen = (name) => () => {
    const item = document.activeElement?.closest?.(".card")?.item;
    if (item && session.writable) answer(name, item);
  };
  onKey("y", "Approve the selected plan", chosen("approve"), { signal });
  onKey("x", "Reject the selected plan", chosen("reject"), { signal });
  onKey("Enter", "Open the selected plan", () => document.activeElement?.matches?.(".card") && document.activeElement.querySelector("a").click(), { signal, group: "Lists" });
}

const answer = (name, { plan, ...asked }) => actions[name]({ plan_id: plan.plan_id, ...asked });

function card(item) {
  const { plan, reason, since } = item;
  const made = h(
    "li",
    { class: "card", tabindex: "0", "aria-label": `${plan.goal_event}: ${reason || "waits for approval"}`, dataset: { item: "" } },
    h(
      "header",
      { class: "card-head" },
      h("h2", {}, h("a", { href: router.planLink(plan.plan_id) }, plan.goal_event)),
      h("span", { class: "dim" }, since && when(since, { words: "requested " })),
    ),
    h("p", { class: "card-why" }, reason || "The plan continues when it is approved."),
    payload(item.payload, reason),
    h(
      "p",
      { class: "dim card-of" },
      h("span", { class: "mono" }, plan.plan_id),
      plan.tenant_id && ` · tenant ${plan.tenant_id}`,
      plan.session_id && ` · session ${plan.session_id}`,
      item.expected_event && [" · waits for ", h("code", {}, item.expected_event)],
    ),
    session.writable &&
      h(
        "div",
        { class: "row" },
        h("button", { class: "button primary", type: "button", onclick: () => answer("approve", item) }, "Approve"),
        item.can_refuse && h("button", { class: "button danger-quiet", type: "button", onclick: () => answer("reject", item) }, "Reject"),
        h("span", { class: "as" }, "as ", h("strong", {}, session.user)),
      ),
  );
  made.item = item;
  return made;
}
