// What the running tasks of a plan report: how far they are, and the end of their output.

import { h, put } from "./dom.js";

/** Characters of a task's output that are shown, its last ones. */
const SHOWN = 2000;

/** Shows reports in `element`: `progress(report)`, `chunk(report)`; `keep(waits)` drops tasks that are not awaited. */
export function runningIn(element) {
  const tasks = new Map();
  let awaited = new Set();

  const of = ({ task_id: id, event_type: type, attempt }) => {
    const known = tasks.get(id);
    const task = known?.attempt === attempt ? known : { type, attempt, fraction: null, message: "", output: "" };
    tasks.set(id, task);
    return task;
  };
  const draw = () => {
    const rows = [...tasks.values()].filter(({ type }) => awaited.has(type)).map(rowOf);
    element.hidden = rows.length === 0;
    put(element, rows);
  };
  return {
    progress(report) {
      Object.assign(of(report), { fraction: report.fraction, message: report.message });
      draw();
    },
    chunk(report) {
      const task = of(report);
      const text = typeof report.chunk === "string" ? report.chunk : `${JSON.stringify(report.chunk)}\n`;
      task.output = (task.output + text).slice(-SHOWN);
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
    h("progress", { max: 1, value: fraction ?? undefined, "aria-label": `progress of ${type}` }),
    fraction !== null && h("span", { class: "num" }, `${Math.round(fraction * 100)} %`),
    message && h("span", {}, message),
    output && h("pre", { class: "output" }, output),
  );
}
