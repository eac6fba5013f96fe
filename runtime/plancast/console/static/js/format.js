// Formats times, amounts and ids. Pure, except for the clock at the end.

import { h } from "./dom.js";

const count = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 20 });
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

export const number = (value) => (value === null || value === undefined ? "–" : count.format(value));
/** A number, or a decimal as text, with all of its digits. */
export const exact = (value) => (typeof value === "number" ? whole.format(value) : value);
export const compact = (value) =>
  value === null || value === undefined ? "–" : Math.abs(value) < 10000 ? count.format(value) : short.format(value);

/** US dollars, with enough digits to be nonzero. */
export function cost(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "$0";
  if (value < 0.0001) return "< $0.0001";
  return `$${value.toFixed(value < 0.1 ? 4 : 2)}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest < 10 && unit ? rest.toFixed(1) : Math.round(rest)} ${units[unit]}`;
}

/** Seconds as a duration. */
export function duration(seconds) {
  const s = Math.abs(seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s < 600 && s % 60 >= 1 ? ` ${Math.floor(s % 60)} s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)} h${s % 3600 >= 60 ? ` ${Math.floor((s % 3600) / 60)} min` : ""}`;
  return `${Math.floor(s / 86400)} d`;
}

export function ago(at, now = Date.now()) {
  const s = (now - at) / 1000;
  if (s < -1) return `in ${coarse(-s)}`;
  if (s < 2) return "now";
  if (s < 86400 * 14) return `${coarse(s)} ago`;
  return day.format(at);
}

function coarse(s) {
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

export const absolute = (iso) => full.format(new Date(iso));

/** A time as `3 min ago`, updated as time passes; the tooltip has the exact time. */
export function when(iso, { words = "" } = {}) {
  if (!iso) return h("span", { class: "dim" }, "–");
  const at = Date.parse(iso);
  const made = h("time", { datetime: iso, title: `${absolute(iso)} (${iso})`, dataset: { at: String(at), words } });
  made.textContent = words + ago(at);
  return made;
}

/** The time left until a deadline, marked in its last hour. */
export function deadline(iso) {
  const left = (Date.parse(iso) - Date.now()) / 1000;
  return h("span", { class: left < 3600 ? "due soon" : "due", title: iso }, left > 0 ? ` · due in ${duration(left)}` : " · overdue");
}

/** Replaces the time of an element. */
export function setWhen(element, iso) {
  const time = element.querySelector("time");
  if (!time || time.getAttribute("datetime") === iso) return;
  element.replaceChildren(when(iso));
}

/** The time from `from` to `to`, or to now, which goes on. */
export function elapsed(element, from, to) {
  if (to) delete element.dataset.since;
  else element.dataset.since = String(Date.parse(from));
  element.textContent = duration(((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000);
}

setInterval(() => {
  if (document.hidden) return;
  const now = Date.now();
  for (const each of document.querySelectorAll("[data-since]")) {
    const text = duration((now - Number(each.dataset.since)) / 1000);
    if (each.textContent !== text) each.textContent = text;
  }
  for (const each of document.querySelectorAll("time[data-at]")) {
    const text = each.dataset.words + ago(Number(each.dataset.at), now);
    if (each.textContent !== text) each.textContent = text;
  }
}, 1000);

/** Indented JSON; text is unchanged. */
export const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

export const plural = (n, word) => `${number(n)} ${n === 1 ? word : `${word}s`}`;
