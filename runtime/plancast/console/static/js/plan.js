// The page of a plan: facts, open requests, path, turns, data, children and groups.

import * as actions from "./actions.js";
import * as api from "./api.js";
import { FINISHED } from "./badges.js";
import { diffIn } from "./diff.js";
import { h, put } from "./dom.js";
import { effectsOf, openBanner, openOf, readEffects } from "./effects.js";
import { graphIn } from "./graph.js";
import { icon } from "./icons.js";
import { onKey } from "./keys.js";
import { listen, soon } from "./live.js";
import { bannersOf, dataOf, factsOf, heading, latestFork, possible } from "./plan_parts.js";
import * as router from "./router.js";
import { runningIn } from "./running.js";
import { session } from "./session.js";
import { spansIn } from "./spans.js";
import { empty, failed, loading, stale } from "./states.js";
import { tabs } from "./tabs.js";
import { timelineIn } from "./timeline.js";
import { toast } from "./toast.js";
import { treeIn } from "./tree.js";

export async function showPlan({ main, parts: [id], query, signal }) {
  document.title = `${id} · plancast`;
  put(main, loading());
  let plan;
  try {
    plan = await (query.get("new") ? begun(main, id, signal) : api.get(api.plan(id), { signal }));
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    if (error.status === 404) put(main, h("h1", {}, "No such plan"), empty(id, "It does not exist, or it has ended and was deleted after its retention."), back());
    else put(main, failed(error, () => showPlan({ main, parts: [id], query, signal })));
    return;
  }

  const head = h("div", {});
  const notice = h("div", {});
  const banners = h("div", { class: "banners" });
  const facts = h("div", {});
  const work = h("section", { class: "panel", "aria-label": "Running tasks", hidden: true });
  const picture = h("section", { class: "panel graph-panel", "aria-label": "Graph" });
  const turns = h("section", { class: "panel turns-panel", "aria-label": "Timeline" });
  const time = h("section", { class: "panel spans", "aria-label": "Time" });
  const given = h("section", { class: "panel", "aria-label": "Data" });
  const beside = h("section", { class: "panel", "aria-label": "Data side by side" });
  const outside = h("section", { class: "panel", "aria-label": "Effects" });
  const family = h("section", { class: "panel", "aria-label": "Children and groups" });

  const drawGraph = graphIn(picture, { chosen: (node) => findTurn(node) });
  const running = runningIn(work);
  const timeline = timelineIn(turns, { id, signal, compare: (revision) => compareTurn(revision), actions: turnActions });
  const spans = spansIn(time, { id, signal, chosen: (revision) => (views.open("way"), markTurn(revision)) });
  const diff = diffIn(beside, { id, signal });
  diff.reach(plan.revision);
  const tree = treeIn(family, { id, signal });
  const views = tabs(
    [
      { name: "way", label: "Way", content: h("div", { class: "way" }, picture, turns) },
      { name: "time", label: "Time", content: time, opened: () => spans.load() },
      { name: "data", label: "Data", content: h("div", { class: "data-view" }, given, h("h2", {}, "Side by side"), beside), opened: openDiff },
      { name: "effects", label: "Effects", content: outside },
      { name: "family", label: "Family", content: family, opened: () => tree.load() },
    ],
    query.get("tab") ?? "way",
    (name) => router.note(router.planLink(id, { tab: name === "way" ? "" : name })),
  );

  let effects = await effectsNow().catch(() => []);
  if (signal.aborted) return;
  put(main, head, notice, banners, facts, work, views.element);
  draw();
  loadGraph();
  keys();
  await timeline.begin(plan.revision);
  if (signal.aborted) return;
  const turn = Number(query.get("turn"));
  if (turn) markTurn(turn);
  if (!FINISHED.has(plan.status)) follow();

  function draw() {
    const { status, approval, error, result, pause_reason: held, waiting_for: waits } = plan;
    redraw(head, [status, approval !== null], () => heading(plan, press));
    const open = openOf(effects);
    redraw(banners, [status, approval, error, result, held, waits, open], () => [open.length > 0 && openBanner(open), ...bannersOf(plan, press)]);
    redraw(facts, plan, () => factsOf(plan));
    running.keep(FINISHED.has(status) ? [] : waits);
    redraw(given, [plan.goal, plan.results, plan.result], () => dataOf(plan));
    redraw(outside, effects, () => effectsOf(effects, { rollback: () => press("rollback") }));
    diff.reach(plan.revision);
    views.count("effects", effects.length);
    views.count("family", plan.children.length + plan.groups.length);
  }

  async function refresh() {
    try {
      plan = await api.get(api.plan(id), { signal });
      effects = await effectsNow();
      put(notice);
      draw();
      if (views.now() === "family") tree.load();
      if (views.now() === "time") spans.load();
      await loadGraph();
    } catch (error) {
      if (error.name !== "AbortError" && !signal.aborted) put(notice, stale(error));
    }
  }

  /** The plan's effects; most plans have none. */
  async function effectsNow() {
    return plan.effects ? readEffects(id, signal) : [];
  }

  async function loadGraph() {
    try {
      drawGraph(await api.get(`${api.plan(id)}/graph`, { signal }));
    } catch (error) {
      if (error.name !== "AbortError" && !picture.querySelector("svg.graph")) put(picture, failed(error, loadGraph));
    }
  }

  function follow() {
    const again = soon(250, refresh, signal);
    const heard = {
      change: (entry) => {
        timeline.add(entry);
        running.decided();
        again();
      },
      status: again,
      progress: running.progress,
      chunk: running.chunk,
      tokens: running.tokens,
      end: (_result, close) => {
        close();
        again();
        api.calls.dispatchEvent(new CustomEvent("live", { detail: "" }));
      },
    };
    const opened = () => {
      again();
      timeline.catchUp().catch(() => {});
    };
    listen(api.address(`${api.plan(id)}/stream`), heard, { signal, opened });
  }

  function press(name) {
    if (name === "approve" || name === "reject") return actions[name]({ plan_id: id, ...plan.approval });
    if (name === "rollback") return rollback();
    return name === "fork" ? actions.fork(plan, latestFork(plan)) : actions[name](plan);
  }

  /** A plan that has ended goes on to be rolled back. */
  async function rollback() {
    const ended = FINISHED.has(plan.status);
    if ((await actions.rollback(plan)) && ended && !signal.aborted) follow();
  }

  function keys() {
    const can = (name) => possible(plan).includes(name);
    const bind = (key, what, name) => onKey(key, what, () => can(name) && press(name), { signal });
    onKey("w", "Way", () => views.open("way"), { signal });
    onKey("t", "Time", () => views.open("time"), { signal });
    onKey("d", "Data", () => views.open("data"), { signal });
    onKey("e", "Effects", () => views.open("effects"), { signal });
    onKey("f", "Family", () => views.open("family"), { signal });
    onKey("Escape", "Back to the list", () => router.backToList(id), { signal });
    if (!session.writable) return;
    bind("s", "Signal", "signal");
    bind("x", "Cancel the plan", "cancel");
    bind("y", "Approve", "approve");
  }

  function markTurn(revision) {
    if (!timeline.mark((entry) => entry.revision === revision)) toast("This turn is not loaded yet: show earlier turns first.");
  }

  function findTurn(node) {
    const found = timeline.mark((entry) => turnOf(entry, node));
    if (!found) toast(node.visited ? "The turns of this step are not loaded yet." : "The plan has not visited this node.");
  }

  function compareTurn(revision) {
    views.open("data");
    diff.show(revision - 1, revision);
    beside.scrollIntoView({ block: "start" });
  }

  function openDiff() {
    if (!diff.shown()) diff.show(Math.max(0, plan.revision - 1), plan.revision);
  }

  function turnActions({ revision }) {
    if (!session.writable || revision > latestFork(plan)) return [];
    return [h("button", { class: "button small", type: "button", onclick: () => actions.fork(plan, revision) }, icon("fork", 14), "Fork from here")];
  }
}

