// Usage of models: decisions, tokens and cost by model, tenant or planner.

import * as api from "./api.js";
import { h, put } from "./dom.js";
import { compact, cost, number, plural } from "./format.js";
import { poll } from "./live.js";
import * as router from "./router.js";
import { empty, failed, loading, stale } from "./states.js";

const EVERY = 15;
const GROUPS = [["model", "Model"], ["tenant", "Tenant"], ["planner", "Planner"]];
const SPANS = [["1", "1 hour"], ["24", "24 hours"], ["168", "7 days"]];

export function showUsage({ main, query, signal }) {
  let by = GROUPS.some(([name]) => name === query.get("by")) ? query.get("by") : "model";
  let hours = SPANS.some(([span]) => span === query.get("hours")) ? query.get("hours") : "24";
  const notice = h("div", {});
  const place = h("div", {}, loading(5));
  const groups = choice("By", GROUPS, () => by, (value) => change({ group: value }));
  const spans = choice("Period", SPANS, () => hours, (value) => change({ span: value }));
  main.append(h("header", { class: "page-head" }, h("h1", {}, "Usage and cost")), h("div", { class: "bar" }, groups, spans), notice, place);
  let there = false;
  const again = poll(EVERY, () => api.get("usage", { query: { group_by: by, hours }, signal }), {
    signal,
    shown: (report) => {
      there = true;
      put(notice, report.left_out > 0 && h("p", { class: "stale" }, `${number(report.left_out)} plans of this time are too many to count: these figures are of ${number(report.plans)}.`));
      put(place, report.items.length ? draw(report, by) : empty("No usage", "No stored plan has called a model in this period."));
    },
    failed: (error) => (there ? put(notice, stale(error)) : put(place, failed(error, () => again()))),
  });

  function change({ group = by, span = hours }) {
    by = group;
    hours = span;
    router.note(router.link(["usage"], { by: by === "model" ? "" : by, hours: hours === "24" ? "" : hours }));
    place.setAttribute("aria-busy", "true");
    Promise.resolve(again()).finally(() => place.removeAttribute("aria-busy"));
  }
}

function choice(label, options, current, changed) {
  const made = h("div", { class: "segments", role: "group", "aria-label": label }, h("span", { class: "dim" }, label));
  for (const [value, text] of options) {
    const button = h("button", { type: "button", class: "segment", "aria-pressed": String(value === current()) }, text);
    button.addEventListener("click", () => {
      for (const each of made.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === button));
      changed(value);
    });
    made.append(button);
  }
  return made;
}

function draw({ items, total, plans, slots, slot_seconds: seconds }, by) {
  const most = Math.max(...items.map((each) => each.cost), 0) || 0;
  const tokens = Math.max(...items.map((each) => each.tokens), 1);
  const label = GROUPS.find(([name]) => name === by)[1];
  return [
    h(
      "dl",
      { class: "figures" },
      figure("Cost", cost(total.cost)),
      figure("Tokens", compact(total.tokens)),
      total.cached_tokens > 0 && figure("Cached tokens", compact(total.cached_tokens)),
      figure("Decisions", compact(total.decisions)),
      plans !== undefined && figure("Plans", compact(plans)),
    ),
    overTime(slots, seconds),
    h(
      "div",
      { class: "panel table-scroll" },
      h(
        "table",
        { class: "plain usage" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, label), h("th", { scope: "col", class: "wide" }, "Share"), ...["Decisions", "Tokens", "Cached", "Cost"].map((name) => h("th", { scope: "col", class: "num" }, name)))),
        h(
          "tbody",
          {},
          items.map((each) => {
            const share = most ? each.cost / most : each.tokens / tokens;
            const part = total.cost ? each.cost / total.cost : each.tokens / Math.max(1, total.tokens);
            const fill = h("span", { class: "bar-fill" });
            fill.style.setProperty("--share", String(share));
            return h(
              "tr",
              {},
              h("td", {}, each.key ? h("span", { class: by === "model" ? "mono" : "" }, each.key) : h("span", { class: "dim" }, by === "model" ? "no model" : `no ${by}`)),
              h("td", {}, h("span", { class: "load" }, h("span", { class: "bar-track", "aria-hidden": "true" }, fill), h("span", { class: "dim" }, `${Math.round(part * 100)} %`))),
              h("td", { class: "num" }, number(each.decisions)),
              h("td", { class: "num" }, number(each.tokens)),
              h("td", { class: "num" }, number(each.cached_tokens)),
              h("td", { class: "num" }, cost(each.cost)),
            );
          }),
        ),
      ),
    ),
    h("p", { class: "dim page-text" }, `Based on ${plural(plans ?? 0, "stored plan")}. Plans that were deleted after their retention are not counted.`),
  ];
}

const UNITS = { 300: "5 minutes", 3600: "hour", 86400: "day" };

/** A bar for each slot of time; its height is the cost, or the tokens where nothing has a price. */
function overTime(slots, seconds) {
  const priced = slots.some((each) => each.cost > 0);
  const size = (each) => (priced ? each.cost : each.tokens);
  const most = Math.max(...slots.map(size));
  const at = (slot) => new Date(slot.at).toLocaleString(undefined, seconds < 86400 ? { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" } : { month: "short", day: "numeric", timeZone: "UTC" });
  const bars = slots.map((each) => {
    const said = `${at(each)}: ${cost(each.cost)}, ${number(each.tokens)} tokens, ${plural(each.decisions, "decision")}`;
    const bar = h("li", { class: each.decisions ? "used" : "", title: said, "aria-label": said });
    bar.style.setProperty("--share", String(most ? size(each) / most : 0));
    return bar;
  });
  return h(
    "figure",
    { class: "panel over-time" },
    h("figcaption", {}, `${priced ? "Cost" : "Tokens"} by ${UNITS[seconds] ?? `${seconds} s`}`, h("span", { class: "dim" }, ` · at most ${priced ? cost(most) : compact(most)}`)),
    h("ol", { class: "bars" }, bars),
    h("p", { class: "bars-ends dim" }, h("span", {}, at(slots[0])), h("span", {}, at(slots.at(-1)))),
  );
}

function figure(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}
