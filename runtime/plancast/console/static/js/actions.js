// Actions on a plan: a form for each, and the request that is sent in the user's name.

import * as api from "./api.js";
import { ask, show } from "./dialog.js";
import { h } from "./dom.js";
import { plural, pretty } from "./format.js";
import * as router from "./router.js";
import { answerOf, schemaFields } from "./schema_form.js";
import { toast } from "./toast.js";

function wrote(text, options) {
  dispatchEvent(new Event("plancast:wrote"));
  toast(text, options);
}

async function write(id, name, body, key, said) {
  const answer = await api.post(`${api.plan(id)}/${name}`, body, { key });
  wrote(typeof said === "string" ? said : told(answer, said));
  return answer ?? true;
}

/** The text for the outcome of an event. Throws that for `ignored`: the plan has not taken it. */
function told({ outcome }, said) {
  if (outcome !== "ignored") return said[outcome] ?? said.moved;
  dispatchEvent(new Event("plancast:wrote")); // what is shown is old
  throw new Error(said.ignored);
}

const shorter = (id) => (id.length > 18 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id);

/** A yes or a no for one plan, or for several that ask: the same fields, sent as the event that each waits for. */
const answer = (approved) => (...asked) => {
  const [title, name, done] = approved ? ["Approve", "approve", "approved"] : ["Reject", "reject", "rejected"];
  const [first] = asked;
  const schemaOf = (each) => (!approved && each.refusal_event ? each.refusal_schema : each.answer_schema);
  const alike = asked.every((each) => JSON.stringify(schemaOf(each)) === JSON.stringify(schemaOf(first)));
  const event = (!approved && first.refusal_event) || first.expected_event;
  const what = asked.length === 1 ? first.reason : `${plural(asked.length, "plan")} get the same answer.`;
  const said = ({ plan_id: id }) => ({
    moved: `Plan ${shorter(id)} was ${done}.`,
    kept: `The answer is stored until plan ${shorter(id)} goes on.`,
    ignored: "The plan did not take this answer: it was answered before, or waits for another user. Its timeline says why.",
  });
  const act = async (values, key) => {
    const body = (one) => ({ ...answerOf(values), request_id: one.request_id ?? null }); // what was shown, and nothing later
    if (asked.length === 1) return write(first.plan_id, name, body(first), key, said(first));
    const refused = await each(asked, async (one) => told(await api.post(`${api.plan(one.plan_id)}/${name}`, body(one), { key }), said(one)));
    wrote(`${plural(asked.length - refused.length, "plan")} ${asked.length - refused.length === 1 ? "was" : "were"} ${done}.`);
    if (refused.length) throw new Error(refused.map(([one, error]) => `${shorter(one.plan_id)}: ${error.message}`).join(" "));
    return true;
  };
  return ask({
    title,
    text: [what, approved ? first.description : "The plan goes on with the answer; to end it, cancel it."].filter(Boolean).join(" · "),
    fields: schemaFields(alike ? schemaOf(first) : null, { hint: event && alike ? `Further fields of ${event}, as a JSON object` : "" }),
    label: asked.length === 1 ? title : `${title} ${asked.length}`,
    danger: !approved,
    act,
  });
};

export const approve = answer(true);
export const reject = answer(false);

/** Runs a step for each item, a few at once; returns the items that failed, with their errors. */
async function each(items, step) {
  const left = [...items];
  const failed = [];
  const work = async () => {
    for (let item = left.shift(); item; item = left.shift()) await step(item).catch((error) => failed.push([item, error]));
  };
  await Promise.all(Array.from({ length: 4 }, work));
  return failed;
}

/** Assigns what plans ask to a user; an empty name takes it back. */
export async function assign(asked, assignee) {
  const failed = await each(asked, ({ plan_id: id }) => api.post(`${api.plan(id)}/assign`, { assignee }));
  if (failed.length) toast(failed[0][1].message, { bad: true });
  dispatchEvent(new Event("plancast:wrote"));
}

