// Actions on a plan: a form for each, and the request that is sent in the user's name.

import * as api from "./api.js";
import { ask, show } from "./dialog.js";
import { h } from "./dom.js";
import { plural, pretty } from "./format.js";
import * as router from "./router.js";
import { toast } from "./toast.js";

function wrote(text, options) {
  dispatchEvent(new Event("plancast:wrote"));
  toast(text, options);
}

async function write(id, name, body, key, said) {
  const answer = await api.post(`${api.plan(id)}/${name}`, body, { key });
  wrote(said);
  return answer ?? true;
}

const shorter = (id) => (id.length > 18 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id);

/** A yes or a no: the same fields, sent to the plan as the event that it waits for. */
const answer = (approved) => ({ plan_id: id, expected_event: yes, refusal_event: no, reason }) => {
  const event = approved ? yes : (no ?? yes);
  const [title, name, done] = approved ? ["Approve", "approve", "approved"] : ["Reject", "reject", "rejected"];
  return ask({
    title,
    text: [reason, !approved && "The plan goes on with the answer; to end it, cancel it."].filter(Boolean).join(" · "),
    fields: [
      { name: "reason", label: "Reason", kind: "long", hint: "Sent to the plan and stored in its timeline" },
      { name: "data", label: "Data", kind: "json", rows: 3, hint: event ? `Further fields of ${event}` : "Sent to the plan" },
    ],
    label: title,
    danger: !approved,
    act: (values, key) => write(id, name, values, key, `Plan ${shorter(id)} was ${done}.`),
  });
};

export const approve = answer(true);
export const reject = answer(false);

export const cancel = ({ plan_id: id }) =>
  ask({
    title: "Cancel this plan",
    text: "The plan and its children end in their current states. Completed work is not undone.",
    fields: [{ name: "reason", label: "Reason", kind: "long", required: true, missing: "Give a reason." }],
    label: "Cancel the plan",
    danger: true,
    act: (values, key) => write(id, "cancel", values, key, `Plan ${shorter(id)} is being cancelled.`),
  });

export const pause = ({ plan_id: id }) =>
  ask({
    title: "Pause this plan",
    text: "The plan stays in its state. Responses are stored until it is resumed.",
    fields: [{ name: "reason", label: "Reason", kind: "text" }],
    label: "Pause",
    act: (values, key) => write(id, "pause", values, key, `Plan ${shorter(id)} is being paused.`),
  });

export const resume = ({ plan_id: id }) =>
  ask({
    title: "Resume this plan",
    fields: [{ name: "data", label: "Data", kind: "json", rows: 4, hint: "Input for the plan" }],
    label: "Resume",
    act: (values, key) => write(id, "resume", values, key, `Plan ${shorter(id)} is being resumed.`),
  });

export const signal = ({ plan_id: id, listens_for: heard = [], waiting_for: waits = [] }) => {
  const outside = waits.filter(({ kind }) => kind === "event" || kind === "approval").map(({ event_type: type }) => type);
  const options = [...new Set([...outside, ...heard])];
  return ask({
    title: "Signal",
    text: "Sends an event to this plan.",
    fields: [
      { name: "event_type", label: "Event", kind: "text", required: true, value: outside[0] ?? "", options, hint: options.length ? `The plan accepts ${options.join(", ")}` : "" },
      { name: "data", label: "Data", kind: "json", value: "{}", rows: 5 },
    ],
    label: "Send",
    act: (values, key) => write(id, "signal", { event_type: values.event_type, data: values.data ?? {} }, key, "The event was sent."),
  });
};

export const redirect = ({ plan_id: id, goal }) =>
  ask({
    title: "Redirect this plan",
    text: "Replaces the data of the goal. The planner sees it with its next decision.",
    fields: [{ name: "goal_data", label: "New data", kind: "json", required: true, value: pretty(goal?.data ?? {}) }],
    label: "Redirect",
    act: (values, key) => write(id, "redirect", values, key, "The plan was redirected."),
  });

export const inject = ({ plan_id: id }) =>
  ask({
    title: "Add context",
    text: "The planner sees this text with its next decision.",
    fields: [{ name: "context", label: "Context", kind: "long", required: true }],
    label: "Add context",
    act: (values, key) => write(id, "inject", values, key, "The context was sent to the plan."),
  });

export const retry = ({ plan_id: id }) =>
  ask({
    title: "Try again",
    text: "Starts a new plan with the same goal. This plan does not change.",
    label: "Try again",
    act: (values, key) => begun(api.post(`${api.plan(id)}/retry`, {}, { key })),
  });

export const fork = (id, revision) =>
  ask({
    title: `Fork after turn ${revision}`,
    text: "Starts a new plan from this plan's data after that turn. This plan does not change.",
    fields: [{ name: "data", label: "Changes to the goal's data", kind: "json", rows: 4, hint: "Fields to replace, as a JSON object" }],
    label: "Fork",
    act: (values, key) => begun(api.post(`${api.plan(id)}/fork`, { revision, ...values }, { key })),
  });

const OUTCOMES = { same: "the same", differs: "differs", unknown: "not known" };

/** Replays a plan's history without side effects and shows the first difference. */
export const replay = async ({ plan_id: id, machine }) => {
  const options = [{ value: "then", label: "the one the plan started with" }, { value: "now", label: "the current one of its goal" }];
  const found = await ask({
    title: "Replay",
    text: "Runs the plan's history again and compares the results. Nothing is sent, no model or worker is called, and the plan does not change.",
    fields: machine ? [{ name: "machine", label: "State machine", kind: "choice", options }] : [],
    label: "Replay",
    act: (values) => api.post(`${api.plan(id)}/replay`, values),
  });
  if (!found) return;
  const others = found.turns.filter((turn) => turn.outcome !== "same");
  show(
    `Replay: ${OUTCOMES[found.outcome] ?? found.outcome}`,
    h("p", { class: "dialog-text" }, others.length ? `${others.length} of ${plural(found.turns.length, "turn")} gave another result.` : `All of ${plural(found.turns.length, "turn")} gave the same result.`),
    h("ol", { class: "replayed" }, others.slice(0, 100).map(({ revision, event, outcome, why, differences }) =>
      h("li", {}, h("strong", {}, `#${revision} ${event}`), ` ${OUTCOMES[outcome]}`, why && `: ${why}`,
        differences.length > 0 && h("pre", { class: "code" }, differences.map((each) => `${each.path}: ${JSON.stringify(each.then)} → ${JSON.stringify(each.now)}`).join("\n")))),
    ),
  );
};

async function begun(answer) {
  const { plan_id: id } = await answer;
  wrote("The new plan was started.");
  router.go(router.planLink(id, { new: "1" }));
  return id;
}
