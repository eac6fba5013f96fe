// The deployment: dispatchers, hosts, reasoners and workers with their load, and NATS with its streams.

import * as api from "./api.js";
import { alive } from "./badges.js";
import { h, put } from "./dom.js";
import { bytes, compact, duration, number } from "./format.js";
import { poll } from "./live.js";
import { empty, failed, loading, stale } from "./states.js";

const EVERY = 3;

export function showDeployment({ main, signal }) {
  const notice = h("div", {});
  const place = h("div", { class: "panels" }, loading(8));
  main.append(h("header", { class: "page-head" }, h("h1", {}, "Runtime")), notice, place);
  let there = false;
  let print = "";
  const again = poll(EVERY, () => api.get("deployment", { signal }), {
    signal,
    shown: (now) => {
      there = true;
      put(notice, now.source === "nats" && h("p", { class: "stale" }, "The console is not connected to Ray: it shows only what NATS records about the actors."));
      const text = JSON.stringify(now);
      if (text === print) return;
      print = text;
      const scrolled = window.scrollY;
      put(place, dispatchers(now.dispatchers), now.source === "ray" && [hosts(now.hosts), pools(now.pools), reasoners(now.reasoners)], workers(now.workers), nats(now.nats));
      window.scrollTo(0, scrolled);
    },
    failed: (error) => (there ? put(notice, stale(error)) : put(place, failed(error, () => again()))),
  });
}

function panel(title, text, ...content) {
  return h("section", { class: "panel" }, h("header", { class: "panel-head" }, h("h2", {}, title), text && h("span", { class: "dim" }, text)), content);
}

/** `columns`: `[label, cell(item), "num"?]`. Empty columns are left out. */
function table(name, items, columns) {
  const shown = columns.filter(([, cell]) => items.some((item) => ![null, undefined, ""].includes(cell(item))));
  return h(
    "div",
    { class: "table-scroll", tabindex: "0", role: "group", "aria-label": name },
    h(
      "table",
      { class: "plain" },
      h("thead", {}, h("tr", {}, shown.map(([label, , kind]) => h("th", { scope: "col", class: kind ?? "" }, label)))),
      h("tbody", {}, items.map((item) => h("tr", {}, shown.map(([, cell, kind]) => h("td", { class: kind ?? "" }, cell(item) ?? ""))))),
    ),
  );
}

/** A bar of the used share of a limit; without a limit, relative to the highest value. */
function load(value, most, text, limited = false) {
  if (value === null || value === undefined) return null;
  const share = most > 0 ? Math.min(1, value / most) : 0;
  const bar = h("span", { class: `bar-fill${limited && share > 0.9 ? " high" : ""}` });
  bar.style.setProperty("--share", String(share));
  return h("span", { class: "load" }, h("span", { class: "bar-track", "aria-hidden": "true" }, bar), h("span", {}, text ?? compact(value)));
}

const largest = (items, name) => Math.max(1, ...items.map((each) => each[name] ?? 0));
const n = (name) => (item) => (item[name] === null || item[name] === undefined ? null : number(item[name]));
/** A counter; its column is left out when it is zero everywhere. */
const trouble = (name) => (item) => (item[name] ? h("span", { class: "count-bad" }, number(item[name])) : null);
const up = ["Up", (item) => (item.up_seconds === null || item.up_seconds === undefined ? null : duration(item.up_seconds)), "num"];
const restarts = ["Restarts", trouble("restarts"), "num"];
const fault = ["", (item) => (item.error ? h("span", { class: "turn-error" }, item.error) : null)];
const state = ["", (item) => (item.alive === null || item.alive === undefined ? null : alive(item.alive))];
const named = ["Name", (item) => h("span", { class: "mono" }, item.name)];

function dispatchers(items) {
  if (!items.length) return panel("Dispatchers", "", empty("No dispatcher is running", "Events wait in their streams until one starts."));
  const most = largest(items, "outstanding");
  return panel(
    "Dispatchers",
    "read events and dispatch them to hosts",
    table("Dispatchers", items, [
      named,
      state,
      ["In flight", (item) => load(item.outstanding, most)],
      ["Waiting", n("waiting"), "num"],
      ["Parked", n("parked"), "num"],
      ["Dispatched", n("dispatched"), "num"],
      ["Deferred", trouble("put_off"), "num"],
      ["Hosts lost", trouble("hosts_lost"), "num"],
      ["Stalled plans", trouble("stalled"), "num"],
      restarts,
      up,
      fault,
    ]),
  );
}

