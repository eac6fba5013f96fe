// The tree of a plan's children and task groups.

import * as api from "./api.js";
import { badge } from "./badges.js";
import { h } from "./dom.js";
import { plural, when } from "./format.js";
import * as router from "./router.js";
import { drawnFrom, empty } from "./states.js";

export function treeIn(place, { id, signal }) {
  function draw(tree) {
    if (!tree.children?.length && !tree.groups?.length) {
      return empty("No children", "This plan has started no child plans and no task groups.");
    }
    return h("ul", { class: "tree" }, branch(tree, 0));
  }

  function branch({ plan, children = [], groups = [] }, depth) {
    const own = h(
      "div",
      { class: `tree-plan${plan.plan_id === id ? " here" : ""}`, dataset: depth ? { item: "" } : {} },
      badge(plan.status),
      h("a", { href: router.planLink(plan.plan_id), class: "mono" }, plan.plan_id),
      h("span", {}, plan.goal_event),
      h("span", { class: "dim" }, plan.current_state),
      h("span", { class: "dim tree-when" }, when(plan.updated_at)),
    );
    const below = [...groups.map(group), ...children.map((each) => branch(each, depth + 1))];
    if (!below.length) return h("li", {}, own);
    const told = [children.length && plural(children.length, "child plan"), groups.length && plural(groups.length, "group")].filter(Boolean).join(", ");
    return h("li", {}, own, h("details", { open: depth < 3 }, h("summary", { class: "dim" }, told), h("ul", {}, below)));
  }

  function group({ group_id: name, join, members = [], state, status }) {
    return h(
      "li",
      { class: "tree-group" },
      h("div", {}, h("strong", {}, name.startsWith(`${id}/`) ? name.slice(id.length + 1) : name), join && h("span", { class: "dim" }, ` · joins ${String(join).replaceAll("_", " ")}`), (state ?? status) && h("span", { class: "dim" }, ` · ${state ?? status}`)),
      h("ul", {}, members.map(member)),
    );
  }

  function member({ task_id: task, status, plan_id: child, event_type: kind, error }) {
    return h("li", { class: "tree-task" }, taskBadge(status), kind && h("span", {}, kind), child ? h("a", { href: router.planLink(child), class: "mono" }, child) : h("span", { class: "mono dim" }, task.startsWith(`${id}/`) ? task.slice(id.length + 1) : task), error && h("span", { class: "turn-error" }, error));
  }

  return { load: drawnFrom(() => api.get(`${api.plan(id)}/tree`, { signal }), place, draw) };
}

const AS_STATUS = { complete: "completed", completed: "completed", running: "running", waiting: "running", failed: "failed", error: "failed", cancelled: "cancelled" };

function taskBadge(status) {
  return h("span", { class: `badge is-${AS_STATUS[status] ?? "pending"}` }, h("span", { class: "dot", "aria-hidden": "true" }), status);
}
