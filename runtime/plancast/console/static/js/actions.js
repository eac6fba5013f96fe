// What a person can do to a plan. Each is asked for with what it needs, and done in that person's name.

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

export const approve = ({ plan_id: id, expected_event: event, reason }) =>
  ask({
    title: "Approve",
    text: reason,
    fields: [
      { name: "comment", label: "Comment", kind: "long" },
      { name: "data", label: "Data", kind: "json", rows: 3, hint: event ? `Goes to the plan with ${event}` : "Goes to the plan" },
    ],
    label: "Approve",
    act: (values, key) => write(id, "approve", values, key, `Plan ${shorter(id)} was approved.`),
  });

export const reject = ({ plan_id: id, reason }) =>
  ask({
    title: "Reject",
    text: reason ? `${reason}. A plan that is rejected ends.` : "A plan that is rejected ends.",
    fields: [{ name: "reason", label: "Why", kind: "long", required: true, missing: "Say why.", hint: "Whoever asked is told, and the plan's timeline keeps it" }],
    label: "Reject",
    danger: true,
    act: (values, key) => write(id, "reject", values, key, `Plan ${shorter(id)} was rejected.`),
  });

export const cancel = ({ plan_id: id }) =>
  ask({
    title: "Cancel this plan",
    text: "It ends where it is. What it has done already is not undone. Its children are cancelled with it.",
    fields: [{ name: "reason", label: "Why", kind: "long", required: true, missing: "Say why." }],
    label: "Cancel the plan",
    danger: true,
    act: (values, key) => write(id, "cancel", values, key, `Plan ${shorter(id)} is being cancelled.`),
  });

export const pause = ({ plan_id: id }) =>
  ask({
    title: "Pause this plan",
    text: "It stays where it is. What it waits for is kept until it is resumed.",
    fields: [{ name: "reason", label: "Why", kind: "text" }],
    label: "Pause",
    act: (values, key) => write(id, "pause", values, key, `Plan ${shorter(id)} is being paused.`),
  });

export const resume = ({ plan_id: id }) =>
  ask({
    title: "Resume this plan",
    fields: [{ name: "data", label: "Data", kind: "json", rows: 4, hint: "What the plan goes on with" }],
    label: "Resume",
    act: (values, key) => write(id, "resume", values, key, `Plan ${shorter(id)} is going on.`),
  });

export const signal = ({ plan_id: id, listens_for: heard = [], waiting_for: waits = [] }) => {
  const outside = waits.filter(({ kind }) => kind === "event" || kind === "approval").map(({ event_type: type }) => type);
  const options = [...new Set([...outside, ...heard])];
  return ask({
    title: "Signal",
    text: "Sends an event to this plan.",
    fields: [
      { name: "event_type", label: "Event", kind: "text", required: true, value: outside[0] ?? "", options, hint: options.length ? `It listens for ${options.join(", ")}` : "" },
      { name: "data", label: "Data", kind: "json", value: "{}", rows: 5 },
    ],
    label: "Send",
    act: (values, key) => write(id, "signal", { event_type: values.event_type, data: values.data ?? {} }, key, "The event was sent."),
  });
};

export const redirect = ({ plan_id: id, goal }) =>
  ask({
    title: "Redirect this plan",
    text: "Its planner sees new data for the goal, and decides anew from there.",
    fields: [{ name: "goal_data", label: "New data", kind: "json", required: true, value: pretty(goal?.data ?? {}) }],
    label: "Redirect",
    act: (values, key) => write(id, "redirect", values, key, "The plan was redirected."),
  });

export const inject = ({ plan_id: id }) =>
  ask({
    title: "Tell the planner something",
    text: "It sees this the next time it is asked.",
    fields: [{ name: "context", label: "What it should know", kind: "long", required: true }],
    label: "Tell it",
    act: (values, key) => write(id, "inject", values, key, "The planner will see it."),
  });

export const retry = ({ plan_id: id }) =>
  ask({
    title: "Try again",
    text: "A new plan begins with the same goal. This one stays as it is.",
    label: "Try again",
    act: (values, key) => begun(api.post(`${api.plan(id)}/retry`, {}, { key })),
  });

export const fork = (id, revision) =>
  ask({
    title: `Fork after turn ${revision}`,
    text: "A new plan begins with the data that this one had then, and goes its own way.",
    fields: [{ name: "data", label: "Other data for the goal", kind: "json", rows: 4, hint: "The fields that are to be others, as a JSON object" }],
    label: "Fork",
    act: (values, key) => begun(api.post(`${api.plan(id)}/fork`, { revision, ...values }, { key })),
  });

const OUTCOMES = { same: "the same", differs: "differs", unknown: "not known" };

/** Runs a plan's history again, which moves nothing, and tells where it leads elsewhere. */
export const replay = async ({ plan_id: id, machine }) => {
  const options = [{ value: "then", label: "the one it began with" }, { value: "now", label: "the one its goal has today" }];
  const found = await ask({
    title: "Replay",
    text: "Runs its history again, and tells whether it leads where it led. Nothing is sent, nobody is asked, and the plan stays as it is.",
    fields: machine ? [{ name: "machine", label: "With the state machine", kind: "choice", options }] : [],
    label: "Replay",
    act: (values) => api.post(`${api.plan(id)}/replay`, values),
  });
  if (!found) return;
  const others = found.turns.filter((turn) => turn.outcome !== "same");
  show(
    `Replay: ${OUTCOMES[found.outcome] ?? found.outcome}`,
    h("p", { class: "dialog-text" }, others.length ? `${others.length} of ${plural(found.turns.length, "turn")} did not come out the same.` : `All of ${plural(found.turns.length, "turn")} came out the same.`),
    h("ol", { class: "replayed" }, others.slice(0, 100).map(({ revision, event, outcome, why, differences }) =>
      h("li", {}, h("strong", {}, `#${revision} ${event}`), ` ${OUTCOMES[outcome]}`, why && `: ${why}`,
        differences.length > 0 && h("pre", { class: "code" }, differences.map((each) => `${each.path}: ${JSON.stringify(each.then)} → ${JSON.stringify(each.now)}`).join("\n")))),
    ),
  );
};

async function begun(answer) {
  const { plan_id: id } = await answer;
  wrote("A new plan has begun.");
  router.go(router.planLink(id, { new: "1" }));
  return id;
}