/** Waits for a plan that was just submitted: it exists once its first turn is committed. */
async function begun(main, id, signal) {
  for (let tries = 0; ; tries += 1) {
    try {
      const plan = await api.get(api.plan(id), { signal });
      router.note(router.planLink(id));
      return plan;
    } catch (error) {
      if (error.status !== 404 || signal.aborted) throw error;
      if (tries === 5) put(main, h("h1", {}, "Starting"), empty("Starting", `The goal of ${id} is stored. The plan appears here after its first turn.`), back());
      await new Promise((resolve) => setTimeout(resolve, tries < 20 ? 200 : 1000));
    }
  }
}

/** Redraws if the content has changed; a focused button keeps the focus. */
function redraw(place, shown, content) {
  const print = JSON.stringify(shown);
  if (place.dataset.print === print) return;
  place.dataset.print = print;
  const focused = place.contains(document.activeElement) ? document.activeElement.textContent : null;
  put(place, content());
  if (focused !== null) [...place.querySelectorAll("a, button")].find((each) => each.textContent === focused)?.focus({ preventScroll: true });
}

/** True if a turn led to a node: it entered the state, or made the decision. */
function turnOf(entry, node) {
  const way = entry.move?.path?.length ? entry.move.path : [entry.move?.to];
  if (way.includes(node.label) || way.includes(node.id)) return true;
  const number = /(?:^|\D)(\d+)/.exec(node.id)?.[1];
  return node.kind !== "state" && Boolean(entry.decision) && Number(node.revision ?? number) === entry.revision;
}

function back() {
  return h("p", { class: "back" }, h("a", { href: router.listLink() }, "All plans"));
}
