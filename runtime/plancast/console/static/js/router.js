// Routes such as `#/plans/ID?tab=data`, so that every view can be linked and is in the browser's history.

/** The current view: decoded parts of its path, and its query. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(parts, query) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) if (value) asked.set(name, value);
  const text = asked.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const planLink = (id, query) => link(["plans", id], query);

let list = link(["plans"]);

/** The last view of the list of plans, with its filters. */
export const listLink = () => list;
export const rememberList = (address) => {
  list = address;
};

let from = "";

/** Returns to the list, to the row of the plan. */
export function backToList(id) {
  from = id;
  go(list);
}

/** Returns, once, the plan that was left by the keyboard. */
export function cameFrom() {
  const id = from;
  from = "";
  return id;
}

export function go(address) {
  location.hash = address;
}

/** Replaces the address without a new history entry or view, as for filter input. */
export function note(address) {
  history.replaceState(null, "", address);
}

/**
 * Shows `page({main, parts, query, signal})` for each address. `signal` is aborted when the view is left: requests,
 * listeners, streams and timers are bound to it.
 */
export function start(pages, main) {
  let leaving = new AbortController();
  let first = true;
  const show = () => {
    leaving.abort();
    leaving = new AbortController();
    const { parts, query } = here();
    const [name = "plans", ...rest] = parts;
    const page = pages[name] ?? pages.plans;
    main.replaceChildren();
    window.scrollTo(0, 0);
    dispatchEvent(new CustomEvent("plancast:page", { detail: pages[name] ? name : "plans" }));
    page({ main, parts: rest, query, signal: leaving.signal });
    if (!first) main.focus({ preventScroll: true }); // screen readers continue at the new view
    first = false;
  };
  const stop = new AbortController();
  addEventListener(
    "hashchange",
    (event) => {
      if (new URL(event.newURL).hash === "#main") return; // the skip link
      show();
    },
    { signal: stop.signal },
  );
  show();
  return { again: show, stop: () => (leaving.abort(), stop.abort()) };
}
