// Form fields of an answer, from the JSON Schema that a planner declares for its event.

const OWN = new Set(["approved", "by", "reason"]); // the answer has them anyway
const LONG = 200;

/** Fields for `ask`; a schema without properties, and each property that no field can show, is JSON. */
export function schemaFields(schema, { hint = "" } = {}) {
  const properties = Object.entries(schema?.properties ?? {}).filter(([name]) => !OWN.has(name));
  if (!properties.length) {
    const none = schema?.additionalProperties === false;
    return none ? [] : [{ name: "data", label: "Data", kind: "json", rows: 3, hint: hint || "Further fields of the answer, as a JSON object" }];
  }
  const required = new Set(schema.required ?? []);
  return properties.map(([name, of]) => ({
    ...kindOf(of),
    name: `data.${name}`,
    label: of.title ?? name.replaceAll("_", " "),
    required: required.has(name),
    hint: of.description ?? bounds(of),
  }));
}

/** The body of an answer from the values of the form. */
export function answerOf(values) {
  const { reason, data = {}, ...rest } = values;
  const fields = Object.fromEntries(Object.entries(rest).filter(([name]) => name.startsWith("data.")).map(([name, value]) => [name.slice(5), value]));
  return { ...(reason ? { reason } : {}), data: { ...data, ...fields } };
}

function kindOf(of) {
  const given = of.anyOf?.filter((each) => each.type !== "null");
  const schema = given?.length === 1 ? { ...of, ...given[0] } : of;
  const value = schema.default === undefined || schema.default === null ? "" : schema.default;
  if (schema.const !== undefined) return choice([schema.const], schema.const);
  if (Array.isArray(schema.enum)) return choice(schema.enum.filter((each) => each !== null), value);
  if (schema.type === "boolean") return choice([true, false], value, { true: "yes", false: "no" });
  if (schema.type === "number" || schema.type === "integer") return { kind: "number", value: String(value), whole: schema.type === "integer", min: schema.minimum, max: schema.maximum };
  if (schema.type === "string") return { kind: schema.maxLength > LONG ? "long" : "text", value: String(value) };
  return { kind: "json", rows: 3, value: value === "" ? "" : JSON.stringify(value, null, 2) };
}

/** A choice of JSON values; nothing is chosen unless there is a default. */
function choice(values, value, words = {}) {
  const options = values.map((each) => ({ value: JSON.stringify(each), label: words[each] ?? String(each) }));
  return { kind: "choice", options: [{ value: "", label: "–" }, ...options], value: value === "" ? "" : JSON.stringify(value), parse: JSON.parse };
}

function bounds({ minimum, maximum, minLength, maxLength, format }) {
  const parts = [
    minimum !== undefined && `at least ${minimum}`,
    maximum !== undefined && `at most ${maximum}`,
    minLength > 0 && `at least ${minLength} characters`,
    maxLength !== undefined && `at most ${maxLength} characters`,
    format,
  ];
  return parts.filter(Boolean).join(", ");
}
