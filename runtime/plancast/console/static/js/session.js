// The session of the user.

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

/** True if the address is the link printed at the start of the console. */
export const isLink = () => LINK.test(location.hash);

/** True if this tab was opened by such a link. */
export const keepsToken = () => sessionStorage.getItem(KEPT) !== null;

/**
 * Resumes a session, or opens one with the token of the link. The token is removed from the address at once, and
 * kept while the tab is open: a restarted server has the same token but no sessions.
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
