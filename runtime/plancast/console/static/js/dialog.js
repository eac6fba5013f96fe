// Dialogs that precede a write: their fields, and the user in whose name it is done.

import { Problem, intent } from "./api.js";
import { h, put } from "./dom.js";
import { session } from "./session.js";

/**
 * Shows a form and performs its action. `fields`: `{name, label, kind: "text"|"long"|"json"|"number"|"date"|"choice", value, hint,
 * required, missing, options, rows, changed, parse}`. `act(values, key)` performs the action; an error is shown and the form keeps its values.
 * Returns the result of `act`, or undefined when the dialog is dismissed.
 */
export function ask({ title, text, fields = [], label, danger = false, act }) {
  return new Promise((resolve) => {
    const key = intent();
    const fault = h("div", { class: "form-fault", role: "alert", hidden: true });
    const inputs = new Map(fields.map((field) => [field.name, control(field)]));
    const submit = h("button", { class: `button ${danger ? "danger" : "primary"}`, type: "submit" }, label);
    const close = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const send = async (event) => {
      event.preventDefault();
      if (submit.disabled) return;
      fault.hidden = true;
      let values;
      try {
        values = read(fields, inputs);
      } catch (error) {
        tell(fault, error);
        inputs.get(error.field)?.focus();
        return;
      }
      submit.disabled = true;
      try {
        close(await act(values, key));
      } catch (error) {
        tell(fault, error);
      } finally {
        submit.disabled = false;
      }
    };
    const form = h(
      "form",
      { onsubmit: send, novalidate: true },
      h("h2", { id: "dialog-title" }, title),
      text && h("p", { class: "dialog-text" }, text),
      fields.map((field) => labelled(field, inputs.get(field.name))),
      h(
        "footer",
        { class: "dialog-end" },
        fault,
        h("div", { class: "dialog-foot" }, by(), h("button", { class: "button", type: "button", onclick: () => close() }, "Back"), submit),
      ),
    );
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title", oncancel: () => close() }, form);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    addEventListener("hashchange", () => dialog.isConnected && close(), { once: true });
    document.body.append(dialog);
    dialog.showModal();
    (inputs.get(fields[0]?.name) ?? submit).focus();
  });
}

/** A dialog with content to read. */
export function show(title, ...content) {
  const close = () => {
    dialog.close();
    dialog.remove();
  };
  const dialog = h(
    "dialog",
    { class: "dialog wide", "aria-label": title, oncancel: close },
    h(
      "header",
      { class: "dialog-head" },
      h("h2", {}, title),
      h("button", { class: "button quiet", type: "button", "aria-label": "Close", onclick: close }, "Close"),
    ),
    content,
  );
  dialog.addEventListener("click", (event) => event.target === dialog && close());
  addEventListener("hashchange", () => dialog.isConnected && close(), { once: true });
  document.body.append(dialog);
  dialog.showModal();
  return close;
}

/** The user in whose name a write is done. */
export function by() {
  return h("span", { class: "as" }, "as ", h("strong", {}, session.user));
}

function control(field) {
  const common = { id: `field-${field.name}`, name: field.name, "aria-describedby": field.hint && `hint-${field.name}` };
  if (field.kind === "choice") {
    const made = h("select", { ...common, onchange: () => field.changed?.(made.value) });
    for (const option of field.options) made.append(h("option", { value: option.value ?? option }, option.label ?? option));
    made.value = field.value ?? made.value;
    return made;
  }
  if (field.kind === "long" || field.kind === "json") {
    const json = field.kind === "json";
    const rows = field.rows ?? (json ? 8 : 3);
    return h("textarea", { ...common, rows, class: json ? "code" : "", spellcheck: String(!json), value: field.value ?? "" });
  }
  if (field.kind === "number") {
    return h("input", { ...common, type: "number", step: field.whole ? "1" : "any", min: field.min, max: field.max, value: field.value ?? "" });
  }
  const list = field.options && `list-${field.name}`;
  return h("input", { ...common, type: field.kind === "date" ? "date" : "text", autocomplete: "off", value: field.value ?? "", list });
}

function labelled(field, input) {
  return h(
    "div",
    { class: "field" },
    h("label", { for: input.id }, field.label, !field.required && (field.kind !== "choice" || field.parse) && h("span", { class: "dim" }, " (optional)")),
    input,
    field.kind !== "choice" &&
      field.options &&
      h("datalist", { id: `list-${field.name}` }, field.options.map((each) => h("option", { value: each }))),
    field.hint && h("p", { class: "hint", id: `hint-${field.name}` }, field.hint),
  );
}

function read(fields, inputs) {
  const values = {};
  for (const field of fields) {
    const input = inputs.get(field.name);
    const text = input.value.trim();
    if (input.validity.badInput) throw wrong(field, `${field.label} is no number.`);
    if (!text) {
      if (field.required) throw wrong(field, field.missing ?? `${field.label} is needed.`);
      continue;
    }
    if (field.kind !== "json") {
      values[field.name] = field.kind === "number" ? Number(text) : field.parse ? field.parse(text) : text;
      continue;
    }
    try {
      values[field.name] = JSON.parse(text);
    } catch (error) {
      throw wrong(field, `${field.label} is not JSON: ${error.message}`);
    }
  }
  return values;
}

function wrong(field, message) {
  const error = new Error(message);
  error.field = field.name;
  return error;
}

function tell(fault, error) {
  const parts = error instanceof Problem ? error.errors : [];
  put(
    fault,
    h("p", {}, error.message),
    parts.length > 0 && h("ul", {}, parts.map((each) => h("li", {}, h("code", {}, String(each.where)), " ", String(each.what)))),
  );
  fault.hidden = false;
}
