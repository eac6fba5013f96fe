// Addresses are `#/plans/ID?tab=data`: the server has one page to serve, and every view can be linked to and gone back to.

/** The view that is shown: its path as decoded parts, and its query. */
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

/** The list of plans as it was last looked at, with its filters. */
export const listLink = () => list;
export const rememberList = (address) => {
  list = address;
};

let from = "";

/** Back to the list, to the row of the plan that one comes from. */
export function backToList(id) {
  from = id;
  go(list);
}

/** The plan that one comes from by the keyboard, told once. */
export function cameFrom() {
  const id = from;
  from = "";
  return id;
}

export function go(address) {
  location.hash = address;
}

/** Changes the address without showing anything anew: what is typed into a filter is no step to go back to. */
export function note(address) {
  history.replaceState(null, "", address);
}

/**
 * Shows `page({main, parts, query, signal})` for each address. `signal` is aborted when the view is left: requests,
 * listeners, streams and timers hang on it.
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
    if (!first) main.focus({ preventScroll: true }); // a screen reader goes on where the new view begins
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
