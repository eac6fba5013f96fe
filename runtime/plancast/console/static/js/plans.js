// The list of plans: filtered, paged, and patched in place as plans change.

import * as api from "./api.js";
import { h, put } from "./dom.js";
import { drawChips, filterPanel } from "./filters.js";
import { number, plural } from "./format.js";
import { icon } from "./icons.js";
import { onKey } from "./keys.js";
import { listen, soon } from "./live.js";
import * as router from "./router.js";
import { SORTS, flash, head, rowOf, write } from "./rows.js";
import { session } from "./session.js";
import { empty, failed, loading, stale } from "./states.js";
import { keep, kept } from "./store.js";
import { newPlan } from "./submit.js";

const FILTERS = ["status", "text", "session_id", "tenant_id", "goal", "parent", "attribute", "data", "created_after", "created_before"];
const MOST_COLUMNS = 4;
const TYPING = 250;
const PAGE_SIZES = ["25", "50", "100", "200"];

export function showPlans({ main, query, signal }) {
  const filter = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  const view = {
    sort: SORTS.has(query.get("sort")) ? query.get("sort") : "updated",
    order: query.get("order") === "asc" ? "asc" : "desc",
    limit: PAGE_SIZES.includes(kept("rows", "50")) ? Number(kept("rows", "50")) : 50,
    cursors: [null],
    next: null,
    total: null,
    rows: new Map(),
    waiting: new Map(),
    many: false,
    asked: null,
    trimmed: false,
    stop: null,
    own: namesOf(kept("columns", "")),
  };

  const chips = h("div", { class: "chips", role: "group", "aria-label": "Status" });
  const notice = h("div", { class: "notice" });
  const fresh = h("button", { class: "fresh", type: "button", hidden: true, onclick: () => load({ top: true }) });
  const body = h("tbody", { role: "rowgroup" });
  const table = h("table", { class: "plans", role: "table", "aria-label": "Plans" }, headOf(), body);
  const place = h("div", { class: "list" }, loading());
  const pager = h("nav", { class: "pager", "aria-label": "Pages of the list" });
  const search = h("input", {
    type: "search",
    class: "search-input",
    placeholder: "Plan, goal, state, session, user …",
    "aria-label": "Search plans",
    autocapitalize: "none",
    spellcheck: "false",
    value: filter.text,
  });
  const direction = h("button", { class: "button", type: "button", onclick: () => resort(view.sort) });
  const column = h("select", { "aria-label": "Order", class: "sort", onchange: () => resort(column.value, "desc") }, [...SORTS].map(([name, label]) => h("option", { value: name }, label)));
  const panel = filterPanel(filter, { set, clear, columns: view.own.join(", "), arrange });
  const toggle = h(
    "button",
    { class: "button", type: "button", "aria-expanded": String(!panel.hidden), "aria-controls": "filters", onclick: openPanel },
    icon("filter"),
    "Filter",
  );

  main.append(
    h(
      "header",
      { class: "page-head" },
      h("h1", {}, "Plans"),
      session.writable &&
        h("button", { class: "button primary", type: "button", onclick: () => newPlan() }, icon("add"), "New plan"),
    ),
    h("div", { class: "bar" }, h("label", { class: "search" }, icon("search"), search, h("kbd", { class: "wide-only" }, "/")), toggle, h("div", { class: "sorting", role: "group", "aria-label": "Sort" }, column, direction)),
    panel,
    chips,
    notice,
    h("div", { class: "fresh-place", "aria-live": "polite" }, fresh),
    place,
    pager,
  );
  count({});
  showOrder();

  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ text: search.value.trim() }), TYPING);
  });
  signal.addEventListener("abort", () => clearTimeout(typing));
  onKey("/", "Search", () => (search.focus(), search.select()), { signal });
  onKey("n", "Newer plans", () => turn(-1), { signal });
  onKey("o", "Older plans", () => turn(1), { signal });
  if (session.writable) onKey("c", "New plan", () => newPlan(), { signal });

  router.rememberList(router.link(["plans"], Object.fromEntries(query)));
  const arrived = new Map();
  const heard = new Map(); // changes since the list was last requested, which its response may lack
  const patch = soon(120, patchAll, signal);
  // More has changed than the stream listed.
  const reload = soon(1000, () => (calm() ? load({}) : ((view.many = true), tellFresh())), signal);
  load({});
  follow();

  // Query.

  function set(change) {
    Object.assign(filter, change);
    view.cursors = [null];
    const address = router.link(["plans"], { ...filter, sort: view.sort === "updated" ? "" : view.sort, order: view.order === "asc" ? "asc" : "" });
    router.rememberList(address);
    router.note(address);
    load({});
    if (Object.keys(change).some((name) => name !== "status")) follow();
  }

  function asked() {
    const own = Object.fromEntries(Object.entries(filter).filter(([, value]) => value));
    return { ...own, details: true, sort: view.sort, order: view.order, limit: view.limit, cursor: view.cursors.at(-1) };
  }

  async function load({ top = false }) {
    view.asked?.abort();
    const asking = (view.asked = new AbortController());
    heard.clear();
    const leave = () => asking.abort();
    signal.addEventListener("abort", leave, { once: true });
    if (top) view.cursors = [null];
    place.setAttribute("aria-busy", "true");
    try {
      const answer = await api.get("plans", { query: asked(), signal: asking.signal });
      put(notice);
      draw(answer);
      if (top) window.scrollTo({ top: 0 });
    } catch (error) {
      if (error.name === "AbortError") return;
      if (view.rows.size && body.isConnected) put(notice, stale(error));
      else put(place, failed(error, () => load({})));
    } finally {
      signal.removeEventListener("abort", leave);
      if (view.asked === asking) place.removeAttribute("aria-busy");
    }
  }

  async function turn(by) {
    if (by < 0) {
      if (view.cursors.length < 2) return;
      view.cursors.pop();
    } else {
      if (view.trimmed) await load({}); // new rows at the top have pushed others off the page, so the next page starts elsewhere
      if (!view.next) return;
      view.cursors.push(view.next);
    }
    await load({});
    window.scrollTo({ top: 0 });
    body.querySelector("a")?.focus({ preventScroll: true });
  }

  // Display.

  function draw({ items, next, total, counts, searched }) {
    if (searched) put(notice, filter.data && h("p", { class: "dim" }, `Searched the data of the ${plural(searched, "plan")} updated last.`));
    view.next = next;
    view.total = total ?? null;
    view.trimmed = false;
    view.waiting.clear();
    view.many = false;
    tellFresh();
    const focused = router.cameFrom() || document.activeElement?.closest?.("tr")?.dataset.key;
    view.rows.clear();
    put(body, items.map((each) => row(each)));
    if (items.length) put(place, table);
    else put(place, nothing());
    if (focused && view.rows.has(focused)) view.rows.get(focused).element.querySelector("a").focus();
    columns();
    if (counts) count(counts);
    drawPager(items.length);
    for (const [id, plan] of heard) if (!(view.rows.get(id)?.plan.revision >= plan.revision)) arrive(plan);
  }

  function nothing() {
    const narrowed = FILTERS.some((name) => filter[name]);
    if (narrowed) {
      const all = h("button", { class: "link", type: "button", onclick: clear }, "Show all plans");
      return empty("No matching plans", "No plan matches these filters. ", all);
    }
    return empty("No plans yet", "Submit a goal with ", h("code", {}, "plancast submit EVENT --data '{…}'"), ", or from here. The plan appears automatically.");
  }

  function row(plan) {
    const element = rowOf(plan, view.own);
    view.rows.set(plan.plan_id, { plan, element });
    return element;
  }

  function columns() {
    for (const name of ["tenant", "session", "user"]) {
      const any = [...view.rows.values()].some(({ plan }) => plan[`${name}_id`]);
      table.classList.toggle(`no-${name}`, !any);
    }
    table.classList.toggle("no-attributes", ![...view.rows.values()].some(({ plan }) => Object.keys(plan.attributes ?? {}).length));
  }

  function count(counts) {
    drawChips(chips, filter.status, counts, set);
  }

  /** True if the list is in the order in which plans change or are created. */
  const inTime = () => view.order === "desc" && (view.sort === "updated" || view.sort === "created");

  function drawPager(shown) {
    const [back, forth] = inTime() ? ["Newer", "Older"] : ["Previous", "Next"];
    const pages = view.cursors.length;
    const from = (pages - 1) * view.limit;
    const range = shown ? `${number(from + 1)}–${number(from + shown)}${view.total === null ? "" : ` of ${number(view.total)}`}` : "";
    const size = h("select", { "aria-label": "Plans per page", onchange: () => resize(size.value) }, PAGE_SIZES.map((each) => h("option", { value: each, selected: Number(each) === view.limit }, `${each} per page`)));
    put(
      pager,
      shown > 0 && size,
      h("span", { class: "dim pager-range" }, range),
      h("button", { class: "button", type: "button", disabled: pages < 2, onclick: () => turn(-1), title: `${back} (n)` }, back),
      h("button", { class: "button", type: "button", disabled: !view.next, onclick: () => turn(1), title: `${forth} (o)` }, forth),
    );
    pager.hidden = !shown && pages < 2;
  }

  function resize(value) {
    keep("rows", value);
    view.limit = Number(value);
    view.cursors = [null];
    load({ top: true });
  }

  // Live changes.

  function follow() {
    view.stop?.();
    const { status: _any, data: _data, ...rest } = filter; // a plan that leaves the status is to be seen leaving
    const on = { plan: (plan) => (heard.set(plan.plan_id, plan), arrive(plan)), counts: filter.data ? () => {} : count, more: reload };
    const following = new AbortController();
    signal.addEventListener("abort", () => following.abort(), { once: true });
    const close = listen(api.address("plans/stream", { ...rest, details: true }), on, { signal: following.signal, opened: () => load({}) });
    view.stop = () => (following.abort(), close());
  }

  function arrive(plan) {
    arrived.set(plan.plan_id, plan);
    patch();
  }

  function patchAll() {
    const changes = [...arrived.values()];
    arrived.clear();
    for (const plan of changes) {
      const known = view.rows.get(plan.plan_id);
      if (known) {
        if (plan.revision < known.plan.revision) continue;
        write(known.element, plan, known.plan);
        known.plan = plan;
        known.element.classList.toggle("left", Boolean(filter.status) && plan.status !== filter.status);
        flash(known.element);
      } else if ((!filter.status || plan.status === filter.status) && onTop(plan)) view.waiting.set(plan.plan_id, plan);
    }
    if (view.waiting.size && (filter.data || !inTime())) {
      view.waiting.clear(); // the server knows which of them belong here, and where
      view.many = true;
    }
    if (view.waiting.size && calm()) insert();
    tellFresh();
    columns();
  }

  /** True for a plan that belongs above the first row: any that has changed, or of this order only those created since. */
  function onTop(plan) {
    const first = view.rows.get(body.firstElementChild?.dataset.key);
    return view.sort === "updated" || !first || plan.created_at > first.plan.created_at;
  }

  /** True if rows can be inserted at the top without moving rows that the user reads or points at. */
  function calm() {
    return (
      view.cursors.length === 1 &&
      window.scrollY < 40 &&
      !table.matches(":hover") &&
      !table.contains(document.activeElement) &&
      !place.hasAttribute("aria-busy")
    );
  }

  function insert() {
    const newest = [...view.waiting.values()].sort((a, b) => (a[`${view.sort}_at`] < b[`${view.sort}_at`] ? 1 : -1));
    view.waiting.clear();
    const made = newest.slice(0, view.limit).map((plan) => row(plan));
    body.prepend(...made);
    made.forEach(flash);
    if (view.total !== null) view.total += newest.length;
    while (body.rows.length > view.limit) {
      view.rows.delete(body.lastElementChild.dataset.key);
      body.lastElementChild.remove();
      view.trimmed = true;
    }
    if (!table.isConnected) put(place, table);
    if (view.trimmed && !view.next) view.next = "later"; // `turn` reloads first
    drawPager(body.rows.length);
  }

  function tellFresh() {
    const n = view.waiting.size;
    fresh.hidden = n === 0 && !view.many;
    if (view.many) fresh.textContent = "Many plans have changed. Show them";
    else fresh.textContent = n ? `${number(n)} more ${n === 1 ? "plan has" : "plans have"} changed. Show ${n === 1 ? "it" : "them"}` : "";
  }

  /** Shows these search attributes in columns of their own; kept in this browser. */
  function arrange(text) {
    view.own = namesOf(text);
    keep("columns", view.own.join(","));
    put(table, headOf(), body);
    load({});
  }

  function openPanel() {
    panel.hidden = !panel.hidden;
    toggle.setAttribute("aria-expanded", String(!panel.hidden));
    if (!panel.hidden) panel.querySelector("input").focus();
  }

  function clear() {
    search.value = "";
    for (const input of panel.querySelectorAll("input:not(#own-columns)")) input.value = "";
    set(Object.fromEntries(FILTERS.map((name) => [name, ""])));
    search.focus();
  }

  function headOf() {
    return head(view.own, view, (name) => resort(name));
  }

  /** Sorts by a column; by the same column again, the other way. */
  function resort(name, order = view.sort === name && view.order === "desc" ? "asc" : "desc") {
    Object.assign(view, { sort: name, order });
    const focused = document.activeElement?.closest?.("th")?.className;
    showOrder();
    if (focused) [...table.querySelectorAll("th")].find((each) => each.className === focused)?.querySelector("button")?.focus();
    set({});
  }

  function showOrder() {
    put(table, headOf(), body);
    column.value = view.sort;
    const words = view.order === "desc" ? "Descending" : "Ascending";
    put(direction, view.order === "desc" ? "↓" : "↑");
    direction.title = `${words}: reverse the order`;
    direction.setAttribute("aria-label", direction.title);
  }
}

function namesOf(text) {
  const names = text.split(",").map((each) => each.trim());
  return [...new Set(names.filter(Boolean))].slice(0, MOST_COLUMNS);
}
