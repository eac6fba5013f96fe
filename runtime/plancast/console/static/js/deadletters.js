// Dead letters: reason, payload and replay.

import * as api from "./api.js";
import { ask, show } from "./dialog.js";
import { h, put, reconcile } from "./dom.js";
import { bytes, number, plural, pretty, when } from "./format.js";
import { poll, soon } from "./live.js";
import { session } from "./session.js";
import { empty, failed, loading, stale } from "./states.js";
import { toast } from "./toast.js";

const EVERY = 10;
const PAGE = 50;

export function showDeadLetters({ main, signal }) {
  const list = h("ul", { class: "cards letters" });
  const notice = h("div", {});
  const place = h("div", {}, loading(4));
  const count = h("span", { class: "dim" });
  const more = h("button", { class: "button", type: "button", hidden: true }, "Show more");
  let pages = 1;
  const done = h("section", {});
  main.append(h("header", { class: "page-head" }, h("h1", {}, "Dead letters"), count), h("p", { class: "page-text" }, "Events that could not be processed are stored here and can be sent again."), notice, place, more, done);

  const ask = async () => {
    const items = [];
    let cursor = null;
    let answer;
    for (let page = 0; page < pages; page += 1) {
      answer = await api.get("dead-letters", { query: { limit: PAGE, cursor }, signal });
      items.push(...answer.items);
      cursor = answer.next;
      if (!cursor) break;
    }
    const { items: writes } = await api.get("writes", { signal });
    return { ...answer, items, writes };
  };
  const again = poll(EVERY, ask, {
    signal,
    shown: ({ items, next, total, writes }) => {
      put(notice);
      put(done, writes.length > 0 && written(writes));
      more.hidden = !next;
      count.textContent = total ? plural(total, "event") : "";
      if (!items.length) return put(place, empty("No dead letters", "Every event was processed or is in flight."));
      if (!list.isConnected) put(place, list);
      reconcile(list, items, ({ id }) => id, letter);
      return undefined;
    },
    failed: (error) => (list.isConnected ? put(notice, stale(error)) : put(place, failed(error, () => again()))),
  });
  more.addEventListener("click", () => {
    pages += 1;
    again();
  });
  addEventListener("plancast:wrote", soon(250, () => again(), signal), { signal });
}

/** Audit log of replays and forks, which no plan's timeline records. */
function written(writes) {
  return h(
    "section",
    { class: "panel writes" },
    h("header", { class: "panel-head" }, h("h2", {}, "Audit log"), h("span", { class: "dim" }, "of the last 30 days, for actions that no plan's timeline records")),
    h("ul", {}, writes.slice(0, 50).map(({ by, what, subject, at }) => h("li", {}, h("strong", {}, by), ` ${what} `, h("span", { class: "mono" }, subject), " ", h("span", { class: "dim" }, when(at))))),
  );
}

function letter(item) {
  return h(
    "li",
    { class: "card", dataset: { item: "" } },
    h("header", { class: "card-head" }, h("h2", {}, String(item.reason).replaceAll("_", " ")), h("span", { class: "dim" }, when(item.at))),
    item.detail && h("p", { class: "card-why said" }, item.detail),
    h("p", { class: "dim card-of" }, h("span", { class: "mono" }, item.subject), ` · ${bytes(item.bytes)}`, item.cut_from > 0 && ` of ${bytes(item.cut_from)}: only the first part was stored`, item.more > 0 && ` · and ${number(item.more)} more like it`, ` · number ${number(item.id)}`),
    h(
      "div",
      { class: "row" },
      h("button", { class: "button", type: "button", onclick: () => open(item) }, "Show payload"),
      session.writable && !item.cut_from && h("button", { class: "button", type: "button", onclick: () => replay(item) }, "Send again"),
    ),
  );
}

async function open({ id }) {
  try {
    const full = await api.get(`dead-letters/${encodeURIComponent(id)}`);
    const readable = full.payload !== null && full.payload !== undefined;
    show(
      `Dead letter ${id}`,
      h("dl", { class: "pairs" }, pair("Reason", full.reason), pair("Detail", full.detail), pair("Subject", full.subject), pair("Content type", full.content_type), pair("Message id", full.message_id)),
      !readable && h("p", { class: "dim" }, "The payload is neither JSON nor msgpack. In base64:"),
      h("pre", { class: "code" }, readable ? pretty(full.payload) : full.payload_base64),
    );
  } catch (error) {
    toast(error.message, { bad: true });
  }
}

function pair(name, value) {
  return value ? h("div", {}, h("dt", {}, name), h("dd", {}, String(value))) : null;
}

function replay({ id, subject }) {
  return ask({
    title: "Send the event again",
    text: `Publishes the event on ${subject} again. It returns here if it fails again.`,
    label: "Send again",
    act: async (values, key) => {
      await api.post(`dead-letters/${encodeURIComponent(id)}/replay`, {}, { key });
      toast("The event was sent again.");
      dispatchEvent(new Event("plancast:wrote"));
    },
  });
}
