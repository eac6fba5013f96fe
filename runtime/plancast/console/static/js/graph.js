// Draws a plan's states or decisions as a graph, in the server's layout, with the path that the plan took.

import { h, put, svg } from "./dom.js";
import { boxes, route } from "./edges.js";
import { icon } from "./icons.js";

const MARGIN = 14;
const SMALLEST = 0.5;
const CHAIN = 0.62;
const STRETCHES = [1, 1.25, 1.6, 2, 2.6];
let drawn = 0;

/** Draws into `place` and updates it. `chosen(node)` is called when a node is selected. */
export function graphIn(place, { chosen }) {
  let scale = 0; // 0: as large as fits
  let last = null;
  let current = "";
  const canvas = h("div", { class: "graph-canvas", tabindex: "0", role: "group", "aria-label": "Graph; scrolls" });
  const zoom = (by) => () => {
    if (!last) return;
    scale = by === 0 ? 0 : Math.min(2.5, Math.max(0.3, (scale || fitting()) * by));
    size();
  };
  const tools = h(
    "div",
    { class: "graph-tools", role: "group", "aria-label": "Size of the graph" },
    h("button", { class: "tool", type: "button", title: "Smaller", "aria-label": "Smaller", onclick: zoom(1 / 1.25) }, "−"),
    h("button", { class: "tool", type: "button", title: "Fit to view", "aria-label": "Fit to view", onclick: zoom(0) }, icon("fit", 14)),
    h("button", { class: "tool", type: "button", title: "Larger", "aria-label": "Larger", onclick: zoom(1.25) }, "+"),
  );
  put(place, canvas, tools, legend());
  new ResizeObserver(() => last && size()).observe(canvas);

  function fitting() {
    const room = canvas.clientWidth - 2;
    return Math.min(1, Math.max(SMALLEST, room / last.width));
  }

  function size() {
    const used = scale || fitting();
    last.element.setAttribute("width", String(Math.round(last.width * used)));
    last.element.setAttribute("height", String(Math.round(last.height * used)));
  }

  /** Scrolls the current node into view within the graph, without scrolling the page. */
  function follow(id) {
    if (id === current) return;
    current = id;
    const box = canvas.querySelector(".node.current")?.getBoundingClientRect();
    const view = canvas.getBoundingClientRect();
    if (!box || (box.top >= view.top && box.bottom <= view.bottom)) return;
    canvas.scrollTop += box.top - view.top - view.height / 2;
    canvas.scrollLeft += box.left - view.left - view.width / 2;
  }

  return function draw(graph) {
    const focused = canvas.contains(document.activeElement) ? document.activeElement.dataset.node : null;
    last = picture(graph, chosen);
    put(canvas, last.element);
    size();
    follow(graph.nodes.find((node) => node.current)?.id ?? "");
    if (focused) canvas.querySelector(`[data-node="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  };
}

function picture(graph, chosen) {
  drawn += 1;
  const name = `g${drawn}`;
  const { placed, lines, labels } = routed(graph);
  const bounds = around([...placed.values()], lines, labels);
  const element = svg(
    "svg",
    { class: "graph", viewBox: `${bounds.x} ${bounds.y} ${bounds.width} ${bounds.height}`, role: "group", "aria-label": told(graph) },
    svg("defs", {}, arrow(`${name}-taken`, "taken"), arrow(`${name}-open`, "open")),
    // Taken edges are drawn on top of the others.
    [...lines].sort((a, b) => (a.edge.taken > 0) - (b.edge.taken > 0)).map((line) => drawLine(line, name)),
    labels.map(drawLabel),
    [...placed.values()].map((box) => drawNode(box, chosen)),
  );
  return { element, width: bounds.width, height: bounds.height };
}

/** Nodes, edges and labels; the rows are as far apart as the labels between them need. */
export function routed(graph) {
  // The edges of a chain have no labels, so its nodes are closer together than states.
  for (const stretch of graph.kind === "decisions" ? [CHAIN] : STRETCHES) {
    const placed = boxes(graph.nodes.map((node) => ({ ...node, y: node.y * stretch })));
    const found = { placed, ...route(graph.edges, placed) };
    if (!found.overlaps || stretch === STRETCHES.at(-1) || graph.kind === "decisions") return found;
  }
}

function arrow(id, kind) {
  return svg(
    "marker",
    { id, class: `arrow ${kind}`, viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" },
    svg("path", { d: "M0 .8 7.4 4 0 7.2z" }),
  );
}

function drawLine({ edge, d }, name) {
  const taken = edge.taken > 0;
  return svg(
    "path",
    { class: `edge ${taken ? "taken" : "open"}`, d, "marker-end": `url(#${name}-${taken ? "taken" : "open"})` },
    svg("title", {}, said(edge)),
  );
}

function said(edge) {
  const times = edge.taken > 1 ? `, taken ${edge.taken} times` : edge.taken ? ", taken" : ", not taken";
  return `${edge.label || "automatic"}${times}`;
}

function drawLabel({ edge, x, y, texts, full }) {
  return svg(
    "text",
    { class: `edge-label ${edge.taken > 0 ? "taken" : "open"}`, x, y, "text-anchor": "middle" },
    texts.map((text, index) => svg("tspan", { x, dy: index ? 12 : 0, class: index ? "condition" : "" }, text)),
    svg("title", {}, full),
  );
}

function drawNode(box, chosen) {
  const { node, x, y, width, height, text } = box;
  const pick = () => chosen(node);
  const visits = node.visited > 1 ? `, visited ${node.visited} times` : node.visited ? ", visited" : ", not visited";
  const round = node.kind === "start" || node.kind === "end" || node.kind === "fail" ? height / 2 : 7;
  return svg(
    "g",
    {
      class: ["node", `node-${node.kind}`, node.visited ? "visited" : "", node.current ? "current" : ""].filter(Boolean).join(" "),
      tabindex: "0",
      role: "button",
      "aria-label": `${node.label}${node.current ? ", current" : visits}`,
      dataset: { node: node.id },
      onclick: pick,
      onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), pick()),
    },
    node.current && svg("rect", { class: "halo", x: x - width / 2 - 4, y: y - height / 2 - 4, width: width + 8, height: height + 8, rx: round + 4 }),
    svg("rect", { class: "box", x: x - width / 2, y: y - height / 2, width, height, rx: round }),
    node.kind === "end" && svg("rect", { class: "inner", x: x - width / 2 + 3, y: y - height / 2 + 3, width: width - 6, height: height - 6, rx: round - 3 }),
    svg("text", { x, y: y + 4, "text-anchor": "middle" }, text),
    node.visited > 1 && svg("text", { class: "visits", x: x + width / 2 - 2, y: y - height / 2 - 4, "text-anchor": "end" }, `×${node.visited}`),
    svg("title", {}, node.title ?? node.label),
  );
}

