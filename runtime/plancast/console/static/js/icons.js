// Icons on a 16 by 16 grid.

import { svg } from "./dom.js";

const STROKES = {
  plans: "M3 4h10M3 8h10M3 12h6",
  approvals: "M2.5 8.5 6 12l7.5-8",
  deadletters: "M2 4h12v8.5H2zM2 4.5l6 4.5 6-4.5M10 10.5l2.5 0",
  runtime: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  schedules: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2zM8 5v3.2l2.4 1.6",
  usage: "M3 13V9M8 13V3M13 13V6",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9zM10.5 10.5 14 14",
  light: "M8 5.2a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.6zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
  dark: "M13 9.6A5.5 5.5 0 0 1 6.4 3 5.5 5.5 0 1 0 13 9.6z",
  auto: "M2.5 3h11v7.5h-11zM5.5 13.5h5M8 10.5v3",
  help: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2zM6.2 6.3c.2-2.3 3.8-2.2 3.7 0 0 1.4-1.9 1.4-1.9 2.9M8 11.4v.1",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  resume: "M5 3.2 12.5 8 5 12.8z",
  cancel: "M4 4l8 8M12 4l-8 8",
  signal: "M8.8 1.8 3.5 9H8l-.8 5.2L12.5 7H8z",
  rerun: "M3 8a5 5 0 0 1 8.5-3.6M13 2v3h-3M13 8a5 5 0 0 1-8.5 3.6M3 14v-3h3",
  retry: "M13 8a5 5 0 1 1-1.5-3.6M13 2v3h-3",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  leave: "M9.5 3h-6v10h6M7 8h7M11.5 5.5 14 8l-2.5 2.5",
  add: "M8 3v10M3 8h10",
  user: "M8 2.5a2.7 2.7 0 1 1 0 5.4 2.7 2.7 0 0 1 0-5.4zM2.8 13.5c.4-5 10-5 10.4 0",
  filter: "M2 3.5h12M4.5 8h7M7 12.5h2",
  redirect: "M2.5 12V8.5a3 3 0 0 1 3-3h8M10.5 2.5l3 3-3 3",
  fork: "M4 5.5v5M4 5.5c0 3 7.5 1 7.5 4M4 2.6a1.4 1.4 0 1 1 0 2.9 1.4 1.4 0 0 1 0-2.9zM4 10.5a1.4 1.4 0 1 1 0 2.9 1.4 1.4 0 0 1 0-2.9zM11.5 9.5a1.4 1.4 0 1 1 0 2.9 1.4 1.4 0 0 1 0-2.9z",
};

export function icon(name, size = 16) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", width: size, height: size, "aria-hidden": "true" },
    svg("path", { d: STROKES[name] }),
  );
}
