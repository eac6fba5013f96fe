// A plan on a time axis: a table with a row for each span, and a bar in each row.

import * as api from "./api.js";
import { h } from "./dom.js";
import { absolute, duration, elapsed, number, plural } from "./format.js";
import * as router from "./router.js";
import { drawnFrom, empty } from "./states.js";

const KINDS = { state: "state", pause: "pause", task: "task", child: "child plan", model: "model call" };
const TICKS = 5;
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400];

/** `chosen(revision)` is called with the turn that began a span. */
export function spansIn(place, { id, signal, chosen }) {
  const draw = (found) => (found.items.length ? chart(found, chosen) : empty("No turns", "This plan has not had a turn yet."));
  return { load: drawnFrom(() => api.get(`${api.plan(id)}/spans`, { signal }), place, draw) };
}

function chart({ items, start, end, more }, chosen) {
  const axis = axisOf(Date.parse(start), Date.parse(end));
  const turns = items.filter((each) => each.kind === "turn");
  const others = items.filter((each) => each.kind !== "turn");
  const kinds = Object.keys(KINDS).filter((kind) => others.some((each) => each.kind === kind));
  const column = (name, label, ...content) => h("th", { scope: "col", role: "columnheader", class: name }, label, content);
  return [
    h(
      "div",
      { class: "spans-head" },
      h("p", { class: "dim" }, `${absolute(start)}, ${duration(axis.seconds)} from the first turn to ${others.some((each) => !each.end) ? "now" : "the last"}`),
      h("ul", { class: "spans-legend", "aria-hidden": "true" }, ["turn", ...kinds].map((kind) => h("li", {}, h("span", { class: `span-mark span-${kind}` }), KINDS[kind] ?? "turn"))),
    ),
    more > 0 && h("p", { class: "stale" }, `${plural(more, "older span")} left out.`),
    h(
      "table",
      { class: "spans-table", role: "table", "aria-label": "Time axis" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, column("span-what", "What"), column("span-track", h("span", { class: "unseen" }, "Time"), axis.ticks.map(tick)), column("span-begin num", "After"), column("span-took num", "Took"))),
      h("tbody", { role: "rowgroup" }, turnsRow(turns, axis, chosen), others.map((each) => row(each, axis, chosen))),
    ),
  ];
}

function axisOf(from, to) {
  const whole = Math.max(1, to - from);
  const seconds = whole / 1000;
  const step = STEPS.find((each) => seconds / each <= TICKS) ?? 86400 * Math.ceil(seconds / 86400 / TICKS);
  const ticks = [];
  for (let n = 0; n * step <= seconds * 0.88; n += 1) ticks.push({ at: (n * step) / seconds, text: n ? duration(n * step) : "0" });
  return { seconds, ticks, share: (at) => Math.min(1, Math.max(0, (at - from) / whole)), after: (at) => Math.max(0, at - from) / 1000 };
}

function tick({ at, text }) {
  return placed(h("span", { class: "span-tick", "aria-hidden": "true" }, text), at);
}

function placed(element, from, share) {
  element.style.setProperty("--from", from.toFixed(5));
  if (share !== undefined) element.style.setProperty("--share", share.toFixed(5));
  return element;
}

const cell = (name, ...content) => h("td", { role: "cell", class: name }, content);
const track = (axis, ...bars) => cell("span-track", axis.ticks.map(({ at }) => placed(h("span", { class: "span-line", "aria-hidden": "true" }), at)), bars);

function turnsRow(turns, axis, chosen) {
  const marks = turns.map((each) => {
    const title = `Turn ${each.revision}: ${each.label}, after ${duration(axis.after(Date.parse(each.start)))}`;
    const mark = h("span", { class: `span-turn${each.outcome ? " bad" : ""}`, title, onclick: () => chosen(each.revision) });
    return placed(mark, axis.share(Date.parse(each.start)));
  });
  return h("tr", { role: "row" }, cell("span-what", plural(turns.length, "turn")), track(axis, marks), cell("span-begin num", "0"), cell("span-took num", duration(axis.seconds)));
}

function row(span, axis, chosen) {
  const { kind, label, start, end, revision, outcome, plan_id: child } = span;
  const from = axis.share(Date.parse(start));
  const took = h("span", {});
  elapsed(took, start, end);
  const bar = h("span", { class: `span-bar span-${kind}${outcome ? " bad" : ""}${end ? "" : " goes-on"}`, title: `${KINDS[kind]} ${label}`, onclick: () => chosen(revision) });
  return h(
    "tr",
    { role: "row", dataset: { item: "", kind } },
    cell(
      "span-what",
      h("button", { class: "link", type: "button", title: `Show turn ${number(revision)}`, onclick: () => chosen(revision) }, label),
      h("span", { class: "span-kind dim" }, KINDS[kind], outcome && h("span", { class: "span-outcome" }, ` · ${outcome}`), !end && " · goes on", child && [" · ", h("a", { href: router.planLink(child) }, "open")]),
    ),
    track(axis, placed(bar, from, (end ? axis.share(Date.parse(end)) : 1) - from)),
    cell("span-begin num", duration(axis.after(Date.parse(start)))),
    cell("span-took num", took),
  );
}
