// Form fields of an answer, from the JSON Schema that a planner declares for its event.

const OWN = new Set(["approved", "by", "reason"]); // the answer has them anyway
const LONG = 200;
const DEEP = 4;

/** Fields for `ask`; a schema without properties, and each property that no field can show, is JSON. */
export function schemaFields(schema, { hint = "" } = {}) {
  const own = requiredIn(schema).has("reason") ? { required: true, missing: "Give a reason." } : {};
  const reason = { name: "reason", label: "Reason", kind: "long", hint: "Sent to the plan and stored in its timeline", ...own };
  const properties = Object.entries(schema?.properties ?? {}).filter(([name]) => !OWN.has(name));
  if (properties.length) return [reason, ...properties.flatMap(([name, of]) => fieldsOf(schema, of, [name], requiredIn(schema).has(name)))];
  if (schema?.additionalProperties === false) return [reason];
  return [reason, { name: "data", label: "Data", kind: "json", rows: 3, hint: hint || "Further fields of the answer, as a JSON object" }];
}

/** The body of an answer from the values of the form. */
export function answerOf({ reason, data = {}, ...values }) {
  const answer = { ...data };
  for (const [name, value] of Object.entries(values)) {
    const path = pathOf(name);
    const last = path.pop();
    let place = answer;
    for (const step of path) place = place[step] ??= {};
    place[last] = value;
  }
  return { ...(reason ? { reason } : {}), data: answer };
}

const nameOf = (path) => `data/${path.map(encodeURIComponent).join("/")}`;
const pathOf = (name) => name.split("/").slice(1).map(decodeURIComponent);
const requiredIn = (schema) => new Set(Array.isArray(schema?.required) ? schema.required : []);

/** The fields of a property: one, or those of an object. */
function fieldsOf(root, of, path, required) {
  const schema = resolved(root, of);
  const properties = Object.entries(schema.properties ?? {});
  if (schema.type === "object" && properties.length && path.length < DEEP) {
    return properties.flatMap(([name, inner]) => fieldsOf(root, inner, [...path, name], required && requiredIn(schema).has(name)));
  }
  const label = [...path.slice(0, -1), schema.title && !of.$ref ? schema.title : path.at(-1)].map((each) => String(each).replaceAll("_", " ")).join(" · ");
  const title = `${label.charAt(0).toUpperCase()}${label.slice(1)}`;
  const { hint, ...field } = kindOf(root, schema);
  return [{ ...field, name: nameOf(path), label: title, required, hint: [schema.description, hint, bounds(schema)].filter(Boolean).join("; ") }];
}

/** A schema with the one that it refers to, or the only one besides null that it allows. */
function resolved(root, of, steps = 0) {
  const { $ref: target, allOf: all, anyOf: any, oneOf: one, ...own } = of ?? {};
  const allowed = (any ?? one)?.filter((each) => each.type !== "null");
  const inner = target !== undefined ? definition(root, target) : all?.length === 1 ? all[0] : allowed?.length === 1 ? allowed[0] : null;
  if (inner === null || inner === undefined || steps > 8) return of ?? {};
  const { title: _name, ...found } = resolved(root, inner, steps + 1); // the title of a definition is the name of a type
  return { ...found, ...own };
}

function definition(root, target) {
  if (!String(target).startsWith("#/")) return null;
  return target.slice(2).split("/").reduce((place, step) => place?.[decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~")], root) ?? null;
}

function kindOf(root, schema) {
  const type = Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type;
  const value = schema.default === undefined || schema.default === null ? "" : schema.default;
  if (schema.const !== undefined) return choice([schema.const], schema.const);
  if (Array.isArray(schema.enum)) return choice(schema.enum.filter((each) => each !== null), value);
  if (type === "boolean") return choice([true, false], value, { true: "yes", false: "no" });
  if (type === "number" || type === "integer") return { kind: "number", value: String(value), whole: type === "integer", min: schema.minimum, max: schema.maximum };
  if (type === "string" && schema.format === "date") return { kind: "date", value: String(value) };
  if (type === "string") return { kind: schema.maxLength > LONG ? "long" : "text", value: String(value) };
  if (type === "array" && resolved(root, schema.items).type === "string") {
    return { kind: "long", hint: "one a line", value: Array.isArray(value) ? value.join("\n") : "", parse: (text) => text.split("\n").map((each) => each.trim()).filter(Boolean) };
  }
  return { kind: "json", rows: 3, hint: "JSON", value: value === "" || value.length === 0 ? "" : JSON.stringify(value, null, 2) };
}

/** A choice of JSON values; nothing is chosen unless there is a default. */
function choice(values, value, words = {}) {
  const options = values.map((each) => ({ value: JSON.stringify(each), label: words[each] ?? String(each) }));
  return { kind: "choice", options: [{ value: "", label: "–" }, ...options], value: value === "" ? "" : JSON.stringify(value), parse: JSON.parse };
}

function bounds({ minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, minLength, maxLength, minItems, maxItems, format }) {
  const parts = [
    above !== undefined && `more than ${above}`,
    minimum !== undefined && `at least ${minimum}`,
    below !== undefined && `less than ${below}`,
    maximum !== undefined && `at most ${maximum}`,
    minLength > 0 && `at least ${minLength} characters`,
    maxLength !== undefined && `at most ${maxLength} characters`,
    minItems > 0 && `at least ${minItems}`,
    maxItems !== undefined && `at most ${maxItems}`,
    format !== "date" && format,
  ];
  return parts.filter(Boolean).join(", ");
}
