// Client of the HTTP API; its errors carry texts for the user.

const BASE = "api/v1";

/** An error response, as problem details of RFC 9457. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server responded with status ${status}.`);
    this.status = status;
    this.title = body.title || "";
    this.errors = Array.isArray(body.errors) ? body.errors : [];
  }
}

/** No response: the server or the network is down. */
export class Offline extends Error {
  constructor(method) {
    const unknown = method === "GET" ? "" : " It may have taken effect: look before you repeat it.";
    super(`The console's server does not answer.${unknown} Check that plancast console is running, then try again.`);
  }
}

/** Events: `signedout` when a token is required; `reached` and `unreached` for the outcome of the last call. */
export const calls = new EventTarget();

export function address(path, query) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined && value !== "") asked.set(name, value);
  }
  const text = asked.toString();
  return `${BASE}/${path}${text ? `?${text}` : ""}`;
}

export const get = (path, { query, signal } = {}) => call("GET", address(path, query), { signal });

/** `key`: idempotency key; a repeated press sends the same one. */
export const post = (path, body, { key } = {}) => call("POST", address(path), { body: body ?? {}, key });

export const remove = (path) => call("DELETE", address(path), {});

async function call(method, url, { body, key, signal }) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  let response;
  try {
    response = await fetch(url, {
      method,
      headers,
      signal,
      credentials: "same-origin",
      cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    calls.dispatchEvent(new Event("unreached"));
    throw new Offline(method);
  }
  calls.dispatchEvent(new Event("reached"));
  const text = await response.text();
  const answer = parsed(text);
  if (response.ok) return answer;
  const problem = new Problem(response.status, answer ?? {});
  if (response.status === 401 && !url.startsWith(`${BASE}/session`)) calls.dispatchEvent(new Event("signedout"));
  throw problem;
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null; // such as a proxy's page: the status is enough
  }
}

/** A new idempotency key. (`crypto.randomUUID` is missing on plain HTTP other than loopback.) */
export function intent() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

export const plan = (id) => `plans/${encodeURIComponent(id)}`;
