// Watches the console's server and, by it, NATS: asks for a sign of life once a second.

import * as api from "./api.js";

/** Milliseconds from a loss until the page says so, at most: a pause between two questions, and the wait for an answer. */
export const LIMIT = 3000;
export const PAUSE = 1000;
export const PATIENCE = 1500;

/** Calls `changed({ state, since })`: `live`, `nats` or `server` is gone; `since`: the time of the last good answer. */
export function watchConnection(changed, { asks }) {
  let timer = 0;
  let asking = false;
  let good = new Date();
  let last = "";
  const turn = async () => {
    clearTimeout(timer);
    if (asking || document.hidden) return;
    asking = true;
    let state = "live";
    try {
      if (asks() && !(await api.get("connection", { signal: AbortSignal.timeout(PATIENCE) })).nats) state = "nats";
    } catch (error) {
      if (error instanceof api.Offline) state = "server"; // any other error is an answer
    }
    asking = false;
    if (state === "live") good = new Date();
    if (state !== last) changed({ state: (last = state), since: good.toLocaleTimeString() });
    timer = setTimeout(turn, PAUSE);
  };
  document.addEventListener("visibilitychange", turn);
  addEventListener("online", turn);
  turn();
}

/** What is lost, in words: what is shown, what to do; null when nothing is. */
export function told({ state, since }) {
  const shown = `This page shows what was known at ${since}, and goes on by itself.`;
  if (state === "server") return ["The console's server does not answer.", `${shown} Check that plancast console is running.`];
  if (state === "nats")
    return ["NATS does not answer.", `${shown} Nothing can be submitted or answered until then; accepted plans are stored. Check nats-server with plancast doctor.`];
  return null;
}
