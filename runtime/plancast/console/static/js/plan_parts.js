// Parts of a plan's page: heading, actions, open requests, facts and data.

import { FINISHED, badge } from "./badges.js";
import { h } from "./dom.js";
import { bytes, compact, cost, deadline, duration, number, plural, pretty, when } from "./format.js";
import { icon } from "./icons.js";
import * as router from "./router.js";
import { session } from "./session.js";
import { toast } from "./toast.js";

/** The last turn from which a plan can be forked: a finished plan has nothing left to do after its last. */
export const latestFork = ({ status, revision }) => (FINISHED.has(status) ? revision - 1 : revision);

/** Names of the actions that are possible now. */
export function possible(plan) {
  const again = latestFork(plan) > 0 ? ["fork", "replay"] : ["replay"];
  if (FINISHED.has(plan.status)) return plan.status === "completed" ? again : ["retry", ...again];
  const steps = plan.approval ? ["approve", ...(plan.approval.can_refuse ? ["reject"] : [])] : [];
  return [...steps, "signal", plan.status === "paused" ? "resume" : "pause", "cancel", ...(plan.machine ? [] : ["redirect", "inject"]), ...again];
}

const BUTTONS = {
  signal: ["Signal", "signal"],
  pause: ["Pause", "pause"],
  resume: ["Resume", "resume"],
  cancel: ["Cancel", "cancel"],
  retry: ["Try again", "retry"],
  redirect: ["Redirect", "redirect"],
  inject: ["Add context", "add"],
  fork: ["Fork", "fork"],
  replay: ["Replay", "rerun"],
};

/** `press(name)` is called with the name of an action. */
export function heading(plan, press) {
  const names = session.writable ? possible(plan).filter((name) => BUTTONS[name]) : [];
  return h(
    "header",
    { class: "plan-head" },
    h(
      "p",
      { class: "crumbs" },
      h("a", { href: router.listLink() }, "Plans"),
      plan.parent_plan_id && [" / ", h("a", { href: router.planLink(plan.parent_plan_id), class: "mono" }, plan.parent_plan_id)],
    ),
    h(
      "div",
      { class: "plan-name" },
      h("div", { class: "plan-title" }, h("h1", {}, plan.goal_event), badge(plan.approval && !FINISHED.has(plan.status) ? "waiting" : plan.status)),
      h("p", { class: "plan-id" }, h("span", { class: "mono" }, plan.plan_id), copy(plan.plan_id)),
    ),
    names.length > 0 &&
      h(
        "div",
        { class: "actions", role: "group", "aria-label": "Actions" },
        names.map((name) => h("button", { class: `button${name === "cancel" ? " danger-quiet" : ""}`, type: "button", onclick: () => press(name) }, icon(BUTTONS[name][1], 14), BUTTONS[name][0])),
      ),
  );
}

function copy(text) {
  const act = async () => {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.");
    } catch {
      toast("The browser does not allow this page to copy.", { bad: true });
    }
  };
  return h("button", { class: "tool", type: "button", title: "Copy the plan id", "aria-label": "Copy the plan id", onclick: act }, icon("copy", 14));
}

export function bannersOf(plan, press) {
  const made = [];
  if (plan.approval && !FINISHED.has(plan.status)) {
    made.push(
      h(
        "section",
        { class: "banner ask", "aria-label": "Waits for approval" },
        h("h2", {}, "Waits for approval"),
        h("p", {}, plan.approval.reason || "The plan continues when it is approved.", " ", plan.approval.since && h("span", { class: "dim" }, when(plan.approval.since, { words: "requested " }), plan.approval.timeout_at && deadline(plan.approval.timeout_at))),
        plan.approval.description && plan.approval.description !== plan.approval.reason && h("p", { class: "dim" }, plan.approval.description),
        payload(plan.approval.payload, plan.approval.reason),
        session.writable
          ? h(
              "div",
              { class: "row" },
              h("button", { class: "button primary", type: "button", onclick: () => press("approve") }, "Approve"),
              plan.approval.can_refuse && h("button", { class: "button danger-quiet", type: "button", onclick: () => press("reject") }, "Reject"),
              h("span", { class: "as" }, "as ", h("strong", {}, session.user)),
            )
          : h("p", { class: "dim" }, "Your token allows reading only."),
      ),
    );
  } else if (plan.status === "paused") {
    made.push(h("section", { class: "banner" }, h("h2", {}, "Paused"), h("p", {}, plan.pause_reason || "No reason was given.")));
  }
  if (plan.status === "completed" && plan.result !== null && plan.result !== undefined)
    made.push(h("section", { class: "banner good", "aria-label": "Result" }, h("h2", {}, "Result"), h("pre", { class: "code" }, pretty(plan.result))));
  if (plan.error) made.push(h("section", { class: "banner bad" }, h("h2", {}, plan.status === "cancelled" ? "Cancelled" : "Failed"), h("p", { class: "said" }, plan.error)));
  if (plan.waiting_for.length && !plan.approval && !FINISHED.has(plan.status)) made.push(waits(plan.waiting_for));
  return made;
}

