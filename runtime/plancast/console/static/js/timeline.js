// The turns of a plan: event, move, decisions with reasons, sent events and user.

import * as api from "./api.js";
import { h, put } from "./dom.js";
import { absolute, compact, cost, duration, number, plural, pretty, when } from "./format.js";
import { failed, loading } from "./states.js";
import { keep, kept } from "./store.js";

const PAGE = 100;

/** The timeline in `place`: the newest page, and earlier turns on request. */
export function timelineIn(place, { id, signal, compare, actions }) {
  const entries = new Map();
  let newestFirst = kept("timeline", "oldest") === "newest";
  let earliest = Infinity;
  const list = h("ol", { class: "turns" });
  const earlier = h("button", { class: "button", type: "button", hidden: true, onclick: () => before() });
  const order = h("button", { class: "button quiet small", type: "button", onclick: flip });
  const count = h("span", { class: "dim" });
  put(place, loading(4));

  function flip() {
    newestFirst = !newestFirst;
    keep("timeline", newestFirst ? "newest" : "oldest");
    draw();
  }

  async function page(after, limit = PAGE) {
    const { items, next } = await api.get(`${api.plan(id)}/history`, { query: { after, limit }, signal });
    for (const entry of items) entries.set(entry.revision, entry);
    return { items, next };
  }

  /** Loads the newest turns, up to `revision`. */
  async function begin(revision) {
    try {
      earliest = Math.max(0, revision - PAGE);
      await page(earliest);
      draw();
    } catch (error) {
      if (error.name !== "AbortError") put(place, failed(error, () => begin(revision)));
    }
  }

  async function before() {
    const from = Math.max(0, earliest - PAGE);
    earlier.disabled = true;
    try {
      await page(from, earliest - from);
      earliest = from;
      draw();
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    } finally {
      earlier.disabled = false;
    }
  }

  /** Loads the turns that the stream missed. */
  async function catchUp() {
    if (!entries.size) return; // still loading
    let last = Math.max(0, ...entries.keys());
    for (;;) {
      const { items, next } = await page(last);
      if (!items.length) break;
      last = items.at(-1).revision;
      if (!next) break;
    }
    draw();
  }

  function add(entry) {
    const fresh = !entries.has(entry.revision);
    const last = Math.max(0, ...entries.keys());
    entries.set(entry.revision, entry);
    if (fresh && entry.revision > last + 1 && last > 0) catchUp().catch(() => {});
    else draw(fresh ? entry.revision : 0);
  }

  function draw(fresh = 0) {
    const sorted = [...entries.values()].sort((a, b) => a.revision - b.revision);
    const shown = newestFirst ? [...sorted].reverse() : sorted;
    const had = new Map([...list.children].map((each) => [each.dataset.revision, each]));
    const made = shown.map((entry) => {
      const before = entries.get(entry.revision - 1);
      const old = had.get(String(entry.revision));
      if (old && old.entry === entry) return old;
      const element = turn(entry, before, { compare, actions });
      element.entry = entry;
      if (entry.revision === fresh) element.classList.add("moved");
      return element;
    });
    // Existing elements are kept, so that open details stay open and nothing jumps.
    made.forEach((element, index) => list.children[index] !== element && list.insertBefore(element, list.children[index] ?? null));
    while (list.children.length > made.length) list.lastElementChild.remove();
    earlier.hidden = earliest <= 0;
    earlier.textContent = `Show earlier turns (${number(Math.max(0, earliest))})`;
    order.textContent = newestFirst ? "Newest first" : "Oldest first";
    order.title = "Reverse the order";
    count.textContent = plural(Math.max(0, ...entries.keys()), "turn");
    const bar = h("div", { class: "turns-bar" }, count, order);
    const parts = newestFirst ? [bar, list, earlier] : [bar, earlier, list];
    if (!list.isConnected || place.children[1] !== parts[1]) put(place, parts);
    else place.firstElementChild.replaceWith(bar);
  }

  /** Marks the turns for which `wanted` is true, and scrolls to the first of them. */
  function mark(wanted) {
    let first = null;
    for (const each of list.children) {
      const yes = wanted(each.entry);
      each.classList.toggle("marked", yes);
      if (yes && !first) first = each;
    }
    first?.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    return first !== null;
  }

  return { begin, add, catchUp, mark };
}

