// Entry point: session, pages, keyboard shortcuts and the connection state.

import * as api from "./api.js";
import { showApprovals } from "./approvals.js";
import { showDeadLetters } from "./deadletters.js";
import { showDeployment } from "./deployment.js";
import { told, watchConnection } from "./connection.js";
import { h, put } from "./dom.js";
import { icon } from "./icons.js";
import { listenForKeys, onKey } from "./keys.js";
import { showAway, showLogin } from "./login.js";
import { soon } from "./live.js";
import { showPlan } from "./plan.js";
import { showPlans } from "./plans.js";
import * as router from "./router.js";
import { showSchedules } from "./schedules.js";
import { isLink, keepsToken, session, signInByLink, signOut } from "./session.js";
import { toast } from "./toast.js";
import { showUsage } from "./usage.js";

const PAGES = [
  { name: "plans", label: "Plans", key: "p" },
  { name: "approvals", label: "Approvals", key: "a" },
  { name: "schedules", label: "Schedules", key: "s" },
  { name: "deadletters", label: "Dead letters", key: "d" },
  { name: "runtime", label: "Runtime", key: "r" },
  { name: "usage", label: "Usage", key: "u" },
];
const BADGES_EVERY = 10000;

const app = document.getElementById("app");
const alone = document.getElementById("alone");
const main = document.getElementById("main");
let routes = null;
let counting = 0;

async function begin() {
  put(alone);
  try {
    await signInByLink();
  } catch (error) {
    app.hidden = true;
    if (error.status === 401) showLogin(alone, begin);
    else {
      showAway(alone, begin);
      setTimeout(() => app.hidden && alone.querySelector("button") && begin(), 3000);
    }
    return;
  }
  app.hidden = false;
  drawTools();
  routes?.stop();
  routes = router.start(
    {
      plans: (view) => (view.parts.length ? showPlan(view) : showPlans(view)),
      approvals: showApprovals,
      schedules: showSchedules,
      deadletters: showDeadLetters,
      runtime: showDeployment,
      usage: showUsage,
    },
    main,
  );
  badges();
}

function drawNav() {
  put(
    document.getElementById("nav"),
    PAGES.map(({ name, label, key }) =>
      h(
        "a",
        { href: router.link([name]), dataset: { page: name }, title: `${label} (g ${key})` },
        icon(name, 18),
        h("span", { class: "nav-label" }, label),
        h("span", { class: "nav-count", hidden: true }),
      ),
    ),
    h("a", { href: "docs", class: "nav-foot wide-only" }, "HTTP API"),
  );
}

function drawTools() {
  const { current, next } = window.plancastTheme;
  const words = (choice) => `Theme: ${choice === "auto" ? "system" : choice}. Change theme.`;
  const theme = h("button", { class: "tool", type: "button", "aria-label": words(current()), title: words(current()) }, icon(current()));
  theme.addEventListener("click", () => {
    const choice = next();
    put(theme, icon(choice));
    theme.title = words(choice);
    theme.setAttribute("aria-label", words(choice));
  });
  const keys = h("button", { class: "tool wide-only", type: "button", "aria-label": "Keys", title: "Keys (?)" }, icon("help"));
  keys.addEventListener("click", () => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "?", bubbles: true })));
  put(
    document.getElementById("tools"),
    keys,
    theme,
    h("span", { class: "who", title: "Your actions are recorded under this name" }, icon("user"), h("span", {}, session.user)),
    session.auth === "token" && h("button", { class: "tool", type: "button", "aria-label": "Sign out", title: "Sign out", onclick: leave }, icon("leave")),
  );
}

async function leave() {
  try {
    await signOut();
  } catch (error) {
    return toast(error.message, { bad: true });
  }
  return signedOutForGood();
}

function signedOut() {
  if (keepsToken()) return soonAgain(); // the server was started anew: its sessions have ended, the token has not
  return signedOutForGood();
}

function signedOutForGood() {
  clearTimeout(counting);
  routes?.stop();
  app.hidden = true;
  put(main);
  document.querySelectorAll("dialog").forEach((each) => each.remove());
  if (!alone.hasChildNodes()) showLogin(alone, begin);
}

/** Shows the numbers of what waits for people and of dead letters at their links. */
async function badges() {
  clearTimeout(counting);
  if (!document.hidden && !app.hidden) {
    const asked = { approvals: ["approvals", "effects"], deadletters: ["dead-letters"] };
    await Promise.all(
      Object.entries(asked).map(async ([page, paths]) => {
        try {
          const found = await Promise.all(paths.map((path) => api.get(path, { query: { limit: 1 } })));
          count(page, found.reduce((sum, { items, total }) => sum + (total ?? items.length), 0), false);
        } catch {
          // The page itself shows the error.
        }
      }),
    );
  }
  clearTimeout(counting);
  counting = setTimeout(badges, BADGES_EVERY);
}

function count(page, n, andMore) {
  const place = document.querySelector(`#nav [data-page="${page}"] .nav-count`);
  place.hidden = n === 0;
  place.textContent = `${n}${andMore ? "+" : ""}`;
}

function heard() {
  const place = document.getElementById("liveness");
  const outage = document.getElementById("outage");
  const states = {
    live: ["Live", "This page is updated live"],
    waiting: ["Reconnecting", "The connection to the server is lost; reconnecting"],
    lost: ["NATS is gone", "The server has no connection to NATS; reconnecting"],
  };
  let stream = "";
  let reached = true;
  let connection = { state: "", since: "" };
  const draw = () => {
    const away = !reached || !navigator.onLine;
    const state = away ? "waiting" : connection.state === "nats" ? "lost" : connection.state === "server" ? "waiting" : stream;
    const [text, title] = states[state] ?? ["", ""];
    place.className = `liveness ${state}`;
    place.title = title;
    if (place.textContent !== text) place.textContent = text;
    const words = app.hidden ? null : told(connection);
    outage.hidden = words === null;
    if (words && outage.textContent !== words.join(" ")) put(outage, h("strong", {}, words[0]), " ", words[1]);
  };
  api.calls.addEventListener("live", (event) => ((stream = event.detail), draw()));
  api.calls.addEventListener("reached", () => ((reached = true), draw()));
  api.calls.addEventListener("unreached", () => ((reached = false), draw()));
  addEventListener("online", draw);
  addEventListener("offline", draw);
  watchConnection((found) => ((connection = found), draw()), { asks: () => !app.hidden });
}

addEventListener("plancast:page", ({ detail }) => {
  for (const each of document.querySelectorAll("#nav a")) {
    if (each.dataset.page === detail) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const page = PAGES.find(({ name }) => name === detail);
  document.title = `${page?.label ?? "Plans"} · plancast`;
});
const again = soon(500, badges);
addEventListener("plancast:wrote", again);
const soonAgain = soon(100, begin);
api.calls.addEventListener("signedout", signedOut);
addEventListener("hashchange", () => isLink() && begin());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
for (const { name, label, key } of PAGES) onKey(`g ${key}`, label, () => router.go(router.link([name])), { group: "Go to" });
drawNav();
heard();
listenForKeys();
begin();
