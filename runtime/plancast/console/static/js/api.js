// The HTTP API: one way to read, one way to write, and errors that can be shown as they are.

const BASE = "api/v1";

/** The server refused: what RFC 9457 says of it. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered ${status}.`);
    this.status = status;
    this.title = body.title || "";
    this.errors = Array.isArray(body.errors) ? body.errors : [];
  }
}

/** No answer came: the server or the network is away. */
export class Offline extends Error {
  constructor() {
    super("The server cannot be reached.");
  }
}

/** `signedout`: a token is asked for. `reached` and `unreached`: whether the last call got an answer. */
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

/** `key`: the same one for the same intent, so that a repeated press does it once. */
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
    throw new Offline();
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
    return null; // a proxy's page, say: the status tells enough
  }
}

/** A key for one intent. (`crypto.randomUUID` is missing on plain HTTP away from loopback.) */
export function intent() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

let described = null;

/** Whether this server has a route, such as `/plans/{plan_id}/fork`. */
export async function offers(path) {
  described ??= get("openapi.json").then(({ paths }) => new Set(Object.keys(paths)));
  try {
    return (await described).has(`/${BASE}${path}`);
  } catch {
    described = null;
    return false;
  }
}

export const plan = (id) => `plans/${encodeURIComponent(id)}`;
