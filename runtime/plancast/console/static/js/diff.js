// Compares a plan's data after two turns, side by side.

import * as api from "./api.js";
import { h, put } from "./dom.js";
import { pretty } from "./format.js";
import { changes, folded } from "./lines.js";
import { failed, loading } from "./states.js";

/** The view; `show(a, b)` compares turn a with turn b. */
export function diffIn(place, { id, signal }) {
  let newest = 1;
  let asked = 0;
  const left = turnInput("Turn");
  const right = turnInput("beside turn");
  const fields = h("input", { type: "checkbox", onchange: () => compare() });
  const both = h("input", { type: "checkbox", onchange: () => compare() });
  const result = h("div", { class: "diff-place" });
  const step = (by) => () => {
    const b = Math.min(newest, Math.max(1, Number(right.input.value) + by));
    show(Math.max(0, b - 1), b);
  };
  put(
    place,
    h(
      "form",
      { class: "diff-bar", onsubmit: (event) => (event.preventDefault(), compare()) },
      h("button", { class: "button", type: "button", "aria-label": "Previous turn", title: "Previous turn", onclick: step(-1) }, "‹"),
      left.element,
      right.element,
      h("button", { class: "button", type: "button", "aria-label": "Next turn", title: "Next turn", onclick: step(1) }, "›"),
      h("label", { class: "check" }, both, " unchanged lines"),
      h("label", { class: "check" }, fields, " all fields of the plan"),
    ),
    result,
  );

  function turnInput(text) {
    const input = h("input", { type: "number", min: "0", step: "1", inputmode: "numeric" });
    input.addEventListener("change", () => compare());
    return { input, element: h("label", { class: "turn-input" }, text, " ", input) };
  }

  async function compare() {
    const now = (asked += 1);
    const [a, b] = [left, right].map(({ input }) => Math.min(newest, Math.max(0, Number(input.value) || 0)));
    left.input.value = a;
    right.input.value = b;
    const bone = setTimeout(() => put(result, loading(8)), 200);
    try {
      const [before, after] = await Promise.all([dataOf(a), dataOf(b)]);
      if (now === asked) put(result, unknown(before, after), side(a, before.text, b, after.text, both.checked));
    } catch (error) {
      if (error.name !== "AbortError" && now === asked) put(result, failed(error, compare));
    } finally {
      clearTimeout(bone);
    }
  }

  /** `{text, why}`: the data, and the reason if it is reconstructed from the timeline. */
  async function dataOf(turn) {
    if (turn === 0) return { text: "", why: "" }; // before the first turn there is no data
    const found = await api.get(`${api.plan(id)}/data`, { query: { revision: turn }, signal });
    if (!found.known) return { text: pretty(await told(turn)), why: found.why };
    const { status, current_state, goal_data, results, state } = found;
    const { status: _s, current_state: _c, goal_data: _g, results: _r, ...more } = state ?? {};
    return { text: pretty({ status, current_state, goal_data, results, ...(fields.checked ? more : {}) }), why: "" };
  }

  /** Reconstructs the data of a turn from the timeline: the goal, and the data of each event. */
  async function told(turn) {
    const data = { status: "", current_state: "", goal_data: null, events: {} };
    for (let after = 0; after !== null && after < turn; ) {
      const { items, next } = await api.get(`${api.plan(id)}/history`, { query: { after, limit: Math.min(1000, turn - after) }, signal });
      for (const { revision, event, state, status } of items) {
        Object.assign(data, { status, current_state: state });
        if (revision === 1) data.goal_data = event.data;
        else data.events[event.type] = event.data;
      }
      after = next;
    }
    return data;
  }

  function show(a, b) {
    left.input.value = a;
    right.input.value = b;
    return compare();
  }

  return {
    show,
    reach: (revision) => {
      newest = revision;
      left.input.max = right.input.max = revision;
    },
    shown: () => asked > 0,
  };
}

function unknown(...sides) {
  const why = sides.map((each) => each.why).find(Boolean);
  return why && h("p", { class: "stale" }, `The data of that turn is unknown: ${why}. This is reconstructed from the timeline.`);
}

function side(a, before, b, after, all) {
  const rows = changes(before.split("\n"), after.split("\n"));
  const same = rows.every((row) => row.kind === "same");
  const table = h(
    "div",
    { class: "diff", role: "table", "aria-label": `Data after turn ${a} and after turn ${b}` },
    h("div", { class: "diff-head", role: "row" }, h("span", { role: "columnheader" }, a ? `After turn ${a}` : "Before the first turn"), h("span", { role: "columnheader" }, `After turn ${b}`)),
  );
  for (const row of all ? rows : folded(rows)) table.append(row.kind === "fold" ? fold(row) : line(row));
  return [same && h("p", { class: "dim diff-same" }, a === b ? "Both sides show the same turn." : "The data did not change between these turns."), table];
}

function line({ kind, left, right }) {
  const cell = (text, side) =>
    h("span", { role: "cell", class: `diff-cell ${side}${text === null ? " void" : ""}` }, text !== null && kind !== "same" && h("span", { class: "unseen" }, side === "left" ? "Before: " : "After: "), text ?? "");
  return h("div", { class: `diff-row ${kind}`, role: "row" }, cell(left, "left"), cell(right, "right"));
}

function fold({ rows }) {
  const made = h("div", { class: "diff-row fold", role: "row" }, h("button", { class: "link", type: "button", onclick: () => made.replaceWith(...rows.map(line)) }, `${rows.length} lines that are the same`));
  return made;
}
