// The form for a new plan: its goal, and data that is prefilled from the goal's schema.

import * as api from "./api.js";
import { ask } from "./dialog.js";
import * as router from "./router.js";
import { toast } from "./toast.js";

export async function newPlan() {
  let goals = [];
  try {
    const { items } = await api.get("apps");
    goals = items.flatMap((app) => app.goals);
  } catch {
    // The goal can be typed instead.
  }
  let data = null;
  const choose = (name) => {
    const found = goals.find((goal) => goal.event_type === name);
    if (data) data.value = JSON.stringify(example(found?.schema), null, 2);
  };
  const goal = goals.length
    ? { name: "event_type", label: "Goal", kind: "choice", options: goals.map((each) => each.event_type), changed: choose }
    : { name: "event_type", label: "Goal", kind: "text", required: true, hint: "The event that starts a plan, such as order.received" };
  const answered = ask({
    title: "New plan",
    fields: [
      goal,
      { name: "data", label: "Data", kind: "json", value: JSON.stringify(example(goals[0]?.schema), null, 2), hint: "A JSON object" },
      { name: "tenant_id", label: "Tenant", kind: "text" },
      { name: "session_id", label: "Session", kind: "text" },
    ],
    label: "Submit",
    act: (values, key) => api.post("plans", { ...values, data: values.data ?? {} }, { key }),
  });
  data = document.getElementById("field-data");
  const made = await answered;
  if (!made) return;
  dispatchEvent(new Event("plancast:wrote"));
  toast("The plan was submitted.");
  router.go(router.planLink(made.plan_id, { new: "1" }));
}

/** A sample value for a JSON Schema. */
function example(schema, root = schema, depth = 0) {
  if (!schema || depth > 4) return {};
  if (schema.$ref) return example(named(root, schema.$ref), root, depth + 1);
  if (schema.default !== undefined) return schema.default;
  if (schema.examples?.length) return schema.examples[0];
  if (schema.enum) return schema.enum[0];
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return example(options[0], root, depth + 1);
  if (schema.properties || schema.type === "object") {
    const entries = Object.entries(schema.properties ?? {});
    return Object.fromEntries(entries.map(([name, each]) => [name, example(each, root, depth + 1)]));
  }
  return { string: "", integer: 0, number: 0, boolean: false, array: [], null: null }[schema.type] ?? {};
}

function named(root, reference) {
  return reference
    .replace(/^#\//, "")
    .split("/")
    .reduce((found, part) => found?.[part], root);
}
