// Routes the edges of a graph from border to border, around the nodes between, and places their labels apart.

const HEIGHT = 32;
const WIDEST = 260;
const GAP = 22;
const LABEL = 30;
const brush = document.createElement("canvas").getContext("2d");

function widthOf(text, font) {
  brush.font = font;
  return brush.measureText(text).width;
}

const NODE_FONT = "600 12.5px system-ui, sans-serif";
const LABEL_FONT = "11px system-ui, sans-serif";

/** Nodes with the size of their boxes, by id. A box is never so wide that it touches its neighbour. */
export function boxes(nodes) {
  const placed = new Map();
  for (const node of nodes) {
    const near = nodes.filter((each) => each !== node && Math.abs(each.y - node.y) < HEIGHT).map((each) => Math.abs(each.x - node.x));
    const most = Math.min(WIDEST, ...near.map((distance) => Math.max(48, distance - GAP)));
    const text = shortened(node.label, most - 22, NODE_FONT);
    const width = Math.min(most, Math.max(56, widthOf(text, NODE_FONT) + 26));
    placed.set(node.id, { node, x: node.x, y: node.y, width, height: HEIGHT, text });
  }
  return placed;
}

function shortened(text, room, font) {
  let said = String(text);
  if (widthOf(said, font) <= room) return said;
  while (said.length > 2 && widthOf(`${said}…`, font) > room) said = said.slice(0, -1);
  return `${said}…`;
}

/** Edges as SVG paths, the positions of their labels, and the number of labels that overlap a node or each other. */
export function route(edges, placed) {
  const known = edges.filter((edge) => placed.has(edge.source) && placed.has(edge.target));
  const down = flowsDown(known, placed);
  const all = [...placed.values()];
  const pairs = new Map();
  const ports = spread(known, placed, down);
  const lines = known.map((edge) => {
    const pair = `${edge.source}\u0000${edge.target}`;
    const nth = pairs.get(pair) ?? 0;
    pairs.set(pair, nth + 1);
    const points = curve(placed.get(edge.source), placed.get(edge.target), { down, nth, all, ports: ports.get(edge) });
    return { edge, points, d: path(points) };
  });
  return { lines, ...label(lines, all) };
}

/** Offsets of each edge's ends from the middle of the border, as `[from, to]`, ordered by their other ends. */
function spread(edges, placed, down) {
  const across = down ? "x" : "y";
  const ports = new Map(edges.map((edge) => [edge, [0, 0]]));
  for (const [end, own, other] of [[0, "source", "target"], [1, "target", "source"]]) {
    const groups = Map.groupBy(edges.filter((edge) => ahead(edge, placed, down)), (edge) => edge[own]);
    for (const [id, group] of groups) {
      const room = (down ? placed.get(id).width : HEIGHT) - 24;
      const step = Math.min(18, room / group.length);
      const sorted = [...group].sort((a, b) => placed.get(a[other])[across] - placed.get(b[other])[across]);
      sorted.forEach((edge, index) => {
        ports.get(edge)[end] = (index - (group.length - 1) / 2) * step;
      });
    }
  }
  return ports;
}

function ahead(edge, placed, down) {
  const a = placed.get(edge.source);
  const b = placed.get(edge.target);
  return (down ? b.y - a.y : b.x - a.x) > HEIGHT;
}

function flowsDown(edges, placed) {
  let dx = 0;
  let dy = 0;
  for (const edge of edges) {
    dx += Math.abs(placed.get(edge.target).x - placed.get(edge.source).x);
    dy += Math.abs(placed.get(edge.target).y - placed.get(edge.source).y);
  }
  return dy >= dx;
}

/** Four points of a Bézier curve. */
function curve(a, b, { down, nth, all, ports }) {
  const side = (box, sign, off) => (down ? [box.x + off, box.y + (sign * box.height) / 2] : [box.x + (sign * box.width) / 2, box.y + off]);
  if (a === b) {
    const x = a.x + a.width / 2;
    const out = 34 + nth * 16;
    return [[x, a.y - 7], [x + out, a.y - 26], [x + out, a.y + 26], [x, a.y + 7]];
  }
  if ((down ? b.y - a.y : b.x - a.x) <= HEIGHT) return backwards(a, b, { down, nth, all });
  const from = side(a, 1, ports[0]);
  const to = side(b, -1, ports[1]);
  const reach = (down ? to[1] - from[1] : to[0] - from[0]) * 0.45;
  let bend = nth * 46;
  const points = () =>
    down
      ? [from, [from[0] + bend * 1.33, from[1] + reach], [to[0] + bend * 1.33, to[1] - reach], to]
      : [from, [from[0] + reach, from[1] + bend * 1.33], [to[0] - reach, to[1] + bend * 1.33], to];
  const others = all.filter((box) => box !== a && box !== b);
  for (const tried of [0, 60, -60, 110, -110, 170, -170, 240, -240]) {
    bend = tried + nth * 46;
    if (!others.some((box) => crosses(points(), box))) return points();
  }
  bend = 110 + nth * 46;
  return points();
}

