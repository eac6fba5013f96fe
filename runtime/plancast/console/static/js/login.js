// Sign-in.

import { Offline } from "./api.js";
import { h, put } from "./dom.js";
import { signIn } from "./session.js";

export function showLogin(place, done) {
  const fault = h("p", { class: "form-fault", role: "alert", hidden: true });
  const token = h("input", {
    id: "token",
    type: "password",
    autocomplete: "current-password",
    autocapitalize: "none",
    spellcheck: "false",
    "aria-describedby": "token-hint",
  });
  const button = h("button", { class: "button primary", type: "submit" }, "Sign in");
  const send = async (event) => {
    event.preventDefault();
    if (!token.value.trim()) return token.focus();
    button.disabled = true;
    fault.hidden = true;
    try {
      await signIn(token.value.trim());
      put(place);
      done();
    } catch (error) {
      fault.textContent = error instanceof Offline ? error.message : error.status === 401 ? "This token is not valid." : error.message;
      fault.hidden = false;
      token.select();
    } finally {
      button.disabled = false;
    }
    return undefined;
  };
  put(
    place,
    h(
      "main",
      { class: "login" },
      h("h1", {}, document.querySelector(".brand svg").cloneNode(true), "plancast"),
      h(
        "form",
        { onsubmit: send },
        h("label", { for: "token" }, "Your token"),
        token,
        h("p", { class: "hint", id: "token-hint" }, "Issued by the operator of this deployment, or part of the link that is printed at its start. Your actions are recorded under the token's name."),
        fault,
        button,
      ),
    ),
  );
  document.title = "Sign in · plancast";
  token.focus();
}

export function showAway(place, again) {
  put(
    place,
    h(
      "main",
      { class: "login" },
      h("h1", {}, "plancast"),
      h("p", { role: "alert" }, "The server cannot be reached. It may be starting."),
      h("button", { class: "button", type: "button", onclick: again }, "Try again"),
    ),
  );
}