export const assignTo = (asked, users) =>
  ask({
    title: asked.length === 1 ? "Assign this approval" : `Assign ${asked.length} approvals`,
    text: "Shown to everybody who looks at approvals.",
    fields: [{ name: "assignee", label: "User", kind: "text", options: users, value: asked[0].assignee, hint: "Leave it empty to assign it to nobody" }],
    label: "Assign",
    act: async ({ assignee = "" }) => (await assign(asked, assignee), true),
  });

const OF_UNKNOWN = {
  done: { title: "It was done", text: "The task is answered with this result, as if its worker had returned it." },
  not_done: { title: "It was not done", text: "The task is begun again." },
  give_up: { title: "Give up", text: "The task is answered as failed. What it may have done stays as it is." },
};
const OF_FAILED_UNDO = {
  done: { title: "It was undone", text: "The rollback goes on." },
  not_done: { title: "Undo again", text: "Its undo is begun again." },
  give_up: { title: "Leave it", text: "It stays as it is, and is named as left." },
};

/** What a person can say of an effect: titles and texts by outcome. */
export const resolutionsOf = ({ outcome }) => (outcome === "done" ? OF_FAILED_UNDO : OF_UNKNOWN);

/** Tells what has become of an effect, or of its undo. */
export const resolve = (effect, outcome) => {
  const { plan_id: id, task, event_type: kind, key: name, about } = effect;
  const { title, text } = resolutionsOf(effect)[outcome];
  const withResult = outcome === "done" && effect.outcome === "unknown";
  return ask({
    title: `${title}: ${kind}`,
    text: `${text} Key: ${name}`,
    fields: withResult ? [{ name: "result", label: "Result", kind: "json", rows: 5, hint: "What the task would have returned, as JSON" }] : [],
    label: title,
    danger: outcome === "give_up",
    act: (values, key) => write(id, `effects/${encodeURIComponent(task)}`, { outcome, about, ...values }, key, {
      moved: `The plan has taken it: ${kind}, ${title.toLowerCase()}.`,
      kept: "It is stored until the plan goes on.",
      ignored: "The plan did not take this: somebody else has decided, or the outcome is known by now.",
    }),
  });
};

export const rollback = ({ plan_id: id }) =>
  ask({
    title: "Roll back this plan",
    text: "What the plan and its children have done outside is undone, the latest first, and the plan ends as failed. What cannot be undone is named.",
    fields: [{ name: "reason", label: "Reason", kind: "long", required: true, missing: "Give a reason." }],
    label: "Roll back",
    danger: true,
    act: (values, key) => write(id, "rollback", values, key, {
      moved: `Plan ${shorter(id)} is being rolled back.`,
      kept: `Plan ${shorter(id)} is rolled back when it goes on.`,
      ignored: "The plan is being rolled back already, or has nothing left to undo.",
    }),
  });

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
    act: (values, key) => write(id, "signal", { event_type: values.event_type, data: values.data ?? {} }, key, {
      moved: "The plan has taken the event.",
      kept: "The event is stored until the plan waits for it.",
      ignored: `Nothing in this plan waits for ${values.event_type}: the event was ignored.`,
    }),
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

/** Starts another plan from a turn of this one; `latest` is the turn that is offered. */
export const fork = ({ plan_id: id, revision: newest }, latest) =>
  ask({
    title: "Fork this plan",
    text: "Starts a new plan with this plan's state and results as they were after a turn. Requests that were open then are sent again for the new plan: to workers, child plans and people. This plan does not change, and its requester hears nothing of the new one.",
    fields: [
      { name: "revision", label: "After turn", kind: "number", required: true, missing: "Name a turn.", whole: true, min: 1, max: newest, value: latest },
      { name: "data", label: "Changes to the goal's data", kind: "json", rows: 4, hint: "Fields to replace, as a JSON object" },
    ],
    label: "Fork",
    act: (values, key) => begun(api.post(`${api.plan(id)}/fork`, values, { key })),
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
