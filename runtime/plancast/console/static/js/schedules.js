// Schedules: when they fire next, what they have started, and pause, resume, trigger, delete.

import * as api from "./api.js";
import { ask } from "./dialog.js";
import { h, put, reconcile } from "./dom.js";
import { plural, when } from "./format.js";
import { poll, soon } from "./live.js";
import * as router from "./router.js";
import { session } from "./session.js";
import { empty, failed, loading, stale } from "./states.js";
import { toast } from "./toast.js";

const EVERY = 5;
const PAGE = 50;
const AS_STATUS = { due: "pending", queued: "pending", started: "running", skipped: "cancelled", missed: "failed" };

export function showSchedules({ main, signal }) {
  const list = h("ul", { class: "cards schedules" });
  const notice = h("div", {});
  const place = h("div", {}, loading(4));
  const count = h("span", { class: "dim" });
  const more = h("button", { class: "button", type: "button", hidden: true }, "Show more");
  let pages = 1;
  main.append(h("header", { class: "page-head" }, h("h1", {}, "Schedules"), count), h("p", { class: "page-text" }, "Goals that are submitted at times."), notice, place, more);

  const read = async () => {
    const items = [];
    let answer = {};
    for (let page = 0; page < pages && answer.next !== null; page += 1) {
      answer = await api.get("schedules", { query: { limit: PAGE, cursor: answer.next }, signal });
      items.push(...answer.items);
    }
    return { ...answer, items };
  };
  const again = poll(EVERY, read, {
    signal,
    shown: ({ items, next, total }) => {
      put(notice);
      more.hidden = !next;
      count.textContent = total ? plural(total, "schedule") : "";
      if (!items.length) return put(place, empty("No schedules", "Create one with plancast schedules create, or with the API."));
      if (!list.isConnected) put(place, list);
      reconcile(list, items, ({ tenant_id: tenant, name }) => `${tenant}/${name}`, card);
      return undefined;
    },
    failed: (error) => (list.isConnected ? put(notice, stale(error)) : put(place, failed(error, () => again()))),
  });
  more.addEventListener("click", () => {
    pages += 1;
    again();
  });
  addEventListener("plancast:wrote", soon(250, () => again(), signal), { signal });
}

const path = ({ name, tenant_id: tenant }, action = "") => `schedules/${encodeURIComponent(name)}${action && `/${action}`}${tenant && `?tenant_id=${encodeURIComponent(tenant)}`}`;

function card(schedule) {
  const runs = h("div", {});
  const { name, event_type: goal, times, overlap, paused, next_at: next, last_at: last, last_plan_id: plan, waiting, tenant_id: tenant } = schedule;
  return h(
    "li",
    { class: "card", dataset: { item: "" } },
    h("header", { class: "card-head" }, h("h2", {}, name), paused ? h("span", { class: "badge is-paused" }, h("span", { class: "dot", "aria-hidden": "true" }), "paused") : next ? h("span", { class: "dim" }, when(next, { words: "next " })) : h("span", { class: "dim" }, "fires no more")),
    h("p", { class: "card-why" }, `${goal}, ${times}`),
    h("p", { class: "dim card-of" }, `overlap ${overlap}`, tenant && ` · tenant ${tenant}`, waiting > 0 && ` · ${plural(waiting, "firing")} queued`, last && " · last ", last && h("a", { href: router.planLink(plan) }, when(last))),
    h(
      "div",
      { class: "row" },
      h("button", { class: "button", type: "button", onclick: () => showRuns(schedule, runs) }, "Last runs"),
      session.writable && h("button", { class: "button", type: "button", onclick: () => act(schedule, paused ? "resume" : "pause", paused ? "is resumed" : "is paused") }, paused ? "Resume" : "Pause"),
      session.writable && h("button", { class: "button", type: "button", onclick: () => trigger(schedule) }, "Trigger"),
      session.writable && h("button", { class: "button danger-quiet", type: "button", onclick: () => remove(schedule) }, "Delete"),
    ),
    runs,
  );
}

async function showRuns(schedule, place) {
  try {
    const { items } = await api.get(path(schedule, "runs"));
    if (!items.length) return put(place, h("p", { class: "dim" }, "It has not fired."));
    return put(place, h("ul", { class: "effect-list" }, items.map(run)));
  } catch (error) {
    return toast(error.message, { bad: true });
  }
}

function run({ time, kind, state, plan_id: plan, status }) {
  const shown = status || state;
  return h(
    "li",
    { dataset: { item: "" } },
    h("div", { class: "effect-head" }, h("span", { class: `badge is-${status || AS_STATUS[state]}` }, h("span", { class: "dot", "aria-hidden": "true" }), shown), when(time), kind !== "time" && h("span", { class: "dim" }, kind), plan && status && h("a", { class: "mono", href: router.planLink(plan) }, plan)),
  );
}

async function act(schedule, action, done) {
  try {
    await api.post(path(schedule, action), {});
    toast(`Schedule ${schedule.name} ${done}.`);
  } catch (error) {
    toast(error.message, { bad: true });
  }
  dispatchEvent(new Event("plancast:wrote"));
}

const trigger = (schedule) =>
  ask({
    title: "Trigger a schedule",
    text: `Starts a plan of ${schedule.name} now, whatever runs.`,
    label: "Trigger",
    act: async (values, key) => {
      const { plan_id: plan } = await api.post(path(schedule, "trigger"), {}, { key });
      toast(`Plan ${plan} was started.`);
      dispatchEvent(new Event("plancast:wrote"));
    },
  });

const remove = (schedule) =>
  ask({
    title: "Delete a schedule",
    text: `${schedule.name} fires no more. Its plans go on.`,
    label: "Delete",
    danger: true,
    act: async () => {
      await api.remove(path(schedule));
      toast(`Schedule ${schedule.name} is deleted.`);
      dispatchEvent(new Event("plancast:wrote"));
    },
  });