/** The payload of an approval, as pairs where it is flat, else as JSON. */
export function payload(value, reason) {
  if (value === null || value === undefined) return null;
  const flat = typeof value === "object" && !Array.isArray(value) && Object.values(value).every((each) => each === null || typeof each !== "object");
  if (!flat) return h("pre", { class: "code" }, pretty(value));
  const pairs = Object.entries(value).filter(([, each]) => each !== reason);
  return pairs.length > 0 && h("dl", { class: "pairs payload" }, pairs.map(([name, each]) => h("div", {}, h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, String(each)))));
}

const SHOWN = 5; // of what a plan waits for
const KINDS = { event: "an event", approval: "a person", task: "a worker", child: "a child plan", model: "its model" };

function waits(list) {
  const rest = list.slice(SHOWN);
  return h(
    "section",
    { class: "banner wait", "aria-label": "Waits for" },
    h("h2", {}, "Waits for"),
    h("ul", {}, list.slice(0, SHOWN).map(waitOf)),
    rest.length > 0 && h("details", {}, h("summary", {}, `and ${number(rest.length)} more`), h("ul", {}, rest.map(waitOf))),
  );
}

const waitOf = (each) =>
  h(
    "li",
    {},
    KINDS[each.kind] ?? each.kind,
    each.event_type && [": ", h("code", {}, each.event_type)],
    each.plan_id && [" ", h("a", { href: router.planLink(each.plan_id), class: "mono" }, each.plan_id)],
    each.attempt > 1 && ` · try ${each.attempt}`,
    each.since && [" · ", when(each.since, { words: "requested " })],
    each.timeout_at && [" · ", when(each.timeout_at, { words: "times out " })],
  );

export function factsOf(plan) {
  const { usage } = plan;
  const took = (Date.parse(plan.updated_at) - Date.parse(plan.created_at)) / 1000;
  const by = (usage.by_model ?? []).map((each) => `${each.model}: ${number(each.tokens)} tokens${each.cached_tokens ? ` (${number(each.cached_tokens)} cached)` : ""}, ${cost(each.cost)}`).join("\n");
  const list = (name, value) => value && [name, h("a", { href: router.link(["plans"], { [`${name.toLowerCase()}_id`]: value }), title: `Plans of this ${name.toLowerCase()}` }, value)];
  const rows = [
    plan.step ? ["Step", plan.step] : ["State", plan.current_state],
    ["Turns", number(plan.revision)],
    ["Created", when(plan.created_at)],
    ["Updated", when(plan.updated_at)],
    FINISHED.has(plan.status) && ["Took", duration(took)],
    plan.planner && ["Planner", plan.planner],
    plan.decider && plan.decider !== plan.planner && ["Decided by", plan.decider],
    list("Tenant", plan.tenant_id),
    list("Session", plan.session_id),
    plan.user_id && ["User", plan.user_id],
    ...Object.entries(plan.attributes ?? {}).map(([name, value]) => [name, h("a", { href: router.link(["plans"], { attribute: `${name}=${value}` }), title: "Plans with this attribute" }, String(value))]),
    plan.size && ["Size", h("span", { title: `${bytes(plan.size.inline)} in the checkpoint, ${bytes(plan.size.history)} of history, ${bytes(plan.size.referenced)} of values` }, bytes(plan.size.inline + plan.size.history + plan.size.referenced))],
    usage.decisions > 0 && ["Decisions", number(usage.decisions)],
    usage.tokens > 0 && ["Tokens", h("span", { title: by }, compact(usage.tokens))],
    usage.tokens > 0 && ["Cost", h("span", { title: by }, cost(usage.cost))],
  ].filter(Boolean);
  return h("dl", { class: "facts" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function dataOf(plan) {
  const part = (title, value, open) => h("details", { open }, h("summary", {}, title), h("pre", { class: "code" }, pretty(value)));
  const results = Object.keys(plan.results ?? {}).length;
  return [
    part("Goal", plan.goal.data, true),
    results > 0 && part(`Results of ${plural(results, "step")}`, plan.results, true),
    plan.result !== null && plan.result !== undefined && part("Result", plan.result, true),
  ];
}
