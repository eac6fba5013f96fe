// Effects of tasks: what was done outside, with forms for those that a person has to decide about.

import * as actions from "./actions.js";
import * as api from "./api.js";
import { h } from "./dom.js";
import { number, plural, pretty, when } from "./format.js";
import { icon } from "./icons.js";
import * as router from "./router.js";
import { session } from "./session.js";
import { empty } from "./states.js";

const AS_STATUS = { pending: "running", done: "completed", failed: "failed", unknown: "waiting", undone: "cancelled" };

const DECIDED = { done: "Somebody has said that it was done", not_done: "Somebody has said that it was not done", give_up: "Somebody has given it up" };

/** Those of a list that a person has to decide about, or has decided about just now. */
export const openOf = (effects) => effects.filter(({ undecided, decision }) => undecided || decision);

/** True if a rollback has something to undo. */
export const undoable = (effects) => effects.some(({ outcome, undo: can }) => outcome === "done" && can);

const undoFailed = ({ outcome, undecided }) => outcome === "done" && undecided;

function outcomeBadge(effect) {
  const status = undoFailed(effect) ? "failed" : (AS_STATUS[effect.outcome] ?? "pending");
  return h("span", { class: `badge is-${status}` }, h("span", { class: "dot", "aria-hidden": "true" }), undoFailed(effect) ? "undo failed" : effect.outcome);
}

/** The three answers of a person to an unknown effect, or to an undo that has failed. */
function answers(effect) {
  if (effect.decision) return h("p", { class: "dim" }, `${DECIDED[effect.decision] ?? effect.decision}; its worker has still to confirm it.`);
  if (!session.writable) return h("p", { class: "dim" }, "Your token allows reading only.");
  const labels = actions.resolutionsOf(effect);
  const button = (how, kind = "") => h("button", { class: `button${kind}`, type: "button", onclick: () => actions.resolve(effect, how) }, labels[how].title);
  return h("div", { class: "row" }, button("done", " primary"), button("not_done"), button("give_up", " danger-quiet"), h("span", { class: "as" }, "as ", h("strong", {}, session.user)));
}

/** An effect of the work list, with its plan. */
export function effectCard({ plan, ...effect }) {
  return h(
    "li",
    { class: "card effect", tabindex: "0", "aria-label": `${effect.event_type}: ${undoFailed(effect) ? "undo failed" : "outcome unknown"}`, dataset: { item: "" } },
    h(
      "header",
      { class: "card-head" },
      h("h2", {}, h("a", { href: router.planLink(plan.plan_id, { tab: "effects" }) }, effect.event_type)),
      outcomeBadge(effect),
    ),
    h("p", { class: "card-why" }, effect.reason || "It is not known whether this was done."),
    h(
      "p",
      { class: "dim card-of" },
      h("span", { class: "mono" }, effect.key),
      ` · of ${plan.goal_event} `,
      h("span", { class: "mono" }, plan.plan_id),
      plan.tenant_id && ` · tenant ${plan.tenant_id}`,
      plan.session_id && ` · session ${plan.session_id}`,
      " · ",
      when(plan.updated_at),
    ),
    answers(effect),
  );
}

/** The banner of a plan's page: each effect that a person has to decide about, with its answers. */
export function openBanner(effects) {
  return h(
    "section",
    { class: "banner ask", "aria-label": "Effects to decide about" },
    h("h2", {}, `${plural(effects.length, "effect")} to decide about`),
    h("p", { class: "dim" }, "Look it up where it was to be done or undone, and say what you have found."),
    h("ul", { class: "unknown" }, effects.map((each) => h("li", {}, h("p", { class: "effect-head" }, outcomeBadge(each), h("strong", {}, each.event_type), h("span", { class: "mono dim" }, each.key)), each.reason && h("p", { class: "said" }, each.reason), answers(each)))),
  );
}

/** The section of a plan's page; `rollback()` is called by its button. */
export function effectsOf(effects, { rollback }) {
  if (!effects.length) return empty("No effects", "No task of this plan has declared what it does outside.");
  const outcomes = [...new Set(effects.map(({ outcome }) => outcome))];
  const counts = outcomes.map((each) => `${number(effects.filter(({ outcome }) => outcome === each).length)} ${each}`);
  return [
    h(
      "header",
      { class: "panel-head effects-head" },
      h("span", { class: "dim" }, counts.join(", ")),
      session.writable && undoable(effects) && h("button", { class: "button danger-quiet", type: "button", onclick: rollback }, icon("retry", 14), "Roll back"),
    ),
    h("ul", { class: "effect-list" }, effects.map(row)),
  ];
}

function row(effect) {
  const { event_type: kind, key, outcome, result, reason, undo: can, task, undecided, decision } = effect;
  return h(
    "li",
    { dataset: { item: "", task } },
    h("div", { class: "effect-head" }, outcomeBadge(effect), h("strong", {}, kind), h("span", { class: "mono dim effect-key", title: "Key" }, key)),
    reason && h("p", { class: "said" }, reason),
    result !== null && result !== undefined && h("details", {}, h("summary", { class: "dim" }, "Result"), h("pre", { class: "code" }, pretty(result))),
    outcome === "done" && !can && h("p", { class: "dim" }, "It cannot be undone: its worker has no undo."),
    (undecided || decision) && answers(effect),
  );
}

/** Reads a plan's effects. */
export const readEffects = async (id, signal) => (await api.get(`${api.plan(id)}/effects`, { signal })).items;