/** An edge back, or within a row: leaves and enters on the same side. */
function backwards(a, b, { down, nth, all }) {
  const others = all.filter((box) => box !== a && box !== b);
  const make = (out) => {
    if (down) {
      const sign = Math.sign(out);
      const x = sign > 0 ? Math.max(a.x + a.width / 2, b.x + b.width / 2) : Math.min(a.x - a.width / 2, b.x - b.width / 2);
      return [[a.x + (sign * a.width) / 2, a.y], [x + out * 1.33, a.y], [x + out * 1.33, b.y], [b.x + (sign * b.width) / 2, b.y]];
    }
    const sign = Math.sign(out);
    return [[a.x, a.y + (sign * a.height) / 2], [a.x, a.y + out * 1.33], [b.x, b.y + out * 1.33], [b.x, b.y + (sign * b.height) / 2]];
  };
  for (const out of [40, -40, 75, -75, 120, -120]) {
    const points = make(out + Math.sign(out) * nth * 24);
    if (!others.some((box) => crosses(points, box))) return points;
  }
  return make(60 + nth * 24);
}

export function at([p0, p1, p2, p3], t) {
  const u = 1 - t;
  const mix = (i) => u * u * u * p0[i] + 3 * u * u * t * p1[i] + 3 * u * t * t * p2[i] + t * t * t * p3[i];
  return [mix(0), mix(1)];
}

function crosses(points, box) {
  for (let t = 0.06; t < 0.95; t += 0.04) {
    const [x, y] = at(points, t);
    if (Math.abs(x - box.x) < box.width / 2 + 5 && Math.abs(y - box.y) < box.height / 2 + 5) return true;
  }
  return false;
}

function path([a, b, c, d]) {
  const say = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  return `M${say(a)} C${say(b)} ${say(c)} ${say(d)}`;
}

const ALONG = [0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82];

/** Places each label beside its edge: apart from nodes and other labels, then across as few other edges as possible. */
function label(lines, all) {
  const taken = all.map((box) => ({ x: box.x, y: box.y, width: box.width, height: box.height }));
  const drawn = lines.map(({ edge, points }) => ({ edge, spots: Array.from({ length: 25 }, (_, n) => at(points, n / 24)) }));
  const labels = [];
  let overlaps = 0;
  for (const { edge, points } of [...lines].sort((a, b) => (b.edge.taken > 0) - (a.edge.taken > 0))) {
    if (!edge.label) continue;
    const full = String(edge.label);
    const texts = said(edge);
    const width = Math.max(...texts.map((text) => widthOf(text, LABEL_FONT))) + 6;
    const height = 2 + 12 * texts.length;
    const others = drawn.filter((each) => each.edge !== edge);
    let best = null;
    for (const t of ALONG) {
      const [x, y] = at(points, t);
      for (const off of [0, width / 2 + 8, -width / 2 - 8]) {
        const spot = { x: x + off, y, width, height };
        const hits = taken.filter((each) => overlap(each, spot)).length;
        const cost = 100 * hits + (off ? 1.5 : 0) + others.filter((each) => each.spots.some(([px, py]) => within(px, py, spot))).length;
        if (!best || cost < best.cost) best = { spot, hits, cost };
      }
      if (!best.cost) break;
    }
    overlaps += best.hits;
    taken.push(best.spot);
    labels.push({ edge, texts, full, x: best.spot.x, y: best.spot.y + 10 - height / 2, width, spot: best.spot });
  }
  return { labels, overlaps };
}

function within(x, y, spot) {
  return Math.abs(x - spot.x) < spot.width / 2 && Math.abs(y - spot.y) < spot.height / 2 + 2;
}

/** The event and, on a line of its own, the condition. */
function said(edge) {
  const [, event, condition] = /^(.*?)(?: \[(.*)\])?$/s.exec(String(edge.label));
  const times = edge.taken > 1 ? ` ×${edge.taken}` : "";
  const cut = (text) => (text.length > LABEL ? `${text.slice(0, LABEL - 1)}…` : text);
  return [cut(event) + times, condition && `if ${cut(condition)}`].filter(Boolean);
}

function overlap(a, b) {
  return Math.abs(a.x - b.x) < (a.width + b.width) / 2 && Math.abs(a.y - b.y) < (a.height + b.height) / 2 + 1;
}
