// Live updates by server-sent events or polling.

import { Offline, Problem, calls } from "./api.js";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 15000;
/** Hidden pages close their stream: tabs share a browser's limit of six connections per server. */
const HIDDEN_FOR = 20000;

/**
 * Listens to `url` until `signal` is aborted; `on` has a function for each event's name. `opened` is called whenever
 * the stream opens: it has no changes of the time before (the page was loading or hidden, the server away).
 */
export function listen(url, on, { signal, opened = () => {} }) {
  let source = null;
  let wait = FIRST_WAIT;
  let timer = 0;

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
      opened();
    };
    source.onerror = () => {
      // Browsers reconnect after some failures only. This reconnects after all of them, with backoff.
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

/** Polls now and every `seconds`, except while the page is hidden. `shown` gets each response, `failed` each error. */
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

/** Debounces `work`: one run for any number of calls, at most one per `milliseconds`. */
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