function turn(entry, before, { compare, actions }) {
  const { event, move } = entry;
  const took = before ? (Date.parse(entry.at) - Date.parse(before.at)) / 1000 : null;
  const who = entry.by || "";
  const head = h(
    "header",
    { class: "turn-head" },
    h("a", { class: "turn-number", href: `#turn-${entry.revision}`, title: `Turn ${entry.revision}`, onclick: (e) => e.preventDefault(), tabindex: "-1" }, `#${entry.revision}`),
    h("span", { class: "turn-event" }, event?.type ?? "–"),
    who && h("span", { class: "who-did", title: "User" }, "by ", h("strong", {}, who)),
    h("span", { class: "turn-time" }, took !== null && took >= 0.001 && h("span", { class: "dim", title: "Time since the previous turn" }, `+${duration(took)} `), when(entry.at)),
  );
  return h(
    "li",
    { class: `turn ${kind(entry)}`, tabindex: "0", "aria-label": `Turn ${entry.revision}, ${event?.type ?? ""}`, dataset: { item: "", revision: String(entry.revision) } },
    head,
    moved(move),
    decisions(entry).map(decided),
    effects(entry.effects),
    (entry.notes ?? []).map((text) => h("p", { class: "turn-note" }, typeof text === "string" ? text : pretty(text))),
    entry.error && h("p", { class: "turn-error" }, typeof entry.error === "string" ? entry.error : pretty(entry.error)),
    more(entry, { compare, actions }),
  );
}

function kind(entry) {
  if (entry.error || entry.status === "failed") return "turn-failed";
  if (decisions(entry).length) return "turn-decided";
  return entry.by ? "turn-person" : "";
}

const decisions = (entry) => entry.decisions ?? (entry.decision ? [entry.decision] : []);

function moved(move) {
  if (!move || (move.from === move.to && !move.path)) return null;
  const way = (move.path?.length ? [move.from, ...move.path] : [move.from, move.to]).filter(Boolean);
  return h("p", { class: "turn-move" }, way.flatMap((state, index) => [index > 0 && h("span", { class: "arrow-sign", "aria-label": "to" }, "→"), h("span", { class: "state-name" }, state)]));
}

function decided(decision) {
  const what = decision.event_type ?? decision.target ?? "";
  const facts = [
    decision.model,
    decision.tokens ? `${compact(decision.tokens)} tokens${decision.cached_tokens ? ` (${compact(decision.cached_tokens)} cached)` : ""}` : null,
    decision.cost ? cost(decision.cost) : null,
    decision.seconds ? duration(decision.seconds) : null,
    decision.model ? sureness(decision) : null,
    decision.repairs ? `${plural(decision.repairs, "repair")}` : null,
  ].filter(Boolean);
  return h(
    "div",
    { class: "decision" },
    h("p", { class: "decision-head" }, h("span", { class: "decision-action" }, decision.action), what && h("code", {}, what)),
    decision.reasoning && h("p", { class: "decision-why" }, decision.reasoning),
    facts.length > 0 && h("p", { class: "decision-facts" }, facts.flatMap((each, index) => [index > 0 && " · ", each])),
  );
}

function sureness({ confidence, confidence_given: given }) {
  if (given) return `${Math.round(confidence * 100)} % sure`;
  return given === false ? "confidence not given" : "confidence unknown";
}

const SIGNS = { set_timer: "◷", cancel_timer: "◷" };

function effects(list) {
  if (!list?.length) return null;
  return h(
    "ul",
    { class: "effects", "aria-label": "Sent events" },
    list.map((effect) => {
      const name = effect.event_type ?? effect.subject ?? effect.name ?? "";
      const kind = effect.kind === "event" ? "" : String(effect.kind ?? "").replaceAll("_", " ");
      return h("li", {}, h("span", { class: "effect-kind", "aria-hidden": "true" }, SIGNS[effect.kind] ?? "→"), kind && h("span", { class: "effect-kind" }, kind), name && h("code", {}, name));
    }),
  );
}

function more(entry, { compare, actions }) {
  const content = h("div", { class: "turn-more-body" });
  const details = h("details", { class: "turn-more" }, h("summary", {}, "Details"), content);
  details.addEventListener("toggle", () => {
    if (!details.open || content.hasChildNodes()) return;
    const { event } = entry;
    const row = h("div", { class: "row" }, h("button", { class: "button small", type: "button", onclick: () => compare(entry.revision) }, "Show changes"));
    put(
      content,
      h("dl", { class: "pairs" }, pair("At", absolute(entry.at)), pair("Event", event?.id), pair("From", event?.source), pair("User", event?.user_id)),
      event?.data !== undefined && [h("h4", {}, "Event data"), h("pre", { class: "code" }, pretty(event.data))],
      entry.effects?.length > 0 && [h("h4", {}, "Sent events"), h("pre", { class: "code" }, pretty(entry.effects))],
      row,
    );
    row.append(...actions(entry));
  });
  return details;
}

function pair(name, value) {
  return value ? h("div", {}, h("dt", {}, name), h("dd", {}, value)) : null;
}
