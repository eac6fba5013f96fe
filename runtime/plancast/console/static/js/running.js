// What is under way in a plan: how far its running tasks are and the end of their output, and what a model writes.

import { h, put } from "./dom.js";

/** Characters of an output that are shown, its last ones. */
const SHOWN = 2000;

/**
 * Shows reports in `element`: `progress(report)`, `chunk(report)`, `tokens(report)`. `keep(waits)` drops tasks that are
 * not awaited, `decided()` what a model has written.
 */
export function runningIn(element) {
  const tasks = new Map();
  let reply = null;
  let awaited = new Set();

  const of = ({ task_id: id, event_type: type, attempt }, known) =>
    known?.id === id && known.attempt === attempt ? known : { id, type, attempt, fraction: null, message: "", output: "" };
  const task = (report) => {
    const found = of(report, tasks.get(report.task_id));
    tasks.set(found.id, found);
    return found;
  };
  const add = (to, text) => (to.output = (to.output + text).slice(-SHOWN));
  const draw = () => {
    const rows = [...tasks.values()].filter(({ type }) => awaited.has(type)).map(rowOf);
    if (reply) rows.push(replyOf(reply));
    element.hidden = rows.length === 0;
    put(element, rows);
  };
  return {
    progress(report) {
      Object.assign(task(report), { fraction: report.fraction, message: report.message });
      draw();
    },
    chunk(report) {
      add(task(report), typeof report.chunk === "string" ? report.chunk : `${JSON.stringify(report.chunk)}\n`);
      draw();
    },
    tokens(report) {
      reply = of(report, reply);
      add(reply, report.text);
      draw();
    },
    decided() {
      reply = null;
      draw();
    },
    keep(waits) {
      awaited = new Set(waits.map(({ request }) => request));
      draw();
    },
  };
}

function rowOf({ type, attempt, fraction, message, output }) {
  return h(
    "div",
    { class: "running" },
    h("span", { class: "mono" }, type),
    attempt > 1 && h("span", { class: "dim" }, `attempt ${attempt}`),
    h("progress", { max: 1, ...(fraction === null ? {} : { value: fraction }), "aria-label": `progress of ${type}` }),
    fraction !== null && h("span", { class: "num" }, `${Math.round(fraction * 100)} %`),
    message && h("span", {}, message),
    output && h("pre", { class: "output" }, output),
  );
}

function replyOf({ type, output }) {
  return h("div", { class: "running" }, h("span", { class: "mono" }, type), h("span", { class: "dim" }, "decides"), h("pre", { class: "output" }, output));
}