function told(graph) {
  const been = graph.nodes.filter((node) => node.visited).map((node) => node.label);
  const now = graph.nodes.find((node) => node.current);
  return `${graph.kind === "machine" ? "State machine" : "Chain of decisions"}. Visited: ${been.join(", ") || "nothing yet"}.${now ? ` Now: ${now.label}.` : ""}`;
}

function around(placed, lines, labels) {
  const xs = [];
  const ys = [];
  for (const box of placed) {
    xs.push(box.x - box.width / 2 - 4, box.x + box.width / 2 + 4);
    ys.push(box.y - box.height / 2 - 16, box.y + box.height / 2 + 4);
  }
  for (const line of lines) for (const [x, y] of line.points) xs.push(x), ys.push(y);
  for (const label of labels) xs.push(label.x - label.width / 2, label.x + label.width / 2), ys.push(label.y - 10, label.y + 16);
  if (!xs.length) return { x: 0, y: 0, width: 100, height: 40 };
  const x = Math.min(...xs) - MARGIN;
  const y = Math.min(...ys) - MARGIN;
  return { x, y, width: Math.max(...xs) + MARGIN - x, height: Math.max(...ys) + MARGIN - y };
}

function legend() {
  const item = (kind, text) => h("li", {}, h("span", { class: `legend-mark ${kind}`, "aria-hidden": "true" }), text);
  return h("ul", { class: "legend" }, item("current", "now"), item("visited", "been there"), item("open", "not taken"));
}