function hosts(items) {
  if (!items.length) return panel("Hosts", "", empty("No host is running", "Plans make no progress until one starts."));
  const most = largest(items, "plans");
  return panel(
    "Hosts",
    "run the turns of plans",
    table("Hosts", items, [
      named,
      state,
      ["Kind", (item) => item.kind],
      ["Plans in memory", (item) => load(item.plans, most)],
      ["In a turn", n("busy_plans"), "num"],
      ["Turns", n("turns"), "num"],
      restarts,
      ["Memory", (item) => (item.rss_bytes ? bytes(item.rss_bytes) : null), "num"],
      up,
      fault,
    ]),
  );
}

function pools(items) {
  if (!items.length) return null;
  return panel(
    "Pool of dedicated hosts",
    "gives plans hosts of their own",
    table("Pool of dedicated hosts", items, [
      named,
      state,
      ["Hosts", (item) => load(item.hosts, item.max, item.max ? `${number(item.hosts)} of ${number(item.max)}` : undefined, true)],
      ["With a plan", n("held"), "num"],
      ["Free", n("free"), "num"],
      ["Starting", n("starting"), "num"],
      ["Waiting plans", n("waiting"), "num"],
      ["Granted", n("granted"), "num"],
      ["Delayed", trouble("delayed"), "num"],
      ["Lost", trouble("lost"), "num"],
      ["Failed starts", trouble("failed_starts"), "num"],
      restarts,
      up,
      ["", (item) => (item.error || item.failure ? h("span", { class: "turn-error" }, item.error || item.failure) : null)],
    ]),
  );
}

function reasoners(items) {
  if (!items.length) return panel("Reasoners", "", empty("No reasoner is running", "No planner of this deployment calls a model."));
  return panel(
    "Reasoners",
    "call the models",
    table("Reasoners", items, [
      named,
      state,
      ["Reasoners", (item) => (item.max ? `${number(item.reasoners)} (${number(item.min)} to ${number(item.max)})` : null), "num"],
      ["In flight", (item) => load(item.outstanding, item.slots, item.slots ? `${number(item.outstanding)} of ${number(item.slots)}` : undefined, true)],
      ["Waiting", n("waiting"), "num"],
      ["Answered", n("answered"), "num"],
      ["Failed", trouble("failed"), "num"],
      restarts,
      up,
      fault,
    ]),
  );
}

function workers(items) {
  if (!items.length) return null;
  return panel(
    "Workers",
    "run the tasks of plans",
    table("Workers", items, [named, state, ["Tasks", (item) => h("span", { class: "tasks" }, (item.tasks ?? []).map((each) => h("code", {}, each)))], restarts, up, fault]),
  );
}

function nats(info) {
  const about = [info.version && `version ${info.version}`, info.address, info.round_trip ? `responds in ${duration(info.round_trip)}` : "", info.storage_bytes ? `${bytes(info.storage_bytes)} stored` : ""].filter(Boolean);
  const rows = info.streams.flatMap((stream) => [{ stream }, ...stream.consumers.map((consumer) => ({ stream, consumer }))]);
  const full = (stream) => (stream.max_bytes > 0 ? load(stream.bytes, stream.max_bytes, `${bytes(stream.bytes)} of ${bytes(stream.max_bytes)}`, true) : bytes(stream.bytes));
  return panel(
    "NATS",
    about.join(" · "),
    table("Streams and consumers", rows, [
      ["Stream and consumers", ({ stream, consumer }) => h("span", { class: `mono${consumer ? " below" : ""}` }, consumer ? consumer.name : stream.name)],
      ["Messages", ({ stream, consumer }) => (consumer ? null : number(stream.messages)), "num"],
      ["Size", ({ stream, consumer }) => (consumer ? null : full(stream))],
      ["Pending", ({ consumer }) => consumer && number(consumer.pending), "num"],
      ["Unacknowledged", ({ consumer }) => consumer && number(consumer.ack_pending), "num"],
      ["Redelivered", ({ consumer }) => consumer && number(consumer.redelivered), "num"],
    ]),
  );
}
