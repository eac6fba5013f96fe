// What keeps a view fresh: a stream of server-sent events, or a question asked again and again.

import { Offline, Problem, calls } from "./api.js";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15000;
/** Hidden pages let go of their stream: a browser has six connections for a server, and tabs share them. */
const HIDDEN_FOR = 20000;

/**
 * Listens to `url` until `signal` is aborted; `on` has a function for each event's name. After a gap (the server was
 * away, the page was hidden) `caughtUp` is called, since what happened meanwhile was not heard.
 */
export function listen(url, on, { signal, caughtUp = () => {} }) {
  let source = null;
  let wait = FIRST_WAIT;
  let timer = 0;
  let opened = false;

  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    if (signal.aborted) return;
    source = new EventSource(url);
    source.onopen = () => {
      say("live");
      wait = FIRST_WAIT;
      if (opened) caughtUp();
      opened = true;
    };
    source.onerror = () => {
      // The browser tries again by itself after some failures and not after others. This does after all, ever later.
      close();
      if (signal.aborted) return;
      say("waiting");
      timer = setTimeout(open, wait * (0.75 + Math.random() / 2));
      wait = Math.min(wait * 2, LONGEST_WAIT);
    };
    for (const [name, heard] of Object.entries(on)) {
      source.addEventListener(name, (event) => {
        let data;
        try {
          data = JSON.parse(event.data);
        } catch {
          return;
        }
        heard(data, close);
      });
    }
  };

  document.addEventListener(
    "visibilitychange",
    () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(close, HIDDEN_FOR);
      else if (source === null) open();
    },
    { signal },
  );
  addEventListener("online", open, { signal }); // a stream that seems to be there may have died unnoticed
  signal.addEventListener("abort", () => (close(), say("")));
  open();
  return close;
}

/** Asks now and every `seconds`, not while the page is hidden. `shown` gets each answer, `failed` each error. */
export function poll(seconds, ask, { signal, shown, failed }) {
  let timer = 0;
  let asking = false;
  const turn = async () => {
    clearTimeout(timer);
    if (asking || signal.aborted) return;
    asking = true;
    try {
      shown(await ask());
      if (!signal.aborted) say("live");
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      if (error instanceof Offline) say("waiting");
      else if (!(error instanceof Problem)) console.error(error);
      failed(error);
    } finally {
      asking = false;
      if (!signal.aborted && !document.hidden) timer = setTimeout(turn, seconds * 1000);
    }
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : turn()), { signal });
  addEventListener("online", turn, { signal });
  signal.addEventListener("abort", () => (clearTimeout(timer), say("")));
  turn();
  return turn;
}

/** Runs `work` soon, once for any number of calls meanwhile, and not again before `milliseconds` have passed. */
export function soon(milliseconds, work, signal) {
  let timer = 0;
  signal?.addEventListener("abort", () => clearTimeout(timer));
  return () => {
    if (timer || signal?.aborted) return;
    timer = setTimeout(() => {
      timer = 0;
      work();
    }, milliseconds);
  };
}

function say(state) {
  calls.dispatchEvent(new CustomEvent("live", { detail: state }));
}
