// Forms in the documentation of the API, which send requests with the session of the console.

import { h, put } from "./dom.js";

const MOST = 100_000;
const schema = await (await fetch("/api/v1/openapi.json")).json();

for (const place of document.querySelectorAll("details[data-path]")) {
  place.addEventListener("toggle", () => place.open && !place.querySelector("form") && place.append(formOf(place.dataset)));
}

/** A link to a schema opens it. */
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target) target.open = true;
}

addEventListener("hashchange", openTarget);
openTarget();

function formOf({ method, path }) {
  const operation = schema.paths[path][method];
  const inputs = (operation.parameters ?? []).map((each) => ({ ...each, input: h("input", { type: "text", "aria-label": each.name, placeholder: each.required ? "required" : "", spellcheck: "false", autocomplete: "off" }) }));
  const body = operation.requestBody && h("textarea", { rows: 5, "aria-label": "Body", spellcheck: "false", value: JSON.stringify(example(operation.requestBody.content["application/json"].schema), null, 2) });
  const output = h("pre", { hidden: true, "aria-label": "Response", "aria-live": "polite", tabindex: "0" });
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const send = async (event) => {
    event.preventDefault();
    output.hidden = false;
    const missing = inputs.find((each) => each.required && !each.input.value);
    if (missing) return put(output, `${missing.name} is required.`);
    const asking = new AbortController();
    stop.hidden = false;
    stop.onclick = () => asking.abort();
    try {
      await show(await fetch(...requestOf(method, path, inputs, body?.value, asking.signal)), output);
    } catch (error) {
      output.append(error.name === "AbortError" ? "\nStopped." : `${error.message}. Check that plancast console is running.`);
    } finally {
      stop.hidden = true;
    }
  };
  return h(
    "form",
    { onsubmit: send },
    h("h3", {}, "Try it"),
    inputs.map(({ name, input }) => h("label", {}, h("code", {}, name), input)),
    body && h("label", {}, "Body", body),
    h("p", {}, h("button", { type: "submit" }, "Send"), " ", stop),
    output,
  );
}

/** The arguments of `fetch`. */
function requestOf(method, path, inputs, body, signal) {
  const query = new URLSearchParams();
  const headers = { Accept: "*/*" };
  let url = path;
  for (const { name, in: kind, input, schema: type } of inputs) {
    const value = input.value.trim();
    if (!value) continue;
    if (kind === "path") url = url.replace(`{${name}}`, encodeURIComponent(value));
    else if (kind === "header") headers[name] = value;
    else for (const each of isList(type) ? value.split(",") : [value]) query.append(name, each.trim());
  }
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return [query.size ? `${url}?${query}` : url, { method: method.toUpperCase(), headers, body, signal, credentials: "same-origin", cache: "no-store" }];
}

const isList = (type) => [type, ...(type.anyOf ?? [])].some((each) => each.type === "array");

/** Shows a response as it comes, as streams have no end. */
async function show(response, output) {
  put(output, `${response.status} ${response.statusText}\n`);
  if (response.status === 401) output.append(h("a", { href: "/" }, "Sign in to the console"), ", then send again.\n");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const isJson = /json/.test(response.headers.get("content-type") ?? "");
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value;
    if (!isJson && text.length < MOST) output.append(part.value);
  }
  if (isJson) output.append(cut(pretty(text)));
}

const cut = (text) => (text.length > MOST ? `${text.slice(0, MOST)}…` : text);

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** A value with the required fields of a schema. */
function example(type) {
  if (type.$ref) return example(schema.components.schemas[type.$ref.split("/").at(-1)]);
  if (type.default !== undefined) return type.default;
  const [choice] = type.anyOf ?? type.oneOf ?? type.allOf ?? [];
  if (choice) return example(choice);
  if (type.type === "object") return Object.fromEntries((type.required ?? []).map((name) => [name, example(type.properties[name])]));
  return type.enum?.[0] ?? type.const ?? { array: [], boolean: false, integer: type.minimum ?? 0, number: 0, string: "" }[type.type] ?? null;
}
