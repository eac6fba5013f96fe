// Who is here, as the server knows them.

import * as api from "./api.js";

const LINK = /^#token=([\w-]+)$/;
const KEPT = "plancast-token";

export const session = { user: "", auth: "", writable: false };

export async function know() {
  Object.assign(session, await api.get("session"));
  return session;
}

export async function signIn(token) {
  await api.post("session", { token });
  return know();
}

export async function signOut() {
  sessionStorage.removeItem(KEPT);
  await api.remove("session");
}

/** Whether the address is the link that is printed at the start. */
export const isLink = () => LINK.test(location.hash);

/** Whether this tab was opened by such a link. */
export const keepsToken = () => sessionStorage.getItem(KEPT) !== null;

/**
 * Opens the session again that there is, or one with the token of the link. It is taken out of the address at once, and
 * kept for as long as the tab is: a server that is started again has the same token, and other sessions.
 */
export async function signInByLink() {
  const [, given] = LINK.exec(location.hash) ?? [];
  if (given) {
    sessionStorage.setItem(KEPT, given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  try {
    if (!given) return await know();
  } catch (error) {
    if (error.status !== 401 || !keepsToken()) throw error;
  }
  try {
    return await signIn(sessionStorage.getItem(KEPT));
  } catch (error) {
    if (error.status !== 401) throw error;
    sessionStorage.removeItem(KEPT);
    return know();
  }
}
