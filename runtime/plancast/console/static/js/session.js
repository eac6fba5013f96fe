// Who is here, as the server knows them.

import * as api from "./api.js";

export const session = { user: "", auth: "none", writable: false };

export async function know() {
  Object.assign(session, await api.get("session"));
  return session;
}

export async function signIn(token) {
  await api.post("session", { token });
  return know();
}

export async function signOut() {
  await api.remove("session");
}
